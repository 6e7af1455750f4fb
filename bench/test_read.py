"""Reading: latency at the tail, and catching up, compared with a plain read of the same files."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bench.conftest import Run
from bench.test_append import percentiles
from walstore import Settings, Wal
from walstore.core.format.segment import SUFFIX

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
                async for _ in wal.follow("latest"):
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
    """The same number of appends that await their sync, without a reader: the baseline of the tail."""
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
    """All records from files, as batches whose values are extracted."""
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
    """The same bytes from the same files, cut into values, unchecked."""
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


STREAMS = 100


@pytest.fixture(scope="module", params=["mixed", "apart"])
def log_of_streams(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Half a million records of 100 B in 100 streams: alternating, or each batch of one stream."""
    path = tmp_path_factory.mktemp("streams") / "log"

    async def fill() -> None:
        async with Wal.open(path) as wal:
            for number in range(RECORDS // 1000):
                if request.param == "apart":
                    name = f"s{number % STREAMS}"
                    await wal.append_many([VALUE] * 1000, stream=name, durability="memory")
                    continue
                for at in range(1000):
                    wal.append_nowait(VALUE, stream=f"s{at % STREAMS}")
                await wal.flush()

    asyncio.run(fill())
    return path


@pytest.mark.parametrize("ways", ["records", "batches"])
@pytest.mark.parametrize("stream", ["one", "all"])
def test_streams(
    benchmark, run: Run, log_of_streams: Path, stream: str, ways: str, request
) -> None:
    """One stream of a hundred, and all of them, from files."""
    kind = request.node.callspec.params["log_of_streams"]
    benchmark.group = f"one stream of {STREAMS}, {kind}, {ways}"
    name = "s7" if stream == "one" else None

    async def read() -> int:
        count = 0
        async with Wal.open(log_of_streams, settings=Settings(cache_bytes=0)) as wal:
            reader = wal.reader(stream=name, follow=False)
            if ways == "batches":
                async for batch in reader.batches():
                    count += len(batch.values)
            else:
                async for _ in reader:
                    count += 1
        return count

    expected = RECORDS // STREAMS if stream == "one" else RECORDS
    assert benchmark.pedantic(lambda: run(read()), rounds=5, warmup_rounds=1) == expected
    seconds = benchmark.stats["median"]
    benchmark.extra_info["log_records_per_second"] = round(RECORDS / seconds)


def test_followers_of_other_streams(benchmark, run: Run, log_path: Path) -> None:
    """The cost of a commit with a hundred followers, one of which gets its record."""
    benchmark.group = "followers of 100 streams"

    async def measure() -> None:
        async with Wal.open(log_path) as wal, asyncio.TaskGroup() as group:
            seen = asyncio.Event()

            async def consume(name: str) -> None:
                async for _ in wal.follow("latest", stream=name):
                    seen.set()

            consumers = [group.create_task(consume(f"s{at}")) for at in range(STREAMS)]
            for at in range(300):
                seen.clear()
                wal.append_nowait(VALUE, stream=f"s{at % STREAMS}")
                await seen.wait()
            for consumer in consumers:
                consumer.cancel()

    benchmark.pedantic(lambda: run(measure()), rounds=3, warmup_rounds=1)
    benchmark.extra_info["seconds_per_commit"] = benchmark.stats["median"] / 300
