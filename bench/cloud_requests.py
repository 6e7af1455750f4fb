"""How many requests logs in object storage make: to open, to append, to ship, to follow, to collect.

Run from the root of the repository; it takes some seconds::

    python -m bench.cloud_requests

The store is in memory and followers use a manual clock, so all numbers except those of shipping are the same
in each run. In a number "in a row", concurrent requests count as one. A delete is one request, however many
objects it names.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from uploader import (
    CloudLog,
    CloudTier,
    CloudWriter,
    CollectorSettings,
    GarbageCollector,
)
from uploader.stores import MemoryStore, MeteredStore
from uploader.stores.port import ListedObject
from uploader.stores.probe import Proof
from uploader.stores.wrapper import Request, StoreWrapper
from walstore import Wal
from walstore.testing import ManualClock

T = TypeVar("T")

URL = "memory://ignored"
LAYOUTS = ("swap", "chain")
FRAGMENTS = 200
"""Of the log that is opened, followed and collected; more than one page of a listing."""
MEBIBYTES = 32
"""What the tier ships."""
_VALUE = 64 << 10
_TURNS = 20
"""Turns of the event loop that a request takes; concurrent requests begin within fewer."""
_LOGS: dict[tuple[str, int], Bucket] = {}
"""Logs made so far, by layout and number of fragments."""


class Bucket(MemoryStore):
    """An empty bucket as seen by one process, which leaves marks there for others."""

    url = "memory://bench"

    def __init__(self) -> None:
        """Make a bucket that is new to this process."""
        super().__init__()
        self.known = Proof()

    async def proof(self) -> Proof:
        """Return what this process knows."""
        return self.known


class Rows(StoreWrapper):
    """Counts requests that depend on earlier answers, and deletes."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.in_a_row = 0
        self.deletes = 0

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """List through."""
        await self._pass()
        async for listed in self.inner.list(prefix, after=after):
            yield listed

    async def _call(self, request: Request[T]) -> T:
        await self._pass()
        self.deletes += request.kind == "delete"
        return await request()

    async def _pass(self) -> None:
        at = self.in_a_row + 1
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.in_a_row = max(self.in_a_row, at)


@dataclass(frozen=True, slots=True)
class Cost:
    """The requests of one operation."""

    requests: float
    in_a_row: int | None = None

    def __str__(self) -> str:
        text = f"{self.requests:.2g}"
        return (
            text if self.in_a_row in {None, self.requests} else f"{text} ({self.in_a_row} in a row)"
        )


class Counter:
    """A store whose requests are counted for a time."""

    def __init__(self, bucket: Bucket) -> None:
        """Count the requests to a bucket from now on."""
        self._rows = Rows(bucket)
        self.store = MeteredStore(self._rows)
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._requests, self._row = self._count(), self._rows.in_a_row

    def cost(self) -> Cost:
        """Return the requests since."""
        return Cost(self._count() - self._requests, self._rows.in_a_row - self._row)

    def _count(self) -> int:
        usage = self.store.usage()
        return usage.requests - usage.of("delete").requests + self._rows.deletes


async def a_log(layout: str, fragments: int) -> Bucket:
    """Return a bucket with a log of that many fragments, one record each, as seen by another process."""
    wanted = layout, fragments
    if wanted not in _LOGS:
        made = _LOGS[wanted] = Bucket()
        async with CloudWriter.open(URL, store=made, layout=layout) as log:
            for number in range(fragments):
                await log.append(b"%d" % number)
    bucket = Bucket()
    async for listed in _LOGS[wanted].list(""):
        await bucket.put_if_absent(listed.key, (await _LOGS[wanted].get(listed.key)).data)
    return bucket


async def creating(layout: str) -> Cost:
    """The first log that this process writes to the bucket."""
    counter = Counter(Bucket())
    async with CloudWriter.open(URL, store=counter.store, layout=layout):
        return counter.cost()


async def creating_another(layout: str) -> Cost:
    """The process knows the bucket."""
    bucket = Bucket()
    bucket.known.note(with_swaps=True)
    counter = Counter(bucket)
    async with CloudWriter.open(URL, store=counter.store, layout=layout):
        return counter.cost()


async def opening(layout: str, fragments: int = FRAGMENTS) -> Cost:
    """The first log that this process opens in the bucket; another process left the mark."""
    counter = Counter(await a_log(layout, fragments))
    async with CloudWriter.open(URL, store=counter.store, layout=layout):
        return counter.cost()


async def reopening(layout: str, fragments: int = FRAGMENTS) -> Cost:
    """The process knows the bucket."""
    bucket = await a_log(layout, fragments)
    async with CloudWriter.open(URL, store=bucket, layout=layout):
        pass
    counter = Counter(bucket)
    async with CloudWriter.open(URL, store=counter.store, layout=layout):
        return counter.cost()


@asynccontextmanager
async def local_log(store: MeteredStore, layout: str, directory: str) -> AsyncIterator[Wal]:
    """A local log with a tier."""
    tier = CloudTier(URL, store=store, layout=layout)
    async with Wal.open(Path(directory) / "log", tier=tier) as log:
        yield log


async def reopening_a_tier(layout: str) -> Cost:
    """A local log that is completely shipped; the process knows the bucket."""
    bucket = Bucket()
    with tempfile.TemporaryDirectory() as directory:
        async with local_log(MeteredStore(bucket), layout, directory) as log:
            await log.append(b"1", durability="cloud")
        counter = Counter(bucket)
        async with local_log(counter.store, layout, directory):
            pass
        return counter.cost()


async def appending(layout: str) -> Cost:
    """One record, awaited."""
    counter = Counter(Bucket())
    async with CloudWriter.open(URL, store=counter.store, layout=layout) as log:
        await log.append(b"1")
        await log.append(b"2")
        counter.begin()
        await log.append(b"3")
        return counter.cost()


async def shipping(layout: str, mebibytes: int = MEBIBYTES) -> Cost:
    """A local log that was filled before it had a tier, for each MiB."""
    per_batch = (1 << 20) // _VALUE
    with tempfile.TemporaryDirectory() as directory:
        async with Wal.open(Path(directory) / "log") as log:
            for _ in range(mebibytes):
                values = [os.urandom(_VALUE) for _ in range(per_batch)]
                await log.append_many(values, durability="memory")
        bucket = Bucket()
        bucket.known.note(with_swaps=True)
        counter = Counter(bucket)
        async with local_log(counter.store, layout, directory) as log:
            await log.wait_durable(log.tail - 1, "cloud")
            requests = counter.cost().requests
        return Cost(requests / mebibytes)


async def following(layout: str, fragments: int = FRAGMENTS) -> Cost:
    """A reader of an idle log, for a minute."""
    clock, counter = ManualClock(), Counter(await a_log(layout, fragments))
    async with CloudLog.open(URL, store=counter.store, clock=clock) as log:
        following = asyncio.ensure_future(log.wait_limit(log.tail + 1))
        for second in range(70):
            if second == 10:  # a follower asks more often at first
                counter.begin()
            await clock.wait_for_sleepers()
            clock.advance(1)
        await clock.wait_for_sleepers()
        requests = counter.cost().requests
        following.cancel()
        await asyncio.wait([following])
    return Cost(requests)


async def collecting(layout: str, fragments: int = FRAGMENTS) -> Cost:
    """Half of a log, without the waiting period for readers."""
    bucket = await a_log(layout, fragments)
    settings = CollectorSettings(interval_seconds=0, delete_pause_seconds=0)
    async with CloudWriter.open(URL, store=bucket) as log:
        await log.cursors.commit("reader", fragments // 2)
    counter = Counter(bucket)
    async with GarbageCollector.open(URL, store=counter.store, settings=settings) as collector:
        await collector.collect()
        return counter.cost()


CASES: dict[str, Callable[[str], Awaitable[Cost]]] = {
    "create, first log in a bucket": creating,
    "create, further logs": creating_another,
    "open, another process was here": opening,
    "open again": reopening,
    "open a local log with a tier again": reopening_a_tier,
    "append": appending,
    "ship a MiB": shipping,
    "follow an idle log for a minute": following,
    f"collect half of {FRAGMENTS} fragments": collecting,
}


async def main() -> None:
    """Print the table."""
    print("| requests | `swap` | `chain` |\n|---|---|---|")
    for name, case in CASES.items():
        costs = [await case(layout) for layout in LAYOUTS]
        print(f"| {name} | {' | '.join(map(str, costs))} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
