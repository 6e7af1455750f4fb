"""Reading a log in object storage: what read-ahead, footers and the disk cache save.

Run from the root of the repository::

    python -m bench.cloud_read                # every request takes 30 ms
    python -m bench.cloud_read --seconds 0.1

Each line is one way to read the same log, with its time as a ratio to the simplest way: all fragments one
after another, without a cache.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from tests.uploader.cloud_streams import put_log
from uploader import CloudLog
from uploader.read.fragment_cache import FragmentCache
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.latency import LatencyStore, fixed

Way = Callable[[CloudLog], Awaitable[int]]

RARE = 50
"""One fragment in this many contains the requested stream."""


def everything(prefetch: int) -> Way:
    """Read all values."""

    async def read(log: CloudLog) -> int:
        count = 0
        async for batch in log.reader(prefetch_bytes=prefetch).batches():
            count += len(batch.values)
        return count

    return read


async def sift(log: CloudLog) -> int:
    """Read all fragments and select one stream."""
    count = 0
    async for batch in log.reader(prefetch_bytes=0).batches():
        if batch.may_hold_stream("rare"):
            count += len(batch.select_stream("rare"))
    return count


def one_stream(prefetch: int) -> Way:
    """Read one stream."""

    async def read(log: CloudLog) -> int:
        return len([record async for record in log.reader(stream="rare", prefetch_bytes=prefetch)])

    return read


async def by_time(log: CloudLog) -> int:
    """Read one record, found by its time."""
    middle = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=log.tail // 2)
    return len(await log.reader(middle).fetch(max_records=1))


class Bench:
    """One log, read in several ways."""

    def __init__(self, title: str, store: MemoryStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self._first: float | None = None
        print(f"\n{title}")
        print(f"{'':44} {'seconds':>8} {'ratio':>6} {'requests':>9} {'MB':>8}  records")

    async def run(self, name: str, way: Way, **options: object) -> None:
        """Time one way to read a newly opened log, and print its cost."""
        metered = FaultyStore(self._store)
        store = LatencyStore(metered, fixed(self._seconds))
        async with CloudLog.open("memory://", store=store, cache_bytes=0, **options) as log:
            before = metered.requests, size_of(metered)
            began = time.perf_counter()
            found = await way(log)
            took = time.perf_counter() - began
            requests, size = metered.requests - before[0], size_of(metered) - before[1]
        self._first = self._first or took
        ratio = self._first / took
        print(f"{name:44} {took:8.3f} {ratio:5.1f}x {requests:9} {size / 1e6:8.2f}  {found}")


def size_of(store: FaultyStore) -> int:
    """Return the bytes read so far."""
    return sum(count.bytes for count in store.counts.values())


def noise(size: int) -> Callable[[int], bytes]:
    """Return values that are half compressible."""
    return lambda _: os.urandom(size // 2) * 2


async def main(seconds: float) -> None:
    """Make three logs and read each in its ways."""
    store = MemoryStore()
    await put_log(store, 16, lambda _: None, value=noise(1024), records=4096)
    bench = Bench("16 fragments of 4 MiB, records of 1 KiB", store, seconds)
    await bench.run("one after the other", everything(0))
    await bench.run("32 MiB ahead", everything(32 << 20))
    with tempfile.TemporaryDirectory() as directory:
        for name in ("32 MiB ahead, filling a disk cache", "32 MiB ahead, from the disk cache"):
            await bench.run(name, everything(32 << 20), disk_cache=FragmentCache(directory))

    store = MemoryStore()
    await put_log(store, 500, lambda _: None, value=noise(1024), records=20)
    bench = Bench("500 fragments of 20 KiB", store, seconds)
    await bench.run("one after the other", everything(0))
    await bench.run("32 MiB ahead", everything(32 << 20))

    store = MemoryStore()
    await put_log(
        store,
        1000,
        lambda at: "rare" if at // 100 % RARE == 7 else f"s{at % 5}",
        value=noise(1024),
        records=100,
    )
    bench = Bench(f"1000 fragments of 100 KiB; one in {RARE} has the stream", store, seconds)
    await bench.run("read all, pick the stream", sift)
    await bench.run("by footers", one_stream(0))
    await bench.run("by footers, 32 MiB ahead", one_stream(32 << 20))
    await bench.run("one record, by its time", by_time)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.03, help="latency of every request")
    asyncio.run(main(parser.parse_args().seconds))
