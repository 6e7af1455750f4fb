"""The disk runs low under an open log: appends stop in time, all else goes on, and space brings them back."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local import SMALL, check_contiguous, gather_outcomes, read_all, read_values
from tests.waiting import until
from walstore import DiskFullError, Settings, Wal, WalError
from walstore.core.append.disk_watch import RECHECK_SECONDS
from walstore.core.files.posix import PosixFileSystem
from walstore.core.settings import KIB, MIB

WATCHED = SMALL.replace(min_free_bytes=400 * KIB)
PLENTY = 1 << 40


class Disk(PosixFileSystem):
    """The real file system, with as much space as a test says."""

    def __init__(self) -> None:
        self.free = PLENTY

    def free_bytes(self, path: Path) -> int:
        return self.free


@pytest.fixture
def disk() -> Disk:
    return Disk()


async def append_until_refused(wal: Wal) -> DiskFullError:
    with pytest.raises(DiskFullError) as found:
        for _ in range(1000):
            await wal.append(bytes(5000))
    return found.value


async def test_appends_stop_and_come_back_without_reopening(log_directory, clock, disk) -> None:
    async with Wal.open(log_directory, settings=WATCHED, fs=disk, clock=clock) as wal:
        await wal.append(b"first")
        reader = wal.follow()
        disk.free = 300 * KIB
        error = await append_until_refused(wal)
        assert (error.outcome, error.retriable) == ("not_written", True)
        assert str(log_directory) in str(error)
        assert f"{300 * KIB} bytes are free" in str(error)
        tail = wal.tail
        for call in (
            wal.append(b""),
            wal.append_many([b"", b""]),
            wal.append(b"", durability="memory"),
        ):
            with pytest.raises(DiskFullError):
                await call
        with pytest.raises(DiskFullError):
            wal.append_nowait(b"")

        # The log is not failed: what was accepted is there, and everything else works.
        assert wal.tail == tail
        await wal.flush()
        assert wal.durable_limit == tail
        await wal.rotate()
        check_contiguous(await read_all(wal))
        for offset in range(1, tail):
            assert (await anext(reader)).offset == offset
        assert await wal.trim(5) == 5, "space can be made"

        disk.free = PLENTY
        following = asyncio.create_task(anext(reader))
        await clock.wait_for_sleepers()
        clock.advance(RECHECK_SECONDS)
        await until(lambda: wal._engine.disk_watch.refusal is None)
        assert await wal.append(b"after") == tail
        assert (await following).value == b"after"
    async with Wal.open(log_directory, settings=WATCHED) as wal:
        assert (await read_values(wal))[-1] == b"after"


async def test_a_large_transaction_stops_before_the_disk_is_full(
    log_directory, clock, disk
) -> None:
    """What it wrote to its file counts, and it is rolled back whole."""
    settings = WATCHED.replace(transaction_memory_bytes=16 * KIB)
    async with Wal.open(log_directory, settings=settings, fs=disk, clock=clock) as wal:
        await wal.append(b"before")
        disk.free = 399 * KIB
        with pytest.raises(DiskFullError) as found:
            async with wal.transaction() as txn:
                for n in range(1000):
                    await txn.append(b"%d" % n * 1000)
        assert (found.value.outcome, found.value.retriable) == ("not_written", True)
        disk.free = PLENTY
        await clock.wait_for_sleepers()
        clock.advance(RECHECK_SECONDS)
        await until(lambda: wal._engine.disk_watch.refusal is None)
        assert await wal.append(b"after") == 2
        assert await read_values(wal) == [b"before", b"after"]
    assert [path.suffix for path in log_directory.iterdir() if path.is_file()].count(".wal") == 1


async def test_a_log_opens_on_a_disk_that_is_low(log_directory, clock, disk) -> None:
    """To be read, and to be written as soon as there is space."""
    async with Wal.open(log_directory, settings=WATCHED, fs=disk, clock=clock) as wal:
        await wal.append(b"before")
    disk.free = 399 * KIB
    async with Wal.open(log_directory, settings=WATCHED, fs=disk, clock=clock) as wal:
        with pytest.raises(DiskFullError):
            wal.append_nowait(b"")
        assert await read_values(wal) == [b"before"]
        disk.free = 500 * KIB
        await clock.wait_for_sleepers()
        clock.advance(RECHECK_SECONDS)
        await until(lambda: wal._engine.disk_watch.refusal is None)
        assert await wal.append(b"after") == 2


async def test_a_log_that_is_refusing_closes(log_directory, clock, disk) -> None:
    disk.free = 0
    async with Wal.open(log_directory, settings=WATCHED, fs=disk, clock=clock) as wal:
        await clock.wait_for_sleepers()
        assert wal.tail == 1
    assert clock.sleepers == 0


async def test_switched_off_nobody_looks(log_directory, disk) -> None:
    disk.free = 0
    settings = SMALL.replace(min_free_bytes=0)
    async with Wal.open(log_directory, settings=settings, fs=disk) as wal:
        for _ in range(100):
            await wal.append(bytes(5000))


# -- a real file system ------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB in memory; only root may make one."""
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True)
    if not mounted or mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield directory
    finally:  # lazily, for a test that failed may have files open
        subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.mark.slow
async def test_on_a_real_disk_the_line_holds(small_disk: Path) -> None:
    """Busy producers meet DiskFullError, not a failed log; a big file goes away and they go on."""
    settings = Settings(min_free_bytes=1 * MIB, segment_bytes=256 * KIB, batch_bytes=16 * KIB)
    ballast = small_disk / "ballast"
    await asyncio.to_thread(ballast.write_bytes, bytes(1 * MIB))
    async with Wal.open(small_disk / "log", settings=settings) as wal:

        async def produce(count: int) -> None:
            for _ in range(count):
                await wal.append(bytes(1000))

        outcomes = await gather_outcomes(produce(10_000) for _ in range(8))
        assert all(isinstance(found, DiskFullError) for found in outcomes), outcomes
        assert all(found.outcome == "not_written" for found in outcomes)
        free = await asyncio.to_thread(PosixFileSystem().free_bytes, small_disk)
        assert 512 * KIB < free < 1 * MIB
        written = wal.tail - 1
        assert written > 1000
        check_contiguous(await read_all(wal))

        await asyncio.to_thread(ballast.unlink)
        await until(lambda: wal._engine.disk_watch.refusal is None, seconds=60)
        await produce(200)
        assert wal.tail > written + 200
    async with Wal.open(small_disk / "log", settings=settings) as wal:
        check_contiguous(await read_all(wal))


@pytest.mark.slow
async def test_without_the_line_a_full_disk_fails_the_log(small_disk: Path) -> None:
    """What the watermark is for; see also L9 in test_08_local_faults.py."""
    settings = Settings(min_free_bytes=0, segment_bytes=256 * KIB, batch_bytes=16 * KIB)
    wal = await Wal.open(small_disk / "log", settings=settings)
    with pytest.raises(DiskFullError):
        for _ in range(10_000):
            await wal.append(bytes(1000))
    with pytest.raises(WalError):
        await wal.aclose()
