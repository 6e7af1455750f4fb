"""S11, S16: a log that was closed, killed or failed on a full disk opens again, is trimmed, and goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.local import SMALL, copy_log, gather_outcomes, open_descriptors, read_all, segments
from walstore import DiskFullError, Wal, WalError
from walstore.care.verify.verifying import verify_directory
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.checkpoint import decode_cell
from walstore.core.settings import KIB
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors.directory import hold_cursors
from walstore.testing import FaultyFileSystem
from walstore.testing.calls import Call

SETTINGS = SMALL.replace(min_free_bytes=0)
ACTIVE = "next.tmp"


async def fill(wal: Wal) -> dict[int, bytes]:
    """Append until the disk is full; return what was acknowledged."""
    acknowledged: dict[int, bytes] = {}
    with pytest.raises(DiskFullError) as refused:
        for number in range(100_000):
            value = b"%d " % number * 300
            acknowledged[await wal.append(value)] = value
    assert refused.value.outcome == "not_written"
    return acknowledged


async def give_up(wal: Wal) -> None:
    """Close a log that may have failed."""
    await gather_outcomes([wal.aclose()])


async def check_all(wal: Wal, acknowledged: dict[int, bytes]) -> None:
    found = {record.offset: record.value for record in await read_all(wal)}
    assert acknowledged.items() <= found.items()
    assert list(found) == list(range(wal.head, wal.head + len(found)))


async def go_through(
    directory: Path, fs: FaultyFileSystem | None, acknowledged: dict[int, bytes], free: Callable
) -> None:
    """Open on a full disk, read, trim, and append once there is room; then all is as it should be."""
    async with Wal.open(directory, settings=SETTINGS, fs=fs) as wal:
        await check_all(wal, acknowledged)
        before = len(await asyncio.to_thread(segments, directory))
        head = await wal.trim(wal.durable_limit)
        assert head > 1
        assert len(await asyncio.to_thread(segments, directory)) < before
        kept = {offset: value for offset, value in acknowledged.items() if offset >= wal.head}
        await check_all(wal, kept)
    await asyncio.to_thread(free)
    async with Wal.open(directory, settings=SETTINGS, fs=fs) as wal:
        await check_all(wal, kept)
        first = wal.tail
        for number in range(60):
            assert await wal.append(b"after %d" % number * 300) == first + number
    assert open_descriptors(directory) == []
    async with Wal.open(directory, settings=SETTINGS) as wal:
        await check_all(wal, kept)
        assert wal.tail == first + 60
    report = await asyncio.to_thread(verify_directory, directory)
    assert report.problems == ()


# -- without room for a byte more ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("room", [200, 260, 333, 390])
@pytest.mark.parametrize("how", ["closed", "killed"])
async def test_S16_a_log_on_a_full_disk_opens_again(
    tmp_path: Path, faulty: FaultyFileSystem, how: str, room: int
) -> None:
    """Closed after it failed, or killed as it was: its files are copied, and no file may grow."""
    directory = tmp_path / "log"
    wal = await Wal.open(directory, settings=SETTINGS, fs=faulty)
    faulty.limit_space(room * KIB)
    acknowledged = await fill(wal)
    assert len(acknowledged) > 50
    killed = await asyncio.to_thread(copy_log, directory, tmp_path / "killed")
    await give_up(wal)
    full = FaultyFileSystem(PosixFileSystem())
    full.limit_space(0)
    directory = killed if how == "killed" else directory
    await go_through(directory, full, acknowledged, lambda: full.limit_space(None))


@pytest.mark.parametrize("hints", ["hints", "no hints"])
@pytest.mark.parametrize("kind", ["open", "pwrite", "datasync", "replace"])
async def test_S16_also_if_the_last_segment_is_sealed(
    tmp_path: Path, faulty: FaultyFileSystem, kind: str, hints: str
) -> None:
    """A rotation sealed it, and there was no room for the next one."""
    directory = tmp_path / "log"
    wal = await Wal.open(directory, settings=SETTINGS, fs=faulty)
    acknowledged = {await wal.append(b"%d " % n * 4000): b"%d " % n * 4000 for n in range(30)}
    sealing = 2 if kind in ("pwrite", "datasync") else 1
    faulty.fail(kind, errno.ENOSPC, name="*.wal" if kind == "replace" else ACTIVE, nth=sealing)
    with pytest.raises(WalError, match="No space left"):
        await wal.rotate()
    await give_up(wal)
    last = (await asyncio.to_thread(segments, directory))[-1]
    assert (await asyncio.to_thread(last.read_bytes)).endswith(b"WALEND\r\n")
    if hints == "no hints":
        for name in ("CHECKPOINT", "DURABLE"):
            (directory / name).unlink(missing_ok=True)
        return await check_sealed(directory, acknowledged)
    full = FaultyFileSystem(PosixFileSystem())
    full.limit_space(0)
    await go_through(directory, full, acknowledged, lambda: full.limit_space(None))
    return None


async def check_sealed(directory: Path, acknowledged: dict[int, bytes]) -> None:
    """Without a checkpoint there may be no room for one; the log opens with room, and lost nothing."""
    full = FaultyFileSystem(PosixFileSystem())
    full.limit_space(0)
    for fs in (full, None):
        try:
            async with Wal.open(directory, settings=SETTINGS, fs=fs) as wal:
                await check_all(wal, acknowledged)
        except DiskFullError:
            assert fs is full
    async with Wal.open(directory, settings=SETTINGS) as wal:
        await check_all(wal, acknowledged)
        await wal.append(b"after")


@pytest.mark.slow
async def test_S16_again_and_again_a_little_room(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    """Each opening acknowledges what it can; in the end all of that is there."""
    directory = tmp_path / "log"
    acknowledged: dict[int, bytes] = {}
    refused, outcomes = 0, set()
    for room in range(70 * KIB, 400 * KIB, 7 * KIB):
        faulty.limit_space(room)
        try:
            wal = await Wal.open(directory, settings=SETTINGS, fs=faulty)
        except DiskFullError:
            refused += 1
            continue
        try:
            for number in range(20):
                value = b"%d %d " % (room, number) * 100
                acknowledged[await wal.append(value)] = value
        except DiskFullError as error:
            outcomes.add(error.outcome)
        await give_up(wal)
    assert (refused, outcomes) == (0, {"not_written"})
    assert len(acknowledged) > 100
    faulty.limit_space(None)
    async with Wal.open(directory, settings=SETTINGS, fs=faulty) as wal:
        found = {record.offset: record.value for record in await read_all(wal)}
        assert found == acknowledged


# -- the system refuses ----------------------------------------------------------------------------


async def test_S16_a_limit_of_the_kernel_on_every_file(log_directory: Path) -> None:
    """No fake: the system refuses to let any file grow beyond some size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(most: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))

    wal = await Wal.open(log_directory, settings=SETTINGS)
    acknowledged = {await wal.append(b"%d " % n * 2000): b"%d " % n * 2000 for n in range(60)}
    try:
        set_limit(50_000)
        acknowledged |= await fill(wal)
        await give_up(wal)
        await go_through(log_directory, None, acknowledged, lambda: set_limit(soft))
    finally:
        set_limit(soft)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    yield from mounted(place, ["-t", "tmpfs", "-o", "size=1m", "walstore-test"])


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB in which directories take blocks."""
    place, image = tmp_path / "disk", tmp_path / "image"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    make = ["mkfs.ext4", "-q", "-F", "-m", "0", str(image)]
    if shutil.which(make[0]) is None or subprocess.run(make, check=False).returncode:
        pytest.skip("needs mkfs.ext4")
    yield from mounted(place, ["-o", "loop", str(image)])


def mounted(place: Path, what: list[str]) -> Iterator[Path]:
    command = ["mount", *what, str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill_up(place: Path) -> None:
    """Use the last byte of a file system."""
    with (place / "ballast").open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@pytest.mark.parametrize("how", ["closed", "killed", "sealed"])
async def test_S16_a_real_file_system_without_a_free_block(small_disk: Path, how: str) -> None:
    directory = small_disk / "log"
    fs = FaultyFileSystem(PosixFileSystem())
    wal = await Wal.open(directory, settings=SETTINGS, fs=fs)
    acknowledged = {await wal.append(b"%d " % n * 2000): b"%d " % n * 2000 for n in range(100)}
    if how == "sealed":
        fs.fail("open", errno.ENOSPC, name=ACTIVE)
        with pytest.raises(WalError, match="No space left"):
            await wal.rotate()
    await asyncio.to_thread(fill_up, small_disk)
    if how == "killed":
        fs.fail("*", errno.ENOSPC, times=None)
    await give_up(wal)
    await asyncio.to_thread(fill_up, small_disk)
    with pytest.raises(WalError):
        await wal.append(b"no")
    await go_through(directory, None, acknowledged, (small_disk / "ballast").unlink)


async def test_S16_a_hint_that_cannot_be_overwritten_is_removed(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """Half of a checkpoint would be called damage."""
    wal = await Wal.open(log_directory, settings=SETTINGS, fs=faulty)
    await wal.append(b"kept")
    faulty.fail("open", errno.ENOSPC, name="CHECKPOINT.tmp", times=None)
    faulty.fail("pwrite", errno.ENOSPC, name="CHECKPOINT", written_bytes=100)
    await wal.aclose()
    assert ("pwrite", "CHECKPOINT") in {(call.kind, call.path.name) for call in faulty.calls}
    report = await asyncio.to_thread(verify_directory, log_directory)
    assert report.problems == ()
    async with Wal.open(log_directory, settings=SETTINGS) as wal:
        await check_all(wal, {1: b"kept"})


# -- cursors ---------------------------------------------------------------------------------------


async def fill_segments(wal: Wal) -> None:
    """Append 60 records, a few to a segment."""
    for number in range(60):
        await wal.append(b"%d " % number * 2000, durability="memory")
    await wal.flush()


async def test_S16_a_log_without_cursors_is_trimmed_without_room_for_their_directory(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """A directory takes a block, which a full ext4 does not have; the lock of the cursors lies in it."""
    async with Wal.open(log_directory, settings=SETTINGS, fs=faulty) as wal:
        await fill_segments(wal)
        faulty.fail("make_directory", errno.ENOSPC, name="cursors", times=None)
        before = len(await asyncio.to_thread(segments, log_directory))
        assert await wal.trim(40) == 40
        assert len(await asyncio.to_thread(segments, log_directory)) < before
        with pytest.raises(DiskFullError) as refused:
            await wal.cursor("billing")
        assert (refused.value.outcome, refused.value.retriable) == ("not_written", True)
        faulty.heal()
        assert (await wal.cursor("billing")).position == 40
        assert await wal.trim(50) == 40


@pytest.mark.parametrize(("kind", "nth", "position"), [("store", 1, 1), ("list", 2, 40)])
async def test_S16_the_first_cursor_is_made_while_its_log_is_trimmed(
    log_directory: Path, faulty: FaultyFileSystem, kind: str, nth: int, position: int
) -> None:
    """By another process, which found room: before the new head is shown, or right behind that."""
    calls: list[str] = []

    def make_cursor(call: Call) -> None:
        if calls or call.path.name == "cursors":
            calls.append(call.kind)
        if call.kind != kind or calls.count(kind) != nth:
            return
        with hold_cursors(PosixFileSystem(), log_directory) as held:
            head = held.head()
            held.write("billing", CursorState(head, 1, b"8 bytes.", 0, 0, 0, "another"))
            held.sync()

    async with Wal.open(log_directory, settings=SETTINGS, fs=faulty) as wal:
        await fill_segments(wal)
        faulty.fail("make_directory", errno.ENOSPC, name="cursors")
        faulty.before_each(make_cursor)
        assert await wal.trim(40) == position
        assert calls.count("make_directory") == 2
        cell = decode_cell(await asyncio.to_thread((log_directory / "DURABLE").read_bytes))
        assert cell is not None
        assert cell.head == wal.head == position
        assert (await wal.cursor("billing")).position == position
        assert (await read_all(wal))[0].offset == position


@pytest.mark.parametrize("has_cursor", [False, True])
async def test_S16_a_process_that_died_before_it_took_a_head_back(
    log_directory: Path, tmp_path: Path, *, has_cursor: bool
) -> None:
    async with Wal.open(log_directory, settings=SETTINGS) as wal:
        await fill_segments(wal)
        if has_cursor:
            assert (await wal.cursor("billing")).position == 1
        await asyncio.to_thread(wal._engine.opened.tail.show_head, 40)
        died = await asyncio.to_thread(copy_log, log_directory, tmp_path / "died")
    async with Wal.open(died, settings=SETTINGS) as wal:
        assert wal.head == (1 if has_cursor else 40)
        assert (await read_all(wal))[0].offset == wal.head
        if has_cursor:
            assert (await wal.cursor("billing")).position == 1


async def test_S16_a_head_that_cannot_be_shown_is_not_moved_without_that_lock(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    async with Wal.open(log_directory, settings=SETTINGS, fs=faulty) as wal:
        await wal.append_many([b"1", b"2", b"3"])
        faulty.fail("make_directory", errno.ENOSPC, name="cursors", times=None)
        faulty.fail("store", errno.EIO, times=None)
        with pytest.raises(DiskFullError, match="the head cannot be moved"):
            await wal.trim(2)
        assert wal.head == 1
        faulty.heal()
        assert await wal.trim(2) == 2


async def test_S16_a_cursor_is_committed_once_there_is_room(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    async with Wal.open(log_directory, settings=SETTINGS, fs=faulty) as wal:
        await wal.append_many([b"1", b"2", b"3"])
        cursor = await wal.cursor("billing")
        await cursor.commit(2)
        faulty.limit_space(0)
        for _ in range(2):
            with pytest.raises(DiskFullError) as refused:
                await cursor.commit(3)
            assert (refused.value.outcome, refused.value.retriable) == ("not_written", True)
            assert cursor.position == 2
        assert [(one.name, one.position, one.problem) for one in await wal.cursors()] == [
            ("billing", 2, None)
        ]
        faulty.limit_space(None)
        await cursor.commit(3)
    async with Wal.open(log_directory, settings=SETTINGS) as wal:
        assert (await wal.cursor("billing")).position == 3


@pytest.mark.slow
async def test_S16_cursors_on_a_real_ext4_without_a_free_block(small_ext4: Path) -> None:
    directory = small_ext4 / "log"
    async with Wal.open(directory, settings=SETTINGS) as wal:
        for number in range(100):
            await wal.append(b"%d " % number * 2000)
    await asyncio.to_thread(fill_up, small_ext4)
    async with Wal.open(directory, settings=SETTINGS) as wal:
        with pytest.raises(DiskFullError) as refused:
            await wal.cursor("billing")
        assert refused.value.outcome == "not_written"
        head = await wal.trim(60)
        assert head > 1
        cursor = await wal.cursor("billing")
        assert cursor.position == head
        await asyncio.to_thread(fill_up, small_ext4)
        with pytest.raises(DiskFullError) as refused:
            await cursor.commit(head + 1)
        assert (refused.value.outcome, cursor.position) == ("not_written", head)
        await asyncio.to_thread((small_ext4 / "ballast").unlink)
        await cursor.commit(head + 1)
    async with Wal.open(directory, settings=SETTINGS) as wal:
        assert (await wal.cursor("billing")).position == head + 1
        assert (await read_all(wal))[-1].offset == 100
