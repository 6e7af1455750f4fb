"""Appends that wait for the disk, compared with write + fdatasync of the same bytes in the same run.

Groups hold what is to be compared: `pytest bench/test_append.py`. The extra columns give appends per
second and the latency percentiles of single appends.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from bench.conftest import Run
from walstore import Settings, Wal, WouldBlock

ROUNDS = 5
APPENDS = {1: 300, 16: 200, 256: 50}
"""Appends of each producer in a round."""


def percentiles(samples: list[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    samples = sorted(samples)
    return {
        "p50_ms": round(1e3 * samples[len(samples) // 2], 3),
        "p99_ms": round(1e3 * samples[len(samples) * 99 // 100], 3),
    }


@pytest.mark.parametrize("size", [100, 1024])
@pytest.mark.parametrize("producers", [1, 16, 256])
def test_append(benchmark, run: Run, log_path: Path, producers: int, size: int) -> None:
    """Producers that each await the sync of every record."""
    benchmark.group = f"durable append, {producers} producers x {size} B"
    value = bytes(size)
    count = APPENDS[producers]
    samples: list[float] = []
    wal = run(_open(log_path))

    async def produce() -> None:
        for _ in range(count):
            before = time.perf_counter()
            await wal.append(value)
            samples.append(time.perf_counter() - before)

    async def all_producers() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(producers):
                group.create_task(produce())

    benchmark.pedantic(lambda: run(all_producers()), rounds=ROUNDS, warmup_rounds=1)
    run(wal.aclose())
    benchmark.extra_info["appends_per_second"] = round(
        producers * count / benchmark.stats["median"]
    )
    benchmark.extra_info |= percentiles(samples)


@pytest.mark.parametrize("size", [100, 1024])
@pytest.mark.parametrize("producers", [1, 16, 256])
def test_append_raw(benchmark, tmp_path: Path, producers: int, size: int) -> None:
    """The same bytes in the same groups with plain write and fdatasync, without event loop and log."""
    benchmark.group = f"durable append, {producers} producers x {size} B"
    data = bytes(size * producers)
    count = APPENDS[producers]
    file = os.open(tmp_path / "raw", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, len(data) * count * (ROUNDS + 1))
    position = 0
    samples: list[float] = []

    def write_all() -> None:
        nonlocal position
        for _ in range(count):
            before = time.perf_counter()
            os.pwrite(file, data, position)
            os.fdatasync(file)
            samples.append(time.perf_counter() - before)
            position += len(data)

    benchmark.pedantic(write_all, rounds=ROUNDS, warmup_rounds=1)
    os.close(file)
    benchmark.extra_info["appends_per_second"] = round(
        producers * count / benchmark.stats["median"]
    )
    benchmark.extra_info |= percentiles(samples)


@pytest.mark.parametrize("size", [100, 1024])
def test_append_many(benchmark, run: Run, log_path: Path, size: int) -> None:
    """Atomic groups of 256, one after another."""
    benchmark.group = f"atomic groups of 256 x {size} B"
    values = [bytes(size)] * 256
    wal = run(_open(log_path))

    async def append_groups() -> None:
        for _ in range(50):
            await wal.append_many(values)

    benchmark.pedantic(lambda: run(append_groups()), rounds=ROUNDS, warmup_rounds=1)
    run(wal.aclose())
    benchmark.extra_info["appends_per_second"] = round(50 * 256 / benchmark.stats["median"])


@pytest.mark.parametrize("size", [100, 1024])
def test_append_many_raw(benchmark, tmp_path: Path, size: int) -> None:
    """The same bytes with plain write and fdatasync."""
    benchmark.group = f"atomic groups of 256 x {size} B"
    data = bytes(size * 256)
    file = os.open(tmp_path / "raw", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, len(data) * 50 * (ROUNDS + 1))
    position = 0

    def write_all() -> None:
        nonlocal position
        for _ in range(50):
            os.pwrite(file, data, position)
            os.fdatasync(file)
            position += len(data)

    benchmark.pedantic(write_all, rounds=ROUNDS, warmup_rounds=1)
    os.close(file)
    benchmark.extra_info["appends_per_second"] = round(50 * 256 / benchmark.stats["median"])


def test_append_nowait(benchmark, run: Run, log_path: Path) -> None:
    """Accepting records of 100 B, without waiting."""
    benchmark.group = "accept 100 B"
    value = bytes(100)
    count = 100_000
    wal = run(_open(log_path))

    async def accept() -> None:
        append = wal.append_nowait
        before = time.perf_counter()
        for _ in range(count):
            append(value)
        spent.append(time.perf_counter() - before)

    spent: list[float] = []
    benchmark.pedantic(
        lambda: run(accept()), setup=lambda: run(wal.flush()), rounds=ROUNDS, warmup_rounds=1
    )
    with pytest.raises(WouldBlock):
        run(_fill(wal))
    run(wal.aclose())
    benchmark.extra_info["appends_per_second"] = round(count / sorted(spent)[len(spent) // 2])


def test_append_nowait_raw(benchmark) -> None:
    """The same number of appends to a Python list through a method call."""
    benchmark.group = "accept 100 B"
    value = bytes(100)
    values: list[bytes] = []

    def accept() -> None:
        append = values.append
        for _ in range(100_000):
            append(value)

    benchmark.pedantic(accept, rounds=ROUNDS, warmup_rounds=1)
    benchmark.extra_info["appends_per_second"] = round(100_000 / benchmark.stats["median"])


async def _open(path: Path) -> Wal:
    return await Wal.open(path, settings=Settings(cache_bytes=0))


async def _fill(wal: Wal) -> None:
    while True:
        wal.append_nowait(bytes(1 << 20))
