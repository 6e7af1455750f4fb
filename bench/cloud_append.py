"""Latency of an append to object storage: wal3's own workload, with every way to append.

    python -m bench.cloud_append                    # a minute each
    python -m bench.cloud_append --seconds 10 --rounds 2 --record-bytes 100

Appends arrive at a fixed rate whether or not earlier ones have returned, each in a task of its own that waits
for it. The store is in memory, and every request to it takes 100 ms. The ways alternate in one run. asyncio's
timers are late by up to a millisecond. To keep that out of the results, appends and the store's answers are
half a millisecond early or late, not always late; a latency is measured from when the append was due, or from
when it was made if that was earlier. The column "request" is the measured duration of a request.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TypeVar

from uploader.chain import ChainSettings
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.stores.wrapper import Request, StoreWrapper
from uploader.testing import FaultyStore
from uploader.testing.latency import LatencyStore, fixed
from uploader.write.cloud_tier import CloudTier
from uploader.write.cloud_writer import CloudWriter
from uploader.write.publish_pipeline import TIMER_SECONDS
from walstore import Wal, WalError
from walstore.core.runtime.clock import SystemClock

T = TypeVar("T")
Append = Callable[[bytes], Awaitable[int]]
TICK_SECONDS = 0.001
CHAIN = ChainSettings(inline_bytes=1 << 20)
"""Of the layout chain: an append takes one round trip."""


class EvenClock(SystemClock):
    """Sleeps for the right time on average."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds - TIMER_SECONDS)


class TimedStore(StoreWrapper):
    """Records how long requests took."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.seconds: list[float] = []

    async def _call(self, request: Request[T]) -> T:
        began = time.perf_counter()
        answer = await request()
        self.seconds.append(time.perf_counter() - began)
        return answer


@dataclass
class Result:
    """One run."""

    latencies: list[float]
    requests: int
    stored_bytes: int
    fragments: int
    cpu_seconds: float
    seconds: float
    request_seconds: float


def new_store(latency_seconds: float) -> tuple[FaultyStore, TimedStore]:
    counted = FaultyStore(MemoryStore())
    return counted, TimedStore(LatencyStore(counted, fixed(latency_seconds), clock=EvenClock()))


@asynccontextmanager
async def writer(store: ObjectStore, layout: str, _: Path) -> AsyncIterator[Append]:
    async with CloudWriter.open("memory://ignored", store=store, layout=layout, chain=CHAIN) as log:
        yield log.append


@asynccontextmanager
async def wal(store: ObjectStore, layout: str, directory: Path) -> AsyncIterator[Append]:
    tier = CloudTier("memory://ignored", store=store, layout=layout, chain=CHAIN)
    async with Wal.open(directory / "log", tier=tier) as log:

        async def append(value: bytes) -> int:
            return await log.append(value, durability="cloud")

        yield append


WAYS = {"CloudWriter": writer, "Wal, durability cloud": wal}


async def drive(append: Append, args: argparse.Namespace) -> list[float]:
    """Append at the rate for the time, and return how long each append took."""
    latencies: list[float] = []
    clock = time.perf_counter
    random, size = os.urandom(args.record_bytes + (1 << 20)), args.record_bytes
    value = random[:size]
    gap = 1 / args.rate

    errors: list[BaseException] = []
    all_done = asyncio.get_running_loop().create_future()
    total = int(args.rate * args.seconds)

    async def one(due: float, number: int) -> None:
        since = min(due, clock())
        at = number * 7919 & 0xFFFFF
        try:
            await append(random[at : at + size])
        except WalError as error:
            errors.append(error)
        latencies.append(clock() - since)
        if len(latencies) == total:
            all_done.set_result(None)

    await append(value)  # opens the way
    # Plain tasks, which the log keeps alive until they are answered: a group would cost as much for each
    # as the log itself.
    start = asyncio.get_running_loop().create_task
    count, began = 0, clock()
    while count < total:
        now = clock() + TIMER_SECONDS
        while count < total and began + count * gap <= now:
            start(one(began + count * gap, count))
            count += 1
        await asyncio.sleep(TICK_SECONDS)
    await all_done
    if errors:
        raise errors[0]
    return latencies


async def run(way: str, layout: str, args: argparse.Namespace) -> Result:
    counted, store = new_store(args.latency)
    gc.collect()
    gc.freeze()  # as a service does once it is up: what is imported is not looked through again
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        async with WAYS[way](store, layout, Path(directory)) as append:
            before = counted.requests, time.process_time(), time.perf_counter()
            latencies = await drive(append, args)
            return Result(
                sorted(latencies),
                counted.requests - before[0],
                sum(count.bytes for count in counted.counts.values()),
                counted.count("put_if_absent").requests,
                time.process_time() - before[1],
                time.perf_counter() - before[2],
                mean(store.seconds),
            )


def report(name: str, result: Result) -> None:
    found = result.latencies

    def at(share: float) -> float:
        return 1000 * found[min(int(share * len(found)), len(found) - 1)]

    print(
        f"{name:36} {at(0.5):6.0f} {at(0.9):6.0f} {at(0.99):6.0f} {at(0.999):6.0f} {1000 * found[-1]:6.0f}"
        f" {len(found):8} {result.requests / result.seconds:7.1f} {result.fragments / result.seconds:7.1f}"
        f" {100 * result.cpu_seconds / result.seconds:5.0f} % {1000 * result.request_seconds:7.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=10_000)
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--layouts", nargs="*", default=["swap", "chain"])
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--directory", type=Path, help="where local logs lie")
    args = parser.parse_args()
    print(
        f"{args.rate:g} appends/s of {args.record_bytes} B for {args.seconds:g} s, "
        f"{1000 * args.latency:g} ms per request; latencies in ms"
    )
    print(
        f"{'':36} {'p50':>6} {'p90':>6} {'p99':>6} {'p99.9':>6} {'max':>6}"
        f" {'appends':>8} {'req/s':>7} {'puts/s':>7} {'CPU':>7} {'request':>7}"
    )
    for _ in range(args.rounds):
        for layout in args.layouts:
            for way in args.ways:
                report(f"{way}, {layout}", asyncio.run(run(way, layout, args)))


if __name__ == "__main__":
    main()
