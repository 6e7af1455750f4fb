"""FaultyFileSystem: each fault does what it says to the file below, and nothing unasked."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from walstore import Wal
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import FileSystem
from walstore.errors import WalLockedError
from walstore.testing import FaultyFileSystem


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of a test lies."""
    return tmp_path / "a.wal"


def failing(number: int):
    """Expect an OSError with that errno."""
    return pytest.raises(OSError, match=rf"^\[Errno {number}\]")


def test_without_rules_it_is_the_file_system_below(
    faulty: FaultyFileSystem, tmp_path: Path
) -> None:
    system: FileSystem = faulty
    directory = tmp_path / "log"
    system.make_directory(directory)
    file = system.open(directory / "a", "x")
    file.allocate(4096)
    file.pwrite([b"abc", memoryview(b"def")], 10)
    file.datasync()
    assert (file.size(), file.pread(6, 10)) == (4096, b"abcdef")
    file.truncate(16)
    file.close()
    file.close()
    system.replace(directory / "a", directory / "b")
    system.sync_directory(directory)
    assert system.list(directory) == ["b"]
    assert system.read(directory / "b") == bytes(10) + b"abcdef"
    cell = system.cell(directory / "cell", 8)
    cell.store(b"12345678")
    cell.close()
    assert (directory / "cell").read_bytes() == b"12345678"
    assert system.free_bytes(directory) > 0
    lock = system.lock(directory / "LOCK", "me")
    with pytest.raises(WalLockedError):
        system.lock(directory / "LOCK", "you")
    lock.release()
    system.remove(directory / "b")
    assert sorted(os.listdir(directory)) == ["LOCK", "cell"]


def test_the_nth_call_of_a_kind_fails_once(faulty: FaultyFileSystem, path: Path) -> None:
    faulty.fail("datasync", errno.EIO, nth=2)
    file = faulty.open(path, "x")
    file.datasync()
    with failing(errno.EIO):
        file.datasync()
    file.datasync()


def test_a_fault_may_last(faulty: FaultyFileSystem, path: Path) -> None:
    faulty.fail("pwrite", errno.ENOSPC, times=None)
    file = faulty.open(path, "x")
    for _ in range(3):
        with failing(errno.ENOSPC):
            file.pwrite([b"abc"], 0)
    assert path.read_bytes() == b""
    faulty.heal()
    file.pwrite([b"abc"], 0)
    assert path.read_bytes() == b"abc"


def test_a_write_may_fail_half_done(faulty: FaultyFileSystem, path: Path) -> None:
    faulty.fail("pwrite", errno.ENOSPC, written_bytes=5)
    file = faulty.open(path, "x")
    with failing(errno.ENOSPC):
        file.pwrite([b"abc", b"defg"], 2)
    assert path.read_bytes() == b"\0\0abcde"


@pytest.mark.parametrize("kind", ["pwrite", "datasync", "allocate", "truncate"])
def test_a_call_may_report_failure_though_it_happened(
    kind: str, faulty: FaultyFileSystem, path: Path
) -> None:
    file = faulty.open(path, "x")
    faulty.fail(kind, happened=True)
    act = {
        "pwrite": lambda: file.pwrite([b"x" * 100], 0),
        "datasync": file.datasync,
        "allocate": lambda: file.allocate(100),
        "truncate": lambda: file.truncate(100),
    }[kind]
    with failing(errno.EIO):
        act()
    assert path.stat().st_size == (0 if kind == "datasync" else 100)


def test_works_on_the_machines_files_by_default(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    faulty = FaultyFileSystem()
    assert faulty.read(tmp_path / "a") == b"abc"
    faulty.fail("read")
    with failing(errno.EIO):
        faulty.read(tmp_path / "a")


async def test_the_open_file_of_a_new_segment_has_its_first_name(tmp_path: Path) -> None:
    faulty = FaultyFileSystem()
    async with Wal.open(tmp_path, fs=faulty) as wal:
        await wal.append(b"value")
        assert faulty.count("pwrite", name="next.tmp")
        assert not faulty.count("pwrite", name="*.wal")
    before = faulty.count("pwrite", name="next.tmp")
    async with Wal.open(tmp_path, fs=faulty) as wal:
        await wal.append(b"value")
    assert faulty.count("pwrite", name="*.wal")
    assert faulty.count("pwrite", name="next.tmp") == before


def test_names_select_files(faulty: FaultyFileSystem, tmp_path: Path) -> None:
    faulty.fail("open", errno.EACCES, name="*.wal")
    faulty.open(tmp_path / "CHECKPOINT", "x").close()
    with pytest.raises(PermissionError):
        faulty.open(tmp_path / "1.wal", "x")
    assert os.listdir(tmp_path) == ["CHECKPOINT"]


def test_every_call_on_names_can_fail(faulty: FaultyFileSystem, path: Path) -> None:
    path.write_bytes(b"old")
    acts = {
        "open": lambda: faulty.open(path, "r+"),
        "list": lambda: faulty.list(path.parent),
        "make_directory": lambda: faulty.make_directory(path.parent / "new"),
        "read": lambda: faulty.read(path),
        "replace": lambda: faulty.replace(path, path.with_suffix(".new")),
        "remove": lambda: faulty.remove(path),
        "sync_directory": lambda: faulty.sync_directory(path.parent),
        "lock": lambda: faulty.lock(path.parent / "LOCK", "me"),
        "cell": lambda: faulty.cell(path.parent / "DURABLE", 8),
        "view_cell": lambda: faulty.view_cell(path.parent / "DURABLE", 8),
        "free_bytes": lambda: faulty.free_bytes(path.parent),
    }
    for kind, act in acts.items():
        faulty.fail(kind, errno.EACCES)
        with failing(errno.EACCES):
            act()
    assert os.listdir(path.parent) == ["a.wal"]
    assert path.read_bytes() == b"old"
    assert [call.kind for call in faulty.calls] == list(acts)


def test_every_call_on_files_and_cells_can_fail(faulty: FaultyFileSystem, path: Path) -> None:
    file = faulty.open(path, "x")
    cell = faulty.cell(path.with_name("cell"), 8)
    acts = {
        "pwrite": lambda: file.pwrite([b"abc"], 0),
        "pread": lambda: file.pread(1, 0),
        "datasync": file.datasync,
        "allocate": lambda: file.allocate(10),
        "truncate": lambda: file.truncate(10),
        "size": file.size,
        "store": lambda: cell.store(b"12345678"),
        "close": file.close,
    }
    for kind, act in acts.items():
        faulty.fail(kind)
        with failing(errno.EIO):
            act()
    cell.close()
    assert (path.read_bytes(), path.with_name("cell").read_bytes()) == (b"", bytes(8))


def test_a_result_that_nobody_gets_is_released(faulty: FaultyFileSystem, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for kind, act in {
        "open": lambda: faulty.open(tmp_path / "a", "x"),
        "lock": lambda: faulty.lock(tmp_path / "LOCK", "me"),
        "cell": lambda: faulty.cell(tmp_path / "cell", 8),
    }.items():
        faulty.fail(kind, happened=True)
        with failing(errno.EIO):
            act()
    assert sorted(os.listdir(tmp_path)) == ["LOCK", "a", "cell"]
    assert len(os.listdir("/proc/self/fd")) == before
    faulty.lock(tmp_path / "LOCK", "me").release()


def test_a_full_disk_takes_what_fits(faulty: FaultyFileSystem, tmp_path: Path) -> None:
    old = faulty.open(tmp_path / "old", "x")
    old.pwrite([b"x" * 600], 0)
    faulty.limit_space(1000)
    assert faulty.free_bytes(tmp_path) == 400

    new = faulty.open(tmp_path / "new", "x")
    new.pwrite([b"y" * 300], 0)
    with failing(errno.ENOSPC):
        new.pwrite([b"z" * 200], 300)
    assert (tmp_path / "new").read_bytes() == b"y" * 300 + b"z" * 100
    with failing(errno.ENOSPC):
        new.allocate(500)
    assert new.size() == 400
    new.pwrite([b"over"], 0)  # room that it has already

    faulty.remove(tmp_path / "old")
    new.allocate(1000)
    assert faulty.free_bytes(tmp_path) == 0
    new.truncate(10)
    assert faulty.free_bytes(tmp_path) == 990
    faulty.limit_space(None)
    assert faulty.free_bytes(tmp_path) > 990


def test_reserved_space_is_used_and_renames_keep_count(
    faulty: FaultyFileSystem, tmp_path: Path
) -> None:
    faulty.limit_space(1000)
    for name in ("a", "b"):
        faulty.open(tmp_path / name, "x").allocate(400)
    assert faulty.free_bytes(tmp_path) == 200
    faulty.replace(tmp_path / "a", tmp_path / "b")
    assert faulty.free_bytes(tmp_path) == 600
    file = faulty.open(tmp_path / "b", "r+")
    file.pwrite([b"x" * 600], 400)
    assert faulty.free_bytes(tmp_path) == 0


async def test_a_call_can_be_held(faulty: FaultyFileSystem, path: Path) -> None:
    file = await asyncio.to_thread(faulty.open, path, "x")
    with faulty.hold("pwrite") as held:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(asyncio.to_thread(file.pwrite, [b"abc"], 0))
            await held.wait_entered()
            assert (path.read_bytes(), task.done()) == (b"", False)
            held.release()
    assert path.read_bytes() == b"abc"


async def test_only_the_first_calls_can_be_held(faulty: FaultyFileSystem, path: Path) -> None:
    with faulty.hold("open", times=1) as held:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(asyncio.to_thread(faulty.open, path, "x"))
            await held.wait_entered()
            other = path.with_name("b")
            (await asyncio.to_thread(faulty.open, other, "x")).close()
            assert (other.exists(), path.exists()) == (True, False)
            held.release()
    task.result().close()


async def test_healing_releases_what_is_held(faulty: FaultyFileSystem, path: Path) -> None:
    held = faulty.hold("open", name="a.*")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.to_thread(faulty.open, path, "x"))
        await held.wait_entered()
        faulty.heal()
    task.result().close()


def test_a_hook_sees_each_call_before_it_happens(faulty: FaultyFileSystem, path: Path) -> None:
    seen = []

    def hook(call) -> None:
        seen.append((call, path.exists(), threading.current_thread().name))
        if call.kind == "datasync":
            raise RuntimeError("crashed here")

    faulty.before_each(hook)
    with ThreadPoolExecutor(1, thread_name_prefix="disk") as executor:
        file = executor.submit(faulty.open, path, "x").result()
        executor.submit(file.pwrite, [b"abc", b"d"], 7).result()
        with pytest.raises(RuntimeError, match="crashed here"):
            executor.submit(file.datasync).result()
    assert [(call.kind, there, name) for call, there, name in seen] == [
        ("open", False, "disk_0"),
        ("pwrite", True, "disk_0"),
        ("datasync", True, "disk_0"),
    ]
    assert faulty.calls[1] == ("pwrite", path, 7, 4)
    assert (faulty.count("*"), faulty.count("pwrite", name="*.wal"), faulty.count("read")) == (
        3,
        1,
        0,
    )


def test_calls_from_many_threads_are_all_counted(faulty: FaultyFileSystem, path: Path) -> None:
    file = faulty.open(path, "x")
    faulty.fail("pwrite", nth=11, times=20)
    failed = []

    def write(at: int) -> None:
        try:
            file.pwrite([b"x"], at)
        except OSError:
            failed.append(at)

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(write, range(200)))
    assert (len(failed), faulty.count("pwrite")) == (20, 200)


def test_it_can_stand_on_another_fake(tmp_path: Path) -> None:
    outer = FaultyFileSystem(FaultyFileSystem(PosixFileSystem()))
    outer.fail("list")
    with failing(errno.EIO):
        outer.list(tmp_path)


def test_calls_on_directories_and_shared_locks_can_fail(
    faulty: FaultyFileSystem, tmp_path: Path
) -> None:
    faulty.make_directory(tmp_path / "a")
    faulty.open(tmp_path / "a" / "file", "x").close()
    for kind, call in {
        "list_directories": lambda: faulty.list_directories(tmp_path),
        "remove_tree": lambda: faulty.remove_tree(tmp_path / "a"),
        "lock_shared": lambda: faulty.lock_shared(tmp_path / "a" / "file"),
    }.items():
        faulty.fail(kind)
        with failing(errno.EIO):
            call()
    assert list(faulty.list_directories(tmp_path)) == ["a"]
    lock = faulty.lock_shared(tmp_path / "a" / "file")
    assert lock is not None
    lock.release()
    faulty.fail("lock_shared", happened=True)
    with failing(errno.EIO):
        faulty.lock_shared(tmp_path / "a" / "file")
    faulty.lock(tmp_path / "a" / "file", "me").release()  # what was taken was given back
    assert faulty.lock_shared(tmp_path / "b") is None
    faulty.limit_space(0)
    faulty.remove_tree(tmp_path / "a")
    assert list(faulty.list_directories(tmp_path)) == []
