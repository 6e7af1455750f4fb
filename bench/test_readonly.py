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
from walstore.readonly import ReadonlyWal
from walstore.segment_file import find_time

VALUE = bytes(100)
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
    """From the call of append in one process to the record in another's ``async for``, so long apart."""
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
            async for record in log.reader("latest"):
                samples.append((time.monotonic_ns() - int(record.value)) / 1e9)
                if len(samples) == count + 5:
                    break
        process.kill()
        await process.wait()

    benchmark.pedantic(lambda: run(measure()), rounds=1)
    benchmark.extra_info |= percentiles(samples[5:])


def test_cost_of_waiting(benchmark, run: Run, log_path: Path) -> None:
    """Processor time of a reader that waits five seconds on a log at which nothing happens."""
    benchmark.group = "waiting"

    async def measure() -> float:
        async with Wal.open(log_path) as wal, ReadonlyWal.open(log_path) as log:
            await wal.append(VALUE)
            before = time.process_time()
            batch = await log.reader("latest").fetch(max_wait=5)
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
    """A log of so many segments of 64 KiB."""
    path = tmp_path_factory.mktemp("segmented") / str(request.param)

    async def fill() -> None:
        async with Wal.open(path, settings=Settings(segment_bytes=64 << 10)) as wal:
            for _ in range(request.param):
                for _ in range(8):
                    await wal.append_many([VALUE] * 80, durability="memory")

    asyncio.run(fill())
    return path


@pytest.mark.parametrize("way", ["open for writing", "from outside", "one by one"])
def test_search_by_time(benchmark, run: Run, segmented: Path, way: str) -> None:
    """A random time to its offset, in files the system has in memory. One by one: as it was before."""
    benchmark.group = f"time to offset, {segmented.name} segments"
    chance = random.Random(1)

    async def measure() -> None:
        async with Wal.open(segmented) as wal, ReadonlyWal.open(segmented) as log:
            first, last = await log.timestamp_at(log.head), await log.timestamp_at(log.limit - 1)
            sources = list(wal._engine.state.segments.values())

            def one_by_one(moment: int) -> int | None:
                for source in sources:
                    if source.summary is None or source.summary.max_timestamp_us >= moment:
                        return find_time(wal._engine.source._fs, source, moment, 1 << 60)
                return None

            for _ in range(200):
                moment = chance.randrange(first, last)
                before = time.perf_counter()
                if way == "open for writing":
                    await wal._engine.source.offset_at(moment)
                elif way == "from outside":
                    await log.offset_at(moment)
                else:
                    await asyncio.to_thread(one_by_one, moment)
                samples.append(time.perf_counter() - before)

    samples: list[float] = []
    benchmark.pedantic(lambda: run(measure()), rounds=1)
    benchmark.extra_info |= percentiles(samples)
