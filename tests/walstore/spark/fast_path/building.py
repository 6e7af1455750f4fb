"""Logs for the fast path's tests: of any fragments, by us and by wal3; and rows to compare."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.frames import batch_of, build
from tests.uploader.parquet import by_arrow_rs, wal3_table
from tests.walstore.spark.reading import START_US
from uploader import CloudWriter
from uploader.format.layout import MANIFEST, fragment_path
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import inspect_fragment
from uploader.fragments.fragment_builder import encode_fragment
from walstore.records import Record
from walstore.spark import read
from walstore.testing import ManualClock

EXTREMES = [
    {"value": b""},
    {"value": b"", "key": b"", "stream": "", "headers": {"": b""}},
    {"value": b"\x00\xff" * 5000, "key": b"k" * 300, "stream": "eu"},
    {"value": b"headers", "headers": {"a": b"", "é": b"\xff", "a b": b"x" * 1000}},
    {"value": b"u", "stream": "ß/1"},
]


def records(start: int, count: int, seed: int) -> list[Record]:
    """Return records, some of them with all there is."""
    chance = random.Random(seed)
    found = []
    for at in range(count):
        given: dict[str, Any] = {"value": chance.randbytes(chance.randrange(200))}
        if chance.random() < 0.2:
            given = chance.choice(EXTREMES)
        found.append(
            Record(
                start + at,
                given["value"],
                given.get("key"),
                given.get("stream"),
                given.get("headers", {}),
                START_US + 1000 * (start + at),
            )
        )
    return found


def ours(found: Sequence[Record]) -> bytes:
    return encode_fragment([batch_of(build(found))], timestamp_us=START_US).data


def wal3(found: Sequence[Record], **options: Any) -> bytes:
    """Return a file as wal3 writes it, of the values alone; all have the time of the last one."""
    values = [record.value for record in found]
    table = wal3_table(found[0].offset, found[-1].timestamp_us, values)
    defaults = {"writer_version": "parquet_1_0", "dictionary_enabled": True}
    return by_arrow_rs(table, **{**defaults, **options})


def put_log(root: Path, fragments: Sequence[bytes]) -> list[Path]:
    """Make a log in a directory, of these fragments; return where they lie."""
    entries = [inspect_fragment(data, fragment_path(at + 1)) for at, data in enumerate(fragments)]
    manifest = Manifest.initial("tests").apply_fragments(entries, "tests")
    files = {MANIFEST: manifest.serialise()}
    files |= {entry.path: data for entry, data in zip(entries, fragments, strict=True)}
    for key, data in files.items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(data)
    return [root / entry.path for entry in entries]


def drop_first(root: Path) -> None:
    """Take the oldest fragment away as a collector does: out of the manifest, then the object."""
    manifest = Manifest.parse((root / MANIFEST).read_bytes())
    first = manifest.fragments[0]
    left = dataclasses.replace(
        manifest,
        collected=manifest.collected + first.setsum,
        fragments=manifest.fragments[1:],
        initial_offset=first.limit,
        initial_seq_no=first.seq_no + 1,
    )
    left.scrub()
    (root / MANIFEST).write_bytes(left.serialise())
    (root / first.path).unlink()


def write_chain(url: str, found: Sequence[Record], fragment_records: int) -> None:
    """Write a log with the layout chain."""

    async def append() -> None:
        clock = ManualClock(now_us=START_US)
        async with CloudWriter.open(url, layout="chain", clock=clock) as log:
            for at in range(0, len(found), fragment_records):
                values = [record.value for record in found[at : at + fragment_records]]
                await log.append_many(values, stream=found[at].stream, key=found[at].key)

    asyncio.run(append())


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    """Return the rows in the order of their offsets, as plain values."""
    found = [_plain(tuple(row)) for row in frame.collect()]
    return sorted(found, key=lambda row: row[2:5])


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    return value


def plan_of(frame: Any) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def is_native(frame: Any) -> bool:
    """Return whether the JVM reads, and no Python."""
    return "FileScan parquet" in plan_of(frame) and "BatchScan" not in plan_of(frame)


def both(
    spark: Any, location: object, options: Mapping[str, object] | None = None, **more: object
) -> list[tuple[Any, ...]]:
    """Read by the fast path and by the Python source; return the rows if they are the same."""
    options = {"includeHeaders": True, **(options or {}), **more}
    fast = read(spark, str(location), options, fast_path="always")
    slow = read(spark, str(location), options, fast_path="never")
    assert fast.schema == slow.schema
    found = rows_of(fast)
    assert found == rows_of(slow)
    return found
