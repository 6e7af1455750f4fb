"""Deleted segments are freed in parts, and another process that has such a file loses nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.local import SMALL, UnsyncedFileSystem, open_descriptors, read_values, segments, turns
from tests.waiting import until
from walstore import Wal, WalStore
from walstore.core.files import unlinked_file
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.unlinked_file import (
    OPEN_AT_ONCE,
    PART_BYTES,
    UnlinkedFile,
    free_blocks,
    unlink,
)
from walstore.core.runtime.threads import Worker
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem, ManualClock

PARTS = 4
KEPT = dataclasses.replace(SMALL, min_free_bytes=0)
HELD = OPEN_AT_ONCE - 1
"""Files that are open after the first turn of a large trim: one more lends itself to the next segment."""


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.write(b"begin")
        file.truncate(PARTS * PART_BYTES)
    return path


def taken(path: Path, fs: PosixFileSystem | FaultyFileSystem | None = None) -> UnlinkedFile:
    found = unlink(fs or PosixFileSystem(), path)
    assert found is not None
    return found


def deleted(directory: Path) -> list[str]:
    """Return the deleted files of a directory that this process has open."""
    return [name for name in open_descriptors(directory) if name.endswith("(deleted)")]


def test_a_small_file_is_deleted_at_once(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(bytes(100))
    assert unlink(PosixFileSystem(), path) is None
    assert not path.exists()
    assert open_descriptors(tmp_path) == []


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        unlink(PosixFileSystem(), tmp_path / "none")


def test_a_large_one_shrinks_part_by_part(big: Path) -> None:
    found = taken(big)
    assert not big.exists()
    (descriptor,) = (
        int(name) for name in os.listdir("/proc/self/fd") if _leads_to(name, f"{big} (deleted)")
    )
    sizes = []
    while not found.is_freed:
        sizes.append(os.fstat(descriptor).st_size)
        found.free_parts()
    assert sizes == [part * PART_BYTES for part in range(PARTS, 0, -1)]
    assert open_descriptors(big.parent) == []
    found.free_parts()
    found.close()


def _leads_to(name: str, target: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}") == target
    except FileNotFoundError:
        return False


def test_who_has_it_open_keeps_all_of_it(big: Path) -> None:
    with big.open("rb") as reader:
        assert unlink(PosixFileSystem(), big) is None
        assert os.fstat(reader.fileno()).st_size == PARTS * PART_BYTES
        assert reader.read(5) == b"begin"
    assert not big.exists()


def test_a_backup_by_a_link_keeps_all_of_it(big: Path) -> None:
    backup = big.with_name("backup")
    os.link(big, backup)
    assert unlink(PosixFileSystem(), big) is None
    assert not big.exists()
    assert backup.stat().st_size == PARTS * PART_BYTES


@pytest.mark.parametrize("kind", ["open", "size", "is_alone"])
def test_a_call_that_fails_only_costs_the_pauses(big: Path, kind: str) -> None:
    faulty = FaultyFileSystem()
    faulty.fail(kind, error=errno.EMFILE)
    assert unlink(faulty, big) is None
    assert not big.exists()
    assert open_descriptors(big.parent) == []


def test_a_file_that_cannot_be_deleted_stays(big: Path) -> None:
    faulty = FaultyFileSystem()
    faulty.fail("remove", error=errno.EACCES)
    with pytest.raises(OSError, match="denied"):
        unlink(faulty, big)
    assert big.stat().st_size == PARTS * PART_BYTES
    assert open_descriptors(big.parent) == []


def test_a_cut_that_fails_frees_all_at_once(big: Path) -> None:
    faulty = FaultyFileSystem()
    found = taken(big, faulty)
    faulty.fail("truncate", error=errno.EIO)
    found.free_parts()
    assert found.is_freed
    assert open_descriptors(big.parent) == []


async def test_a_busy_event_loop_does_not_hold_it_up(big: Path, pace: ManualClock) -> None:
    """If it wakes late, all parts are due for which there was time."""
    worker = Worker("test")
    found = await asyncio.to_thread(taken, big)
    freeing = asyncio.create_task(free_blocks(found, worker))
    await pace.wait_for_sleepers()
    pace.advance(0.002 * (PARTS - 1))
    await pace.wait_for_sleepers()
    assert not found.is_freed
    pace.advance(0.002)
    await freeing
    assert found.is_freed
    worker.close()


# -- a log ---------------------------------------------------------------------------------------


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlinked_file, "PART_BYTES", 8 * KIB)


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the pauses, which are none of the log's clock; it stands still."""
    clock = ManualClock()
    monkeypatch.setattr(unlinked_file, "_CLOCK", clock)
    return clock


@pytest.fixture
async def wal(log_directory: Path, pace: ManualClock, _small_parts: None):
    """A log of some twenty segments; time stands still, so nothing is freed."""
    async with Wal.open(log_directory, settings=KEPT, fs=UnsyncedFileSystem()) as opened:
        for _ in range(80):
            await opened.append(bytes(15 * KIB))
        yield opened


async def let_time_pass(task: asyncio.Task[Any], clock: ManualClock) -> None:
    def is_over() -> bool:
        clock.advance(0.01)
        return task.done()

    await until(is_over)


async def test_appends_go_on_while_blocks_are_freed(wal, log_directory, pace) -> None:
    assert len(segments(log_directory)) > 2 * OPEN_AT_ONCE
    trimming = asyncio.create_task(wal.trim(before=81))
    await until(lambda: len(deleted(log_directory)) == HELD)
    before = len(segments(log_directory))
    for _ in range(
        8
    ):  # with rotations, after which what could not be deleted before is tried again
        assert await wal.append(bytes(15 * KIB)) > 80
    assert not trimming.done()
    assert len(segments(log_directory)) >= before
    await let_time_pass(trimming, pace)
    assert trimming.result() == 81
    assert deleted(log_directory) == []
    assert len(await read_values(wal)) == 8
    assert len(segments(log_directory)) <= 3


async def test_one_who_stops_waiting_leaves_nothing(wal, log_directory, pace) -> None:
    """The rest is deleted without pauses, and another trim that waits for it goes on."""
    trimming = asyncio.create_task(wal.trim(before=60))
    await until(lambda: len(deleted(log_directory)) == HELD)
    other = asyncio.create_task(wal.trim(before=50))
    await turns()
    trimming.cancel()
    await until(lambda: not deleted(log_directory))
    await until(lambda: min(int(path.stem) for path in segments(log_directory)) > 50)
    assert trimming.cancelled()
    await let_time_pass(other, pace)  # it may have begun a pause before the threads were done
    assert other.result() == 60
    assert await wal.append(b"after") == 81


@pytest.mark.usefixtures("_small_parts")
async def test_what_the_writer_deletes_for_one_who_stopped_waiting_is_freed_too(
    log_directory: Path, pace: ManualClock
) -> None:
    """It has begun to, and knows of the files once it is done."""
    disk = FaultyFileSystem(UnsyncedFileSystem())
    async with Wal.open(log_directory, settings=KEPT, fs=disk) as wal:
        for _ in range(80):
            await wal.append(bytes(15 * KIB))
        trimming = asyncio.create_task(wal.trim(before=81))
        await until(lambda: len(deleted(log_directory)) == HELD)
        with disk.hold("sync_directory") as second:
            await let_time_pass(asyncio.create_task(second.wait_entered()), pace)
            trimming.cancel()
            await asyncio.gather(trimming, return_exceptions=True)
        await until(lambda: not deleted(log_directory))
        await wal.append(b"after")


async def test_cancelled_at_any_turn_it_leaves_nothing(wal, log_directory) -> None:
    """Also before the writer has served it, which it still does then."""
    for turn in range(24):
        head = wal.head + 3
        trimming = asyncio.create_task(wal.trim(before=head))
        await turns(turn)
        trimming.cancel()
        await asyncio.gather(trimming, return_exceptions=True)
        await wal.flush()  # the writer has served what was asked before
        await until(lambda: not deleted(log_directory))
        assert await wal.append(bytes(100)) > 80
        assert wal.head in (head, head - 3)


async def test_a_trim_without_threads_to_free_blocks(wal, log_directory, pace, monkeypatch) -> None:
    """The head has moved, and the files go with the thread that there is."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    trimming = asyncio.create_task(wal.trim(before=60))
    await let_time_pass(trimming, pace)
    assert trimming.result() == 60
    await until(lambda: not deleted(log_directory))
    await until(lambda: min(int(path.stem) for path in segments(log_directory)) > 50)
    assert await wal.append(b"after") == 81


async def test_small_files_are_deleted_some_at_a_time(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """Else one append waits for all of them."""
    async with Wal.open(log_directory, settings=KEPT, fs=faulty) as wal:
        for _ in range(80):
            await wal.append(bytes(15 * KIB), durability="memory")
        await wal.flush()
        syncs, files = faulty.count("sync_directory"), len(segments(log_directory))
        await wal.trim(before=81)
        assert faulty.count("sync_directory") - syncs >= files // OPEN_AT_ONCE
        assert len(segments(log_directory)) <= 2


@pytest.mark.usefixtures("_small_parts")
async def test_logs_of_a_store_open_nothing_for_it(tmp_path: Path, pace: ManualClock) -> None:
    """Their open files are bounded together."""
    async with WalStore.open(tmp_path / "store", settings=KEPT) as store:
        wal = await store.wal("a")
        for _ in range(40):
            await wal.append(bytes(15 * KIB))
        assert await wal.trim(before=41) == 41
        assert deleted(tmp_path) == []
        assert pace.sleepers == 0


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_closing_does_not_wait(log_directory, pace, wal, *, is_cancelled: bool) -> None:
    """A trim that has moved the head says so, whatever is left to be deleted."""
    trimming = asyncio.create_task(wal.trim(before=60))
    await until(lambda: len(deleted(log_directory)) == HELD)
    if is_cancelled:
        trimming.cancel()
    await wal.aclose()
    assert open_descriptors(log_directory) == []
    if not is_cancelled:
        await let_time_pass(trimming, pace)
        assert trimming.result() == 60
    async with Wal.open(log_directory, settings=KEPT) as again:
        assert again.head == 60
        assert min(int(path.stem) for path in segments(log_directory)) > 50


@pytest.mark.usefixtures("_small_parts")
async def test_T8_they_are_freed_at_once_if_their_names_may_come_back(log_directory: Path) -> None:
    """After a power failure a file that comes back has all of its content."""
    faulty = FaultyFileSystem(UnsyncedFileSystem())
    async with Wal.open(log_directory, settings=KEPT, fs=faulty) as wal:
        for _ in range(12):
            await wal.append(bytes(15 * KIB))
        cuts = faulty.count("truncate")
        faulty.fail(
            "sync_directory", nth=3, error=errno.EIO
        )  # two are the checkpoint's and the cell's
        assert await wal.trim(before=9) == 9
        assert faulty.count("truncate") == cuts
        assert open_descriptors(log_directory) != []
        assert deleted(log_directory) == []
