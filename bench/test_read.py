"""Reading: latency at the tail, and catching up, beside a plain read of the same files."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bench.conftest import Run
from bench.test_append import percentiles
from walstore import Settings, Wal
from walstore.segment import SUFFIX

RECORDS = 500_000
VALUE = bytes(100)


def test_tail_latency(benchmark, run: Run, log_path: Path) -> None:
    """From the call of append to the record in another task's ``async for``, one record at a time."""
    benchmark.group = "append to tail, 100 B"
    samples: list[float] = []

    async def measure() -> None:
        async with Wal.open(log_path) as wal, asyncio.TaskGroup() as group:
            seen = asyncio.Event()

            async def consume() -> None:
                async for _ in wal.reader("latest"):
                    seen.set()

            consumer = group.create_task(consume())
            for _ in range(500):
                seen.clear()
                before = time.perf_counter()
                wal.append_nowait(VALUE)
                await seen.wait()
                samples.append(time.perf_counter() - before)
            consumer.cancel()

    benchmark.pedantic(lambda: run(measure()), rounds=3, warmup_rounds=1)
    benchmark.extra_info |= percentiles(samples)


def test_durable_append_latency(benchmark, run: Run, log_path: Path) -> None:
    """The same number of appends that await their sync, without a reader: what the tail adds to."""
    benchmark.group = "append to tail, 100 B"
    samples: list[float] = []

    async def measure() -> None:
        async with Wal.open(log_path) as wal:
            for _ in range(500):
                before = time.perf_counter()
                await wal.append(VALUE)
                samples.append(time.perf_counter() - before)

    benchmark.pedantic(lambda: run(measure()), rounds=3, warmup_rounds=1)
    benchmark.extra_info |= percentiles(samples)


@pytest.fixture(scope="module")
def full_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of half a million records of 100 B."""
    path = tmp_path_factory.mktemp("full") / "log"

    async def fill() -> None:
        async with Wal.open(path) as wal:
            for _ in range(RECORDS // 1000):
                await wal.append_many([VALUE] * 1000, durability="memory")

    asyncio.run(fill())
    return path


def test_catch_up_batches(benchmark, run: Run, full_log: Path) -> None:
    """All records from files, as batches whose values are taken out."""
    benchmark.group = "catch-up, 100 B"

    async def read() -> int:
        count = 0
        async with Wal.open(full_log, settings=Settings(cache_bytes=0)) as wal:
            async for batch in wal.reader(follow=False).batches():
                count += len(batch.values)
        return count

    assert benchmark.pedantic(lambda: run(read()), rounds=5, warmup_rounds=1) == RECORDS
    benchmark.extra_info["records_per_second"] = round(RECORDS / benchmark.stats["median"])


def test_catch_up_records(benchmark, run: Run, full_log: Path) -> None:
    """All records from files, one by one."""
    benchmark.group = "catch-up, 100 B"

    async def read() -> int:
        count = 0
        async with Wal.open(full_log, settings=Settings(cache_bytes=0)) as wal:
            async for _ in wal.reader(follow=False):
                count += 1
        return count

    assert benchmark.pedantic(lambda: run(read()), rounds=3, warmup_rounds=1) == RECORDS
    benchmark.extra_info["records_per_second"] = round(RECORDS / benchmark.stats["median"])


def test_catch_up_raw(benchmark, full_log: Path) -> None:
    """The same bytes read from the same files, cut into values, unchecked."""
    benchmark.group = "catch-up, 100 B"

    def read() -> int:
        count = 0
        for path in sorted(full_log.glob(f"*{SUFFIX}")):
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    count += len([chunk[at : at + 100] for at in range(0, len(chunk), 100)])
        return count

    assert benchmark.pedantic(read, rounds=5, warmup_rounds=1) >= RECORDS
    benchmark.extra_info["records_per_second"] = round(RECORDS / benchmark.stats["median"])
