"""Golden fragments: what is in ``fragment_v1``, and the program that wrote it.

Each ``.parquet`` holds one fragment, each ``.json`` beside it what a reader must find there. Some are
written by arrow-rs, the library that wal3 uses, with wal3's options; the others by us. All must stay readable
for good, so the files are never written again, and ours may differ from what a later pyarrow would write. To
add one, append it to ``FILES`` and run, from the root of the repository::

    python -m tests.golden.regenerate_fragments

It writes only files that are missing.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

from tests.frames import batch_of, build
from tests.golden.wal3.regenerate import setsum_hex
from tests.uploader.parquet import by_arrow_rs, wal3_table
from uploader.fragments.bloom import StreamSet
from uploader.fragments.fragment_builder import encode_fragment
from walstore.records import Record

DIRECTORY: Final = Path(__file__).parent / "fragment_v1"
TIME_US: Final = 1_234_567_890_123_456

WAL3_BODIES: Final = [bytes.fromhex("2a2b2c2d"), b"", b"three" * 100, bytes(range(256)) * 4]
OUR_RECORDS: Final = [
    Record(7, b"one", b"key", "eu", {"h": b"1", "empty": b""}, TIME_US - 20),
    Record(8, b"", None, None, {}, TIME_US - 20),
    Record(9, b"three" * 100, b"", "us", {"é": b"\xff"}, TIME_US - 10),
    Record(10, bytes(range(256)), None, "eu", {}, TIME_US),
]
MANY_STREAMS: Final = [
    Record(100 + at, b"%d" % at, None, f"stream-{at}", timestamp_us=TIME_US + at)
    for at in range(200)
]
LONG: Final = [Record(1 + at, b"%d" % at * 50, timestamp_us=at) for at in range(3000)]


def wal3(start: int, bodies: Sequence[bytes]) -> tuple[bytes, list[Record]]:
    """Return a file as wal3 writes it: snappy, dictionary, data pages of version 1."""
    data = by_arrow_rs(
        wal3_table(start, TIME_US, bodies),
        compression="snappy",
        writer_version="parquet_1_0",
        dictionary_enabled=True,
    )
    return data, [Record(start + at, b, timestamp_us=TIME_US) for at, b in enumerate(bodies)]


def ours(records: list[Record]) -> tuple[bytes, list[Record]]:
    """Return a file of ours."""
    return encode_fragment([batch_of(build(records))], timestamp_us=TIME_US).data, records


def without_streams(records: list[Record]) -> tuple[bytes, list[Record]]:
    """Return a file of ours as it was before footers said which streams there are."""
    with mock.patch.object(StreamSet, "of", return_value=StreamSet.unknown()):
        return ours(records)


FILES: Final[dict[str, Callable[[], tuple[bytes, list[Record]]]]] = {
    "wal3-one-record": lambda: wal3(1, WAL3_BODIES[:1]),
    "wal3-records": lambda: wal3(100, WAL3_BODIES),
    "wal3-repeated": lambda: wal3(1, [b"again and again"] * 5000),
    "ours": lambda: ours(OUR_RECORDS),
    "ours-no-streams": lambda: without_streams(OUR_RECORDS),
    "ours-many-streams": lambda: ours(MANY_STREAMS),
    "ours-long": lambda: ours(LONG),
}


def describe(name: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return what a reader must find in a file, as JSON. The setsum is not computed by our own code."""
    items = [
        record.offset.to_bytes(8, "big") + TIME_US.to_bytes(8, "big") + record.value
        for record in records
    ]
    return {
        "start": records[0].offset,
        "limit": records[-1].offset + 1,
        "timestamp_us": TIME_US,
        "times_us": [records[0].timestamp_us, records[-1].timestamp_us],
        "setsum": setsum_hex(items),
        "streams": sorted({record.stream for record in records if record.stream is not None}),
        "records": hashlib.sha256(repr([tuple(record) for record in records]).encode()).hexdigest(),
    }


def main() -> None:
    """Write what is missing."""
    for name, make in FILES.items():
        path = DIRECTORY / f"{name}.parquet"
        if path.exists():
            continue
        data, records = make()
        path.write_bytes(data)
        text = json.dumps(describe(name, records), indent=1) + "\n"
        path.with_suffix(".json").write_text(text)
        sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
