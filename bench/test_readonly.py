"""Readers in another process: how soon they see an append, how fast they catch up; and searching by time."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

import pytest

from bench.conftest import Run
from bench.test_append import percentiles
from walstore import Settings, Wal
from walstore.log.readonly import ReadonlyWal

VALUE = bytes(100)
START_US = 1_700_000_000_000_000
WRITER = """
import asyncio, sys, time
from walstore import Wal

async def main():
    async with Wal.open(sys.argv[1]) as wal:
        while True:
            await wal.append(b"%d " % time.monotonic_ns())
            await asyncio.sleep(float(sys.argv[2]))

asyncio.run(main())
"""


@pytest.mark.parametrize("pause_ms", [1, 5, 20, 100, 500])
def test_latency_to_another_process(benchmark, run: Run, log_path: Path, pause_ms: int) -> None:
    """From the call of append in one process to the record in another's ``async for``, at that interval."""
    benchmark.group = "append to another process"
    samples: list[float] = []
    count = max(20, min(500, 10_000 // pause_ms))

    async def measure() -> None:
        async with Wal.open(log_path):
            pass
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(log_path), str(pause_ms / 1e3)
        )
        async with ReadonlyWal.open(log_path) as log:
            async for record in log.follow("latest"):
                samples.append((time.monotonic_ns() - int(record.value)) / 1e9)
                if len(samples) == count + 5:
                    break
        process.kill()
        await process.wait()

    benchmark.pedantic(lambda: run(measure()), rounds=1)
    benchmark.extra_info |= percentiles(samples[5:])


def test_cost_of_waiting(benchmark, run: Run, log_path: Path) -> None:
    """Processor time of a reader that waits five seconds on an idle log."""
    benchmark.group = "waiting"

    async def measure() -> float:
        async with Wal.open(log_path) as wal, ReadonlyWal.open(log_path) as log:
            await wal.append(VALUE)
            before = time.process_time()
            batch = await log.follow("latest").fetch(max_wait_seconds=5)
            assert not len(batch)
            return time.process_time() - before

    spent: list[float] = []
    benchmark.pedantic(lambda: spent.append(run(measure())), rounds=1)
    benchmark.extra_info["cpu_percent"] = round(100 * spent[0] / 5, 3)


def test_catch_up(benchmark, run: Run, tmp_path: Path) -> None:
    """Half a million records of 100 B from files, as batches, from outside; compare test_read.py."""
    benchmark.group = "catch-up from outside, 100 B"
    count = 500_000

    async def fill() -> None:
        async with Wal.open(tmp_path / "log") as wal:
            for _ in range(count // 1000):
                await wal.append_many([VALUE] * 1000, durability="memory")

    async def read() -> int:
        found = 0
        async with ReadonlyWal.open(tmp_path / "log") as log:
            async for batch in log.reader(follow=False).batches():
                found += len(batch.values)
        return found

    run(fill())
    assert benchmark.pedantic(lambda: run(read()), rounds=5, warmup_rounds=1) == count
    benchmark.extra_info["records_per_second"] = round(count / benchmark.stats["median"])


@pytest.fixture(scope="module", params=[10, 100, 1000])
def segmented(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of that many segments of 64 KiB."""
    path = tmp_path_factory.mktemp("segmented") / str(request.param)

    async def fill() -> None:
        async with Wal.open(path, settings=Settings(segment_bytes=64 << 10)) as wal:
            for group in range(8 * request.param):
                moment = START_US + group * 1000
                await wal.append_many([VALUE] * 80, timestamp_us=moment, durability="memory")

    asyncio.run(fill())
    return path


@pytest.mark.parametrize("way", ["open for writing", "from outside"])
def test_search_by_time(benchmark, run: Run, segmented: Path, way: str) -> None:
    """A random time to its offset, in files that the page cache contains."""
    benchmark.group = f"time to offset, {segmented.name} segments"
    chance = random.Random(1)
    samples: list[float] = []

    async def measure() -> None:
        async with Wal.open(segmented) as wal, ReadonlyWal.open(segmented) as log:
            source = wal._engine.source if way == "open for writing" else log
            last = await log.timestamp_at(log.limit - 1)
            for _ in range(300):
                moment = chance.randrange(START_US, last)
                before = time.perf_counter()
                await source.offset_at(moment)
                samples.append(time.perf_counter() - before)

    benchmark.pedantic(lambda: run(measure()), rounds=1)
    benchmark.extra_info |= percentiles(samples)
