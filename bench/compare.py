"""Compares two checkouts of walstore in one interleaved run: ``python -m bench.compare PATH [--rounds 9]``.

Machines drift, so figures of two runs cannot be compared. Here a child process measures each figure for this
checkout and for the other one in turn, round by round, and the ratio of the two in a round is printed: this
one divided by the other, as the median of all rounds and their quartiles. All figures are times, so less than
1 is faster. Name this checkout itself to see the machine's noise around 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parent.parent
KIB = 1024


async def lone_append(directory: Path) -> float:
    """Median time of an append of 1 KiB that waits for its sync, in microseconds."""
    from walstore import Wal

    times = []
    async with Wal.open(directory / "log") as wal:
        for _ in range(400):
            began = time.perf_counter()
            await wal.append(bytes(KIB))
            times.append(time.perf_counter() - began)
    return median(times) * 1e6


async def group_append(directory: Path) -> float:
    """Time of a record in durable groups of 256 x 1 KiB, in microseconds."""
    from walstore import Wal

    group = [bytes(KIB)] * 256
    async with Wal.open(directory / "log") as wal:
        began = time.perf_counter()
        for _ in range(60):
            await wal.append_many(group)
        return (time.perf_counter() - began) / (60 * 256) * 1e6


async def append_nowait(directory: Path) -> float:
    """Processor time of ``append_nowait`` of 100 bytes, in nanoseconds."""
    from walstore import Wal

    times = []
    async with Wal.open(directory / "log") as wal:
        append, value = wal.append_nowait, bytes(100)
        for _ in range(40):
            began = time.thread_time()
            for _ in range(5000):
                append(value)
            times.append((time.thread_time() - began) / 5000)
            await wal.flush()
    return min(times) * 1e9


async def producers(directory: Path) -> float:
    """Time of a record of 1 KiB with 256 producers that each await their sync, in microseconds."""
    from walstore import Wal

    async with Wal.open(directory / "log") as wal:

        async def produce() -> None:
            for _ in range(30):
                await wal.append(bytes(KIB))

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(256):
                group.create_task(produce())
        return (time.perf_counter() - began) / (256 * 30) * 1e6


async def tail_latency(directory: Path) -> float:
    """Median time from an append to its record in a following reader, in microseconds."""
    from walstore import Wal

    times = []
    async with Wal.open(directory / "log") as wal:
        reader = wal.follow("latest")
        for _ in range(300):
            reading = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0)
            began = time.perf_counter()
            await wal.append(b"x" * 100)
            await reading
            times.append(time.perf_counter() - began)
    return median(times) * 1e6


async def _catch_up(directory: Path, *, by_record: bool) -> float:
    from walstore import Settings, Wal

    count = 60 * 1000
    async with Wal.open(directory / "log", settings=Settings(cache_bytes=0)) as wal:
        for _ in range(60):
            await wal.append_many([b"x" * 100] * 1000, durability="memory")
        await wal.flush()
        found, began = 0, time.perf_counter()
        if by_record:
            async for _ in wal.reader(follow=False):
                found += 1
        else:
            async for batch in wal.reader(follow=False).batches():
                found += len(batch.values)
        assert found == count
        return (time.perf_counter() - began) / count * 1e9


async def catch_up_by_batches(directory: Path) -> float:
    """Time of a record of 100 bytes read from files in batches, in nanoseconds."""
    return await _catch_up(directory, by_record=False)


async def catch_up_by_records(directory: Path) -> float:
    """Time of a record of 100 bytes read from files one by one, in nanoseconds."""
    return await _catch_up(directory, by_record=True)


async def _reopen(directory: Path) -> tuple[float, float]:
    from walstore import Wal

    async with Wal.open(directory / "log") as wal:
        await wal.append_many([bytes(100)] * 10_000)
    opening, closing = [], []
    for _ in range(30):
        times = [time.perf_counter()]
        wal = await Wal.open(directory / "log")
        times.append(time.perf_counter())
        await wal.append(b"x")
        times.append(time.perf_counter())
        await wal.aclose()
        times.append(time.perf_counter())
        opening.append(times[1] - times[0])
        closing.append(times[3] - times[2])
    return median(opening) * 1e6, median(closing) * 1e6


async def opening(directory: Path) -> float:
    """Median time to open a closed log of 10 000 records, in microseconds."""
    return (await _reopen(directory))[0]


async def closing(directory: Path) -> float:
    """Median time to close a log after one append, in microseconds."""
    return (await _reopen(directory))[1]


FIGURES: tuple[Callable[[Path], Awaitable[float]], ...] = (
    lone_append,
    group_append,
    producers,
    append_nowait,
    tail_latency,
    catch_up_by_batches,
    catch_up_by_records,
    opening,
    closing,
)


def measure() -> dict[str, float]:
    """Measure all figures once, with the walstore that is imported."""
    found = {}
    for figure in FIGURES:
        with tempfile.TemporaryDirectory() as scratch:
            found[figure.__name__] = asyncio.run(figure(Path(scratch)))  # type: ignore[arg-type]
    return found


def measure_in(checkout: Path) -> dict[str, float]:
    """Measure the walstore of a checkout in a process of its own, with the code of this file."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the medians of both checkouts and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, nargs="?", help="the other checkout")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    if options.other is None:
        parser.error("name the other checkout")
    here: list[dict[str, float]] = []
    there: list[dict[str, float]] = []
    turns = [(ROOT, here), (options.other.resolve(), there)]
    for _ in range(options.rounds):
        for checkout, found in turns:
            found.append(measure_in(checkout))
        turns.reverse()  # what comes first in a round meets another state of the disk
    print(f"{'figure':24}{'here':>12}{'there':>12}{'ratio':>8}   quartiles")
    for name in here[0]:
        mine = median(one[name] for one in here)
        other = median(one[name] for one in there)
        ratios = [one[name] / its[name] for one, its in zip(here, there, strict=True)]
        low, ratio, high = quantiles(ratios, n=4, method="inclusive")
        print(f"{name:24}{mine:12.1f}{other:12.1f}{ratio:8.2f}   {low:.2f}-{high:.2f}")


if __name__ == "__main__":
    main()
