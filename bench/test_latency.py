"""The cost of one durable append above the disk's, and how soon a reader has it.

`pytest bench/test_latency.py`. Each figure alternates with its raw baseline in the same run.

The rows "disk of 0.29 ms" run on a file system whose sync takes at least that long, which is typical of
an NVMe disk behind a virtual machine; if this machine's disk is faster, its own rows show little but the way
to the writer thread and back.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.conftest import Run
from walstore import Wal
from walstore.core.files.posix import PosixFile, PosixFileSystem
from walstore.core.ports import File, FileSystem
from walstore.core.runtime.threads import Worker

ROUNDS = 20
APPENDS = 200
VALUE = os.urandom(1024)
SLOW_SYNC_SECONDS = 0.29e-3


class TimedFile(PosixFile):
    """Syncs slowly, and records when the sync was done."""

    least_seconds = 0.0
    synced_at = 0.0

    def datasync(self) -> None:
        """Call fdatasync, then wait for the rest of the time."""
        began = time.perf_counter()
        super().datasync()
        left = self.least_seconds - (time.perf_counter() - began)
        if left > 0:
            time.sleep(left)
        TimedFile.synced_at = time.perf_counter()


class SlowFile(TimedFile):
    """A file on a disk as slow as a virtual machine's."""

    least_seconds = SLOW_SYNC_SECONDS


class TimedFileSystem(PosixFileSystem):
    """The real file system with slow files."""

    def __init__(self, kind: type[TimedFile]) -> None:
        self._kind = kind

    def open(self, path: Path, mode: str) -> File:
        """Open a file for reading ("r"), writing ("r+") or make it ("x")."""
        found = super().open(path, mode)
        found.__class__ = self._kind
        return found


DISKS = {"this disk": TimedFile, "disk of 0.29 ms": SlowFile}


@pytest.mark.parametrize("disk", DISKS)
def test_durable_append(benchmark, run: Run, tmp_path: Path, disk: str) -> None:
    """One producer, 1 KiB, each append durable before the next."""
    benchmark.group = f"one durable append after another, {disk}"
    fs = TimedFileSystem(DISKS[disk])
    wal = run(_open(tmp_path / "log", fs))
    raw = fs.open(tmp_path / "raw", "x")
    raw.allocate(16 << 20)
    appends: list[float] = []
    writes: list[float] = []

    async def append() -> None:
        for _ in range(APPENDS):
            before = time.perf_counter()
            await wal.append(VALUE)
            appends.append(time.perf_counter() - before)

    def write() -> None:
        for at in range(APPENDS):
            before = time.perf_counter()
            raw.pwrite([VALUE], at * len(VALUE))
            raw.datasync()
            writes.append(time.perf_counter() - before)

    def both() -> None:
        run(append())
        write()

    benchmark.pedantic(both, rounds=ROUNDS, warmup_rounds=1)
    raw.close()
    run(wal.aclose())
    _tell(benchmark, appends, writes)


@pytest.mark.parametrize("disk", DISKS)
def test_append_to_tail(benchmark, run: Run, tmp_path: Path, disk: str) -> None:
    """From the return of the sync until a reader that waits for it has the record."""
    benchmark.group = f"append to tail, above the sync, {disk}"
    wal = run(_open(tmp_path / "log", TimedFileSystem(DISKS[disk])))
    reader = wal.follow("latest")
    times: list[float] = []

    async def read() -> None:
        for _ in range(APPENDS):
            await anext(reader)
            times.append(time.perf_counter() - TimedFile.synced_at)

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            for _ in range(APPENDS):
                await wal.append(VALUE)

    benchmark.pedantic(lambda: run(both()), rounds=ROUNDS, warmup_rounds=1)
    run(wal.aclose())
    _tell(benchmark, times, None)


def test_way_to_a_thread_and_back(benchmark, run: Run) -> None:
    """A call that does nothing, on a lane and through concurrent.futures."""
    benchmark.group = "way to a thread and back"
    lane = Worker("bench")
    executor = ThreadPoolExecutor(1)
    ours: list[float] = []
    theirs: list[float] = []

    async def both() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(APPENDS):
            before = time.perf_counter()
            await lane.run(int)
            between = time.perf_counter()
            await loop.run_in_executor(executor, int)
            theirs.append(time.perf_counter() - between)
            ours.append(between - before)

    benchmark.pedantic(lambda: run(both()), rounds=ROUNDS, warmup_rounds=1)
    executor.shutdown()
    lane.close()
    _tell(benchmark, ours, theirs)


async def _open(path: Path, fs: FileSystem) -> Wal:
    return await Wal.open(path, fs=fs)


def _tell(benchmark, times: list[float], raw: list[float] | None) -> None:
    """Record percentiles in microseconds, and the ratio of the medians."""
    spent = sorted(times)
    benchmark.extra_info["p50_us"] = round(1e6 * statistics.median(spent))
    benchmark.extra_info["p99_us"] = round(1e6 * spent[len(spent) * 99 // 100])
    if raw is not None:
        baseline = statistics.median(raw)
        benchmark.extra_info["raw_p50_us"] = round(1e6 * baseline)
        benchmark.extra_info["ratio"] = round(statistics.median(spent) / baseline, 2)
