"""The file system in memory does what the machine's does, and logs in it are logs."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from walstore import OutcomeUnknownError, Settings, Wal, WalClosedError, WalLockedError, WalStore
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import FileSystem
from walstore.testing import FaultyFileSystem, MemoryFileSystem

SMALL = Settings(segment_bytes=64 << 10, batch_bytes=4 << 10, cache_bytes=0)


@pytest.fixture(params=[PosixFileSystem, MemoryFileSystem])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    """Each with an empty directory at ``tmp_path``."""
    found = request.param()
    found.make_directory(tmp_path)
    return found


def number(call: Callable[..., Any], *arguments: Any) -> int | None:
    """Return the number of the OSError of a call."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return None


def write(system: FileSystem, path: Path, data: bytes) -> None:
    file = system.open(path, "x")
    file.pwrite([data], 0)
    file.close()


def test_files_are_written_at_any_position(system: FileSystem, tmp_path: Path) -> None:
    file = system.open(tmp_path / "f", "x")
    file.pwrite([b"ab", memoryview(b"cd")], 2)
    assert (file.pread(9, 0), file.pread(1, 3), file.pread(5, 6)) == (b"\0\0abcd", b"b", b"")
    file.pwrite([b"X"], 3)
    file.allocate(8)
    file.allocate(2)
    assert (file.size(), system.read(tmp_path / "f")) == (8, b"\0\0aXcd\0\0")
    file.truncate(3)
    file.truncate(4)
    file.datasync()
    assert system.read(tmp_path / "f") == b"\0\0a\0"
    assert file.is_alone()
    other = system.open(tmp_path / "f", "r+")
    other.close()
    other.close()
    with pytest.raises(ValueError, match="closed"):
        other.pread(1, 0)
    system.remove(tmp_path / "f")
    assert file.is_alone(names=0)
    assert file.pread(9, 0) == b"\0\0a\0"
    file.close()


def test_two_that_have_a_file_are_not_alone(system: FileSystem, tmp_path: Path) -> None:
    one, two = system.open(tmp_path / "f", "x"), system.open(tmp_path / "f", "r")
    assert not one.is_alone()
    two.close()
    assert one.is_alone()
    one.close()


def test_errors(system: FileSystem, tmp_path: Path) -> None:
    write(system, tmp_path / "f", b"")
    system.make_directory(tmp_path / "d" / "e")
    there, gone, below = tmp_path / "f", tmp_path / "g", tmp_path / "f" / "x"
    assert number(system.open, there, "x") == errno.EEXIST
    assert number(system.open, gone, "r") == number(system.open, gone, "r+") == errno.ENOENT
    assert number(system.open, tmp_path / "d", "r") == errno.EISDIR
    assert number(system.open, below, "x") == errno.ENOTDIR
    assert number(system.open, gone / "x", "x") == errno.ENOENT
    assert number(system.read, gone) == number(system.remove, gone) == errno.ENOENT
    assert number(system.list, gone) == number(system.sync_directory, gone) == errno.ENOENT
    assert number(system.list, there) == errno.ENOTDIR
    assert number(system.replace, gone, there) == errno.ENOENT
    assert number(system.replace, there, tmp_path / "d") == errno.EISDIR
    assert number(system.replace, tmp_path / "d", there) == errno.ENOTDIR
    write(system, tmp_path / "d" / "e" / "f", b"")
    assert number(system.replace, tmp_path / "d" / "e", tmp_path / "d") == errno.ENOTEMPTY
    assert number(system.make_directory, there) in (errno.EEXIST, errno.ENOTDIR)
    assert number(system.anchor, gone) == errno.ENOENT
    assert number(system.view_cell, gone, 1) == number(system.view_cell, there, 1) == errno.ENOENT
    assert system.lock_shared(gone) is None


def test_names(system: FileSystem, tmp_path: Path) -> None:
    assert system.make_directory(tmp_path / "a" / "b")
    assert not system.make_directory(tmp_path / "a")
    write(system, tmp_path / "a" / "f", b"1")
    write(system, tmp_path / "a" / "g", b"2")
    assert sorted(system.list(tmp_path / "a")) == ["b", "f", "g"]
    assert system.list_directories(tmp_path / "a") == ["b"]
    system.replace(tmp_path / "a" / "f", tmp_path / "a" / "g")
    system.replace(tmp_path / "a", tmp_path / "c")
    assert system.read(tmp_path / "c" / ".." / "c" / "g") == b"1"
    system.sync_directory(tmp_path / "c")
    system.remove_tree(tmp_path / "c")
    system.remove_tree(tmp_path / "c")
    assert system.list(tmp_path) == []
    assert system.free_bytes(tmp_path) > 0


def test_an_anchor_stays_with_its_directory(system: FileSystem, tmp_path: Path) -> None:
    system.make_directory(tmp_path / "a" / "below")
    held = system.anchor(tmp_path / "a")
    below = held.anchor(tmp_path / "a" / "below")
    write(below, tmp_path / "a" / "below" / "f", b"1")
    system.replace(tmp_path / "a", tmp_path / "moved")
    system.make_directory(tmp_path / "a")
    write(held, tmp_path / "a" / "f", b"2")
    assert system.list(tmp_path / "a") == []
    assert system.read(tmp_path / "moved" / "f") == b"2"
    assert below.read(tmp_path / "a" / "below" / "f") == b"1"
    system.replace(tmp_path / "moved" / "below", tmp_path / "moved" / "elsewhere")
    assert number(below.read, tmp_path / "a" / "below" / "f") == errno.ESTALE
    system.remove_tree(tmp_path / "moved")
    assert number(held.open, tmp_path / "a" / "g", "x") == errno.ENOENT
    for one, path in ((below, tmp_path / "a" / "below"), (held, tmp_path / "a")):
        one.close()
        one.close()
        assert number(one.list, path) is not None


def test_locks(system: FileSystem, tmp_path: Path) -> None:
    lock = system.lock(tmp_path / "l", "me, 7")
    with pytest.raises(WalLockedError, match="me, 7"):
        system.lock(tmp_path / "l", "you")
    lock.describe("me again")
    with pytest.raises(WalLockedError, match="me again"):
        system.lock_shared(tmp_path / "l")
    lock.release()
    lock.release()
    shared = [system.lock_shared(tmp_path / "l") for _ in range(2)]
    with pytest.raises(WalLockedError):
        system.lock(tmp_path / "l", "you")
    for one in shared:
        assert one is not None
        one.release()
    system.lock(tmp_path / "l", "you").release()


def test_cells(system: FileSystem, tmp_path: Path) -> None:
    cell = system.cell(tmp_path / "c", 4)
    view = system.view_cell(tmp_path / "c", 4)
    cell.store(b"abcd")
    assert (view.load(), view.is_current()) == (b"abcd", True)
    system.remove(tmp_path / "c")
    assert not view.is_current()
    with pytest.raises(FileNotFoundError):
        cell.store(b"efgh")
    view.close()
    assert view.load() == b""
    cell.close()
    cell.store(b"ijkl")


async def test_a_log_lives_in_it(system: FileSystem, tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with Wal.open(path, fs=system, settings=SMALL) as wal:
        for number in range(20):
            await wal.append(bytes([number]) * 10_000)
        async with wal.transaction() as transaction:
            await transaction.append(b"last", stream="s")
        with pytest.raises(WalLockedError):
            await Wal.open(path, fs=system)
        cursor = await wal.cursor("billing")
        await cursor.commit(5)
        async with wal.group("workers") as group:
            await group.ack(await group.fetch(3))
        async with Wal.open_readonly(path, fs=system) as readonly:
            assert readonly.limit == 22
    async with Wal.open(path, fs=system, settings=SMALL) as wal:
        assert (wal.head, wal.tail) == (1, 22)
        assert await wal.trim(2) == 2
        assert [record.value async for record in wal.reader(21, follow=False)] == [b"last"]
        assert [one.floor for one in await wal.groups()] == [4]
    assert path.exists() == isinstance(system, PosixFileSystem)


async def test_a_store_of_logs_lives_in_it() -> None:
    fs = MemoryFileSystem()
    async with WalStore.open("/nowhere/store", fs=fs) as store:
        await (await store.wal("orders")).append(b"1")
        assert await store.logs() == ["orders"]
        await store.delete("orders")
        assert await store.logs() == []


async def test_it_may_fail_and_be_full() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    wal = await Wal.open("/log", fs=fs)
    fs.fail("datasync", errno.EIO)
    with pytest.raises(OutcomeUnknownError):
        await wal.append(b"1")
    with pytest.raises(WalClosedError):
        await wal.aclose()
