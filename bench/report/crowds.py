"""Suites of one log with many users: producers by their number, one that does not wait, a thousand tails."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from bench.report.figures import Report, percentile
from bench.report.systems import SYNCED
from bench.served import VALUE, appends_a_second
from walstore import Wal, WouldBlock

NUMBERS: Final = (1, 4, 16, 64, 256, 1024)
SMALL: Final = bytes(256)
BURST: Final = 2000
"""Records between two looks at the watermark."""
TAILS: Final = 1000
TAILED_A_SECOND: Final = 20


def by_producers(report: Report, directory: Path, seconds: float) -> None:
    """Durable appends a second, by how many tasks append, each awaiting its record."""

    async def measure(number: int) -> float:
        async with Wal.open(directory / f"by{number}") as wal:
            return await appends_a_second(wal.append, number, seconds / 2)

    for number in NUMBERS:
        rate = asyncio.run(measure(number))
        points = report.curves.setdefault("producers", {}).setdefault("walstore", [])
        points[:] = [*(point for point in points if point[0] != number), (number, rate)]


def watermark(report: Report, directory: Path, seconds: float) -> None:
    """One producer that submits without waiting, and now and then awaits the durable limit."""

    async def measure() -> float:
        async with Wal.open(directory / "watermark") as wal:
            begun, count = time.perf_counter(), 0
            while time.perf_counter() - begun < seconds:
                try:
                    for _ in range(BURST):
                        wal.append_nowait(SMALL)
                except WouldBlock:
                    await wal.wait_durable(wal.tail - BURST)
                await asyncio.sleep(0)
            await wal.flush()
            count = wal.durable_limit - 1
            return count / (time.perf_counter() - begun)

    group = "`append_nowait` of 256 B, and a watermark"
    report.add(group, "walstore", "records/s", "/s", asyncio.run(measure()), SYNCED)


def tails(report: Report, directory: Path, seconds: float) -> None:
    """A thousand readers that follow one log: from the append until each has the record."""
    group = f"{TAILS} tails of one log, {TAILED_A_SECOND} appends/s"
    times = asyncio.run(_tails(directory / "tails", seconds))
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        report.add(group, "walstore", name, "us", percentile(times, share) * 1e6, SYNCED)


async def _tails(path: Path, seconds: float) -> list[float]:
    begun = [0.0]
    times: list[float] = []
    async with Wal.open(path) as wal:

        async def follow() -> None:
            async with wal.follow(wal.tail) as reader:
                async for _ in reader:
                    times.append(time.perf_counter() - begun[0])

        await wal.append(VALUE)
        following = [asyncio.create_task(follow()) for _ in range(TAILS)]
        for _ in range(max(2, int(seconds * TAILED_A_SECOND))):
            await asyncio.sleep(1 / TAILED_A_SECOND)
            begun[0] = time.perf_counter()
            await wal.append(VALUE)
        await asyncio.sleep(1 / TAILED_A_SECOND)
        for task in following:
            task.cancel()
        await asyncio.wait(following)
    return sorted(times)
