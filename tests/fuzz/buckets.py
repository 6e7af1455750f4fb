"""The stored logs that are damaged: small ones, with every kind of object that a bucket can hold."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tests.cloud import FAST, GIVES_UP, URL, put_fragment, snapshot
from tests.fuzz.bases import SETTINGS, TIME_US, Base
from tests.uploader.logs import begin
from tests.uploader.parquet import by_arrow_rs, wal3_table
from tests.uploader.partitioned.writes import driver, epoch, merged, stage
from uploader import (
    CloudLog,
    CloudTier,
    CloudWriter,
    CollectorSettings,
    DirtyLog,
    GarbageCollector,
    RollUpSettings,
    WriterSettings,
)
from uploader.format import layout
from uploader.format.document import position, serialise
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import inspect_fragment
from uploader.partitioned import create_partitions
from uploader.partitioned.commit_record import CommitRecord
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from walstore import Record, Wal
from walstore.core.runtime.threads import Worker

WRITER: Final = WriterSettings(
    roll_up=RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2),
    interval_seconds=0,
    max_in_flight=1,
    patience_seconds=1.0,
)
COLLECTOR: Final = CollectorSettings(
    interval_seconds=1000.0, delete_batch=3, delete_pause_seconds=0, max_drop_fraction=1.0
)
SOURCE: Final = "memory://source"
"""What the note of a fork that was interrupted says of its source."""


class LeapingClock:
    """Sleeping moves both times on at once, and lets other tasks run."""

    def __init__(self, now_us: int = TIME_US) -> None:
        self._origin_us = now_us
        self._seconds = 0.0

    def now_us(self) -> int:
        return self._origin_us + round(self._seconds * 1_000_000)

    def monotonic(self) -> float:
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        self._seconds += max(0.0, seconds)
        await asyncio.sleep(0)


async def _written(store: ObjectStore) -> None:
    await _write(store)
    async with CloudLog.open(URL, store=store, clock=LeapingClock()) as log:
        await log.cursors.create("billing", 5)
        await log.cursors.pin("backup", 3, seconds=60.0)


async def _chain(store: ObjectStore) -> None:
    await _write(store, "chain")


async def _write(store: ObjectStore, kind: str = "swap") -> None:
    async with CloudWriter.open(
        URL,
        settings=WRITER,
        layout=kind,  # type: ignore[arg-type]
        store=store,
        retry=FAST,
    ) as log:
        await log.open_stream("closed", metadata={"a": "b"})
        await log.close_stream("closed")
        for number in range(9):
            headers = {"n": b"%d" % number} if number % 3 else None
            stream = ("eu", "us", None)[number % 3]
            await log.append(
                b"value %d " % number * (number + 1), key=b"k", stream=stream, headers=headers
            )
        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(log.append(b"together", stream=f"stream-{number}"))


async def _announced(store: ObjectStore) -> None:
    """A collection that has begun and waits."""
    await _write(store)
    clock = LeapingClock()
    async with CloudLog.open(URL, store=store, clock=clock) as log:
        await log.cursors.create("billing", 6)
    settings = dataclasses.replace(COLLECTOR, max_wait_seconds=0)
    async with GarbageCollector.open(
        URL, settings=settings, store=store, retry=FAST, clock=clock
    ) as collector:
        await collector.collect()


async def _of_wal3(store: ObjectStore) -> None:
    """As wal3 writes it: three columns, by arrow-rs, with dictionaries."""
    manifest, start = Manifest.initial("wal3"), 1
    for seq_no in range(1, 4):
        bodies = [b"body %d" % (at % 3) for at in range(start, start + 6)]
        data = by_arrow_rs(wal3_table(start, TIME_US, bodies))
        path = layout.fragment_path(seq_no)
        await store.put_if_absent(path, data)
        manifest = manifest.apply_fragments([inspect_fragment(data, path)], "wal3")
        start += 6
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())


async def _shipped(store: ObjectStore) -> None:
    """By a local log, which left a fragment that the manifest does not name."""
    worker = Worker("fuzz")
    try:
        log = await begin(store, worker, 3)
        await put_fragment(store, log.manifest.next_seq_no, log.manifest.next_offset, [b"orphan"])
    finally:
        worker.close()


async def _forking(store: ObjectStore) -> None:
    """A fork that was interrupted: a note, and some fragments."""
    note = {"source": SOURCE, "start": None, "stop": position(7)}
    await store.put_if_absent(layout.FORK_NOTE, serialise(note))
    await put_fragment(store, 1, 1, [b"1", b"2"])


async def _sink(store: ObjectStore) -> None:
    """A partitioned log, with a write that is committed and not published yet."""
    await create_partitions(store, 2, retry=FAST)
    write = epoch(0)
    staged = merged(await stage(store, write, {0: [b"a", b"b" * 200], 1: [b"c"] * 3}))
    async with driver(store) as committer:
        plans = await committer._publisher.plan(write.job, staged)
    record = CommitRecord(write.source, 1, 0, write.job, TIME_US, is_done=False, logs=plans)
    await store.put_if_absent(write.record_key, record.serialise())


async def _dirty(store: ObjectStore) -> None:
    log = await DirtyLog.open(URL, settings=WRITER, store=store, retry=FAST)
    for number in range(4):
        await log.mark(f"log-{number % 3}", 1 + number, 5 + number)
    await log.purge("log-1")
    await log.roll_up({"log-0": 4})
    await log.aclose()


Fill = Callable[[ObjectStore], Awaitable[None]]

_FILLS: Final[dict[str, Fill]] = {
    "written": _written,
    "chain": _chain,
    "announced": _announced,
    "wal3": _of_wal3,
    "shipped": _shipped,
    "forking": _forking,
    "sink": _sink,
    "dirty": _dirty,
}


def make_buckets(scratch: Path) -> list[Base]:
    """Make all of them; ``scratch`` is an empty directory."""
    found = [asyncio.run(_make(name, fill)) for name, fill in _FILLS.items()]
    found.append(asyncio.run(_make_tier(scratch / "tier")))
    return found


async def _make(name: str, fill: Fill) -> Base:
    store = MemoryStore(clock=LeapingClock())
    await fill(store)
    return await _base(name, store)


async def _make_tier(path: Path) -> Base:
    """What a local log has shipped; its directory is not kept."""
    store = MemoryStore()
    tier = CloudTier(URL, settings=GIVES_UP, store=store, retry=FAST)
    async with Wal.open(path, settings=SETTINGS, tier=tier) as wal:
        for number in range(6):
            await wal.append(b"shipped %d" % number, stream="eu", durability="cloud")
    return await _base("tier", store)


async def _base(name: str, store: ObjectStore) -> Base:
    files = await snapshot(store)
    records: dict[int, Record] = {}
    if layout.MANIFEST in files or name == "chain":
        async with CloudLog.open(URL, store=store, clock=LeapingClock()) as log:
            records = {record.offset: record async for record in log.reader()}
            if name == "shipped":  # who opens it publishes what was put
                records[log.tail] = Record(log.tail, b"orphan")
            return Base(name, files, records, {}, log.head, log.tail)
    return Base(name, files, records, {}, 1, 1)


async def stored(files: dict[str, bytes]) -> MemoryStore:
    """Return a store with these objects."""
    store = MemoryStore(clock=LeapingClock())
    for key, data in files.items():
        await store.put_if_absent(key, data)
    return store
