"""What versioned collections cost beside the requests and the Arrow calls that they cannot avoid.

Run from the root of the repository; it takes about a minute::

    python -m bench.collection_costs [--rows 2000000] [--rounds 5]

Each figure is the median ratio of interleaved rounds, ours by the reference's. The store is in memory,
but for two rows on a disk; in the first row and that of the listener each request takes 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from uploader import Collection, Controller
from uploader.stores import LocalStore, MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import LatencyStore
from uploader.versioned.head import Consumed, Head, ReaderHold
from uploader.versioned.schema import CollectionSchema
from uploader.versioned.version import MergedBatch, Version

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("place", pa.string())])
REQUEST_SECONDS = 0.05
_ID = "0" * 32


def table(rows: int, chance: random.Random, *, at: int) -> pa.Table:
    """Return updates of random rows."""
    ids = [chance.randrange(rows) for _ in range(rows)]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "amount": pa.array([one % 1000 for one in ids], pa.int64()),
            "place": pa.array([f"place {one % 100}" for one in ids]),
            "_t": pa.array([at] * rows, pa.uint64()),
        }
    )


def opened(store: ObjectStore) -> Awaitable[Collection]:
    """Return a collection, created if needed."""
    return Collection.open("memory://bench", create=True, schema=SCHEMA, key=("id",), store=store)


async def seconds_of(call: Callable[[], Awaitable[object]]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def appends(rounds: int) -> float:
    """Return an append of a thousand rows by one put of the same bytes."""
    store = LatencyStore(MemoryStore(), lambda: REQUEST_SECONDS)
    small = table(1000, random.Random(1), at=0).drop_columns(["_t"])
    async with await opened(store) as collection:
        writer = collection.writer()
        await writer.append(small, lower=0, upper=1)
        data = (await store.get(f"pending/main/{0:016x}.parquet")).data
        ratios = []
        for number in range(1, 4 * rounds):
            ours = await seconds_of(lambda n=number: writer.append(small, lower=n, upper=n + 1))
            bare = await seconds_of(lambda n=number: store.put_if_absent(f"bare/{n}", data))
            ratios.append(ours / bare)
    return statistics.median(ratios)


async def compactions(rows: int, rounds: int) -> tuple[float, float, float]:
    """Return a compaction of two batches, and a snapshot of the result, each by the Arrow calls alone.

    The last figure is the snapshot by a read of the same files.
    """
    compacting, reading, against_read = [], [], []
    for number in range(rounds):
        chance = random.Random(number)
        store = MemoryStore()
        async with await opened(store) as collection:
            writer = collection.writer()
            for lower in range(2):
                await writer.append(
                    table(rows // 2, chance, at=lower), lower=lower, upper=lower + 1
                )
            pending = [(await store.get(f"pending/main/{n:016x}.parquet")).data for n in range(2)]
            bare = await seconds_of(
                lambda files=pending: asyncio.to_thread(plain_compaction, files)
            )
            async with Controller.open("memory://bench", store=store) as controller:
                compacting.append(await seconds_of(controller.compact) / bare)
            async with await collection.reader() as reader:
                ours = await seconds_of(reader.snapshot)
                merged = [
                    (await store.get(listed.key)).data async for listed in store.list("merged/")
                ]
                bare = await seconds_of(
                    lambda files=merged: asyncio.to_thread(plain_snapshot, files)
                )
                reading.append(ours / bare)
                bare = await seconds_of(lambda files=merged: asyncio.to_thread(plain_read, files))
                against_read.append(ours / bare)
    return tuple(statistics.median(found) for found in (compacting, reading, against_read))  # type: ignore[return-value]


async def many_pending(count: int, store: ObjectStore) -> tuple[float, float]:
    """Return the seconds of a new reader's first snapshot of so many pending batches, and of its second."""
    small = table(100, random.Random(1), at=0).drop_columns(["_t"])
    async with await opened(store) as collection:
        for lower in range(count):
            await collection.writer().append(small, lower=lower, upper=lower + 1)
    async with await opened(store) as collection, await collection.reader() as reader:
        return await seconds_of(reader.snapshot), await seconds_of(reader.snapshot)


def plain_compaction(files: list[bytes]) -> int:
    """Read files, add up, sort, write: what no compaction can avoid."""
    names = [*SCHEMA.names, "_t", "_h"]
    found = pa.concat_tables([pq.read_table(pa.BufferReader(data)) for data in files])
    summed = found.group_by(names).aggregate([("_d", "sum")])
    sink = pa.BufferOutputStream()
    pq.write_table(
        summed.sort_by([("id", "ascending"), ("_t", "ascending")]), sink, compression="zstd"
    )
    return sink.getvalue().size


def plain_read(files: list[bytes]) -> int:
    """Read files."""
    return sum(pq.read_table(pa.BufferReader(data)).num_rows for data in files)


def plain_snapshot(files: list[bytes]) -> int:
    """Read files and add up, without a time."""
    found = pa.concat_tables([pq.read_table(pa.BufferReader(data)) for data in files])
    return found.group_by(SCHEMA.names).aggregate([("_d", "sum")]).num_rows


async def listening(rounds: int) -> tuple[float, float]:
    """Return the median time from the begin of an append to its arrival at a listener, and poll plus put."""
    store = LatencyStore(MemoryStore(), lambda: REQUEST_SECONDS)
    poll = 0.25
    lags = []
    async with await opened(store) as collection, await collection.reader() as reader:
        writer = collection.writer()
        await writer.append(None, lower=0, upper=1)
        async with aclosing(reader.listen(after=-1, poll_seconds=poll)) as steps:
            await anext(steps)
            for number in range(1, 4 * rounds):
                waiting = asyncio.ensure_future(anext(steps))
                await asyncio.sleep(random.uniform(0.05, 0.55))
                began = time.perf_counter()
                await writer.append(None, lower=number, upper=number + 1)
                await waiting
                lags.append(time.perf_counter() - began)
    return statistics.median(lags), poll + REQUEST_SECONDS


def head_bytes(updates: int) -> int:
    """Return how long the head of a compacted collection with 50 readers is."""
    batches, at, left = [], 0, updates
    while left:
        rows = left - left // 2
        left -= rows
        batches.append(
            MergedBatch(
                lower=at,
                upper=at + rows,
                since=0,
                rows=rows,
                size_bytes=rows * 20,
                digest=(1 << 64) - 1,
                schema_id=3,
                keys=tuple(f"merged/{7:016x}/{_ID}.parquet" for _ in range(-(-rows // 20_000_000))),
            )
        )
        at += rows
    hold = ReaderHold(handle=_ID, frontier=updates, version=10**6, expires_us=10**15)
    consumed = Consumed(
        writer="writer-number-1", lower=updates, upper=updates, digest=(1 << 64) - 1
    )
    head = Head(
        collection=_ID,
        schema=CollectionSchema.new(SCHEMA, kind="diff", key=("id",)),
        commits=(_ID,) * 64,
        version=Version(n=10**6, batches=tuple(batches)),
        readers={f"reader-number-{number}": hold for number in range(50)},
        consumed=(consumed,) * 64,
    )
    return len(head.serialise())


async def main() -> None:
    """Measure and print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pending", type=int, default=3000, help="batches of 100 rows")
    options = parser.parse_args()
    append = await appends(options.rounds)
    compaction, snapshot, against_read = await compactions(options.rows, options.rounds)
    first, second = await many_pending(options.pending, MemoryStore())
    with tempfile.TemporaryDirectory(prefix="walstore-costs-") as path:
        async with aclosing(LocalStore(Path(path))) as disk:
            disk_first, disk_second = await many_pending(options.pending, disk)
    lag, goal = await listening(options.rounds)
    print(f"append / one put of the same bytes             {append:6.2f}")
    print(
        f"compaction / read + group_by + sort + write    {compaction:6.2f}   {options.rows} updates"
    )
    print(f"snapshot / read + group_by                     {snapshot:6.2f}   of the result")
    print(f"snapshot / read                                {against_read:6.2f}   of the result")
    print(
        f"first snapshot of pending batches, s           {first:6.2f}   {options.pending} batches"
    )
    print(f"second snapshot of them, s                     {second:6.2f}")
    print(f"first snapshot of them on a disk, s            {disk_first:6.2f}")
    print(f"second snapshot of them on a disk, s           {disk_second:6.2f}")
    print(
        f"lag of a listener, ms                          {lag * 1e3:6.1f}   poll + put {goal * 1e3:.0f}"
    )
    print(f"head at 10^9 updates and 50 readers, bytes     {head_bytes(10**9):6}")


if __name__ == "__main__":
    asyncio.run(main())
