"""Latency of appends, and pauses of the event loop, under a load that stays the same for minutes.

    python -m bench.steady_load                             # ten minutes of 300 appends/s of 1 KiB
    python -m bench.steady_load --seconds 60 --rate 1000 --directory DIR

The log has a tier in a directory, two consumers, a group with one worker, and a retention that removes
segments. Appends are due at even times, whether or not earlier ones have returned, each in a task of its own.

A timer of the event loop is due every few milliseconds; how late it runs is a pause. Others on the machine
cause pauses, too, so each has beside it the processor time of the whole process in it, which no pause of
others has. And the same timer in another process says what the machine did meanwhile. That process also
appends to a file on the same disk and syncs it, as often as told: what the disk alone takes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from walstore import Settings, Wal
from walstore.cloud import CloudTier

TICK_SECONDS = 0.002
SHOWN = 5
"""Pauses that are shown."""
SEGMENT_BYTES = 8 << 20
RETENTION_BYTES = 32 << 20


class Pauses:
    """How late the timers of an event loop run."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float, float]] = []
        """Lateness, processor time of the process meanwhile, and when."""
        self.began = time.perf_counter()

    async def watch(self) -> None:
        """Note lateness until cancelled."""
        while True:
            began, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK_SECONDS)
            late = time.perf_counter() - began - TICK_SECONDS
            self.seen.append((late, time.process_time() - used, began - self.began))

    def describe(self) -> str:
        """Return the longest ones, and the longest that were busy all the time."""
        longest = sorted(self.seen, reverse=True)[:SHOWN]
        busiest = sorted(((min(one[:2]), one[2]) for one in self.seen), reverse=True)[:SHOWN]
        return (
            f"longest {_ms(late for late, _, _ in longest)}, with processor time "
            f"{_ms(used for _, used, _ in longest)}; longest that the process was busy in: "
            f"{_ms(used for used, _ in busiest)}, at {_seconds(when for _, when in busiest)}"
        )


class Latencies:
    """How long something took, and when it ended."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def note(self, began: float, seconds: float) -> None:
        """Note that it took ``seconds`` and has just ended; all is counted from ``began``."""
        self.seen.append((seconds, time.perf_counter() - began))

    def describe(self) -> str:
        """Return percentiles, and the longest ones with their moments."""
        ordered = sorted(self.seen, reverse=True)
        p50, p99, p999 = (ordered[int(share * len(ordered))][0] for share in (0.5, 0.01, 0.001))
        longest = ordered[:SHOWN]
        return (
            f"p50, p99, p99.9: {_ms([p50, p99, p999])}; p99.9 / p50: {p999 / p50:.1f}; longest "
            f"{_ms(taken for taken, _ in longest)}, at {_seconds(when for _, when in longest)}"
        )


class Collections:
    """How long the garbage collector took, by generation."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {0: [], 1: [], 2: []}
        self._began = 0.0

    def note(self, phase: str, info: dict[str, int]) -> None:
        """Be called by the collector."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds[info["generation"]].append(time.perf_counter() - self._began)

    def describe(self) -> str:
        """Return number and longest by generation."""
        return ", ".join(
            f"{of}: {len(all_)}, at most {_ms([max(all_, default=0)])}"
            for of, all_ in self.seconds.items()
        )


def reference(stop: Connection, path: Path, rate: float, value_bytes: int) -> None:
    """Watch the timers of another loop, and sync a file on a thread, until something is received."""

    async def run() -> None:
        pauses = Pauses()
        watching = asyncio.create_task(pauses.watch())
        waiting = asyncio.ensure_future(asyncio.to_thread(stop.recv))
        began, taken = time.perf_counter(), Latencies()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        while not waiting.done():
            taken.note(began, await asyncio.to_thread(_synced, file, bytes(value_bytes)))
            await asyncio.sleep(1 / rate)
        watching.cancel()
        os.close(file)
        stop.send((pauses.describe(), taken.describe()))

    asyncio.run(run())


def _synced(file: int, value: bytes) -> float:
    """Return how long it took to write and sync a value."""
    began = time.perf_counter()
    os.write(file, value)
    os.fdatasync(file)
    return time.perf_counter() - began


async def consume(wal: Wal, name: str) -> None:
    """Read all records, committing each now and then."""
    async with wal.consumer(name) as consumer:
        async for _ in consumer:
            pass


async def work(wal: Wal) -> None:
    """Take jobs and acknowledge them."""
    async with wal.group("workers") as group:
        while True:
            await group.ack(await group.fetch(max_wait_seconds=1))


async def drive(wal: Wal, rate: float, seconds: float, value_bytes: int) -> Latencies:
    """Append at the rate; return how long each append took."""
    latencies = Latencies()
    values = os.urandom(value_bytes + 4096)

    async def one(number: int) -> None:
        at = number * 977 % 4096
        began = time.perf_counter()
        await wal.append(values[at : at + value_bytes])
        latencies.note(first, time.perf_counter() - began)

    began = first = time.perf_counter()
    async with asyncio.TaskGroup() as appends:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(began + number / rate - time.perf_counter())
            appends.create_task(one(number))
    return latencies


async def run(args: argparse.Namespace, directory: Path) -> None:
    """Do it once and print what was seen."""
    mine, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(
        target=reference,
        args=(theirs, directory / "file", args.sync_rate, args.value_bytes),
        daemon=True,
    )
    other.start()
    pauses, collections = Pauses(), Collections()
    gc.collect()
    gc.freeze()
    gc.callbacks.append(collections.note)
    async with Wal.open(
        directory / "log",
        tier=CloudTier((directory / "bucket").as_uri()),
        settings=Settings(segment_bytes=SEGMENT_BYTES, retention_bytes=RETENTION_BYTES),
    ) as wal:
        beside = [
            asyncio.create_task(one)
            for one in (consume(wal, "a"), consume(wal, "b"), work(wal), pauses.watch())
        ]
        used = time.process_time()
        latencies = await drive(wal, args.rate, args.seconds, args.value_bytes)
        used = time.process_time() - used
        for task in beside:
            task.cancel()
        for task in beside:
            with suppress(asyncio.CancelledError):
                await task
        kept = wal.statistics()
    gc.callbacks.remove(collections.note)
    mine.send(None)
    machine, disk = await asyncio.to_thread(mine.recv)
    other.join()

    print(
        f"{len(latencies.seen)} appends of {args.value_bytes} bytes at {args.rate:g}/s; the first one that "
        f"is on disk: {kept.local_head}; processor {used / args.seconds:.2f}"
    )
    print("appends:", latencies.describe())
    print("a write and sync of another process:", disk)
    print("pauses:", pauses.describe())
    print("of that process:", machine)
    print("collections by generation:", collections.describe())


def _ms(seconds: Iterable[float]) -> str:
    return ", ".join(f"{1e3 * one:.2f}" for one in seconds) + " ms"


def _seconds(moments: Iterable[float]) -> str:
    return ", ".join(f"{one:.1f}" for one in moments) + " s"


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bench.steady_load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=300)
    parser.add_argument("--sync-rate", type=float, default=20, help="syncs of the other process")
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as name:
        asyncio.run(run(args, Path(name)))


if __name__ == "__main__":
    main()
