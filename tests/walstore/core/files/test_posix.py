"""The real file system: what the ports promise, on real files."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from walstore.core.files import posix
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import FileSystem
from walstore.errors import WalLockedError


@pytest.fixture
def system() -> PosixFileSystem:
    """The file system under test."""
    return PosixFileSystem()


def test_it_is_a_file_system(system: PosixFileSystem) -> None:
    port: FileSystem = system
    assert port is system


# -- files ----------------------------------------------------------------------------------------


def test_pieces_are_written_back_to_back(system: PosixFileSystem, tmp_path: Path) -> None:
    file = system.open(tmp_path / "a", "x")
    file.pwrite([b"ab", b"", bytearray(b"cd"), memoryview(b"xefx")[1:3]], 3)
    assert (tmp_path / "a").read_bytes() == b"\0\0\0abcdef"
    file.pwrite([], 100)
    assert file.size() == 9
    file.close()


def test_more_pieces_than_one_call_takes(system: PosixFileSystem, tmp_path: Path) -> None:
    pieces = [b"%05d" % number for number in range(5000)]
    file = system.open(tmp_path / "a", "x")
    file.pwrite(pieces, 0)
    assert file.pread(1 << 20, 0) == b"".join(pieces)
    file.close()


def test_pieces_may_be_of_any_item_size(system: PosixFileSystem, tmp_path: Path) -> None:
    file = system.open(tmp_path / "a", "x")
    file.pwrite([memoryview(bytes(range(16))).cast("I"), b"end"], 0)
    assert (tmp_path / "a").read_bytes() == bytes(range(16)) + b"end"
    file.close()


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7])
def test_short_writes_and_reads_are_continued(
    system: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The system may take or give fewer bytes than asked; here it never does more than a few."""
    pwritev, pread = os.pwritev, os.pread

    def few_written(fd, views, position):
        return pwritev(fd, [b"".join(views)[:most]], position)

    monkeypatch.setattr(posix.os, "pwritev", few_written)
    monkeypatch.setattr(posix.os, "pread", lambda fd, size, at: pread(fd, min(size, most), at))
    file = system.open(tmp_path / "a", "x")
    file.pwrite([b"abc", b"defgh", b"i"], 0)
    assert (tmp_path / "a").read_bytes() == b"abcdefghi"
    assert file.pread(7, 1) == b"bcdefgh"
    assert file.pread(100, 1) == b"bcdefghi"
    file.close()


def test_a_full_disk_is_told_with_what_was_written(
    system: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev

    def full_after_four(fd, views, position):
        if position >= 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(fd, [b"".join(views)[: 4 - position]], position)

    monkeypatch.setattr(posix.os, "pwritev", full_after_four)
    file = system.open(tmp_path / "a", "x")
    with pytest.raises(OSError, match="No space left"):
        file.pwrite([b"abc", b"def"], 0)
    assert (tmp_path / "a").read_bytes() == b"abcd"
    file.close()


def test_reading_stops_at_the_end(system: PosixFileSystem, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcdef")
    file = system.open(tmp_path / "a", "r")
    assert (file.pread(3, 0), file.pread(100, 4), file.pread(1, 6), file.pread(1, 99)) == (
        b"abc",
        b"ef",
        b"",
        b"",
    )
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwrite([b"x"], 0)
    file.close()


def test_reserving_makes_longer_never_shorter(system: PosixFileSystem, tmp_path: Path) -> None:
    file = system.open(tmp_path / "a", "x")
    file.pwrite([b"abc"], 0)
    file.allocate(8192)
    assert (file.size(), file.pread(5, 0)) == (8192, b"abc\0\0")
    file.allocate(100)
    assert file.size() == 8192
    file.truncate(2)
    assert file.pread(10, 0) == b"ab"
    file.datasync()
    file.close()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_without_support_reserving_makes_a_sparse_file(
    system: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(posix.os, "posix_fallocate", refuse)
    file = system.open(tmp_path / "a", "x")
    file.allocate(100)
    file.allocate(50)
    assert file.size() == 100
    file.close()


def test_a_full_disk_is_told_when_reserving(
    system: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(posix.os, "posix_fallocate", refuse)
    file = system.open(tmp_path / "a", "x")
    with pytest.raises(OSError, match="No space left"):
        file.allocate(100)
    file.close()


def test_closing_twice_is_allowed_and_use_after_it_is_not(
    system: PosixFileSystem, tmp_path: Path
) -> None:
    file = system.open(tmp_path / "a", "x")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.size()


def test_modes(system: PosixFileSystem, tmp_path: Path) -> None:
    path = tmp_path / "a"
    for mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError):
            system.open(path, mode)
    system.open(path, "x").close()
    with pytest.raises(FileExistsError):
        system.open(path, "x")
    file = system.open(path, "r+")
    file.pwrite([b"abc"], 0)
    file.close()
    assert path.read_bytes() == b"abc"


LIST_DESCRIPTORS = """
import os
for name in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{name}"):
        print(os.readlink(f"/proc/self/fd/{name}"))
"""


def test_descriptors_do_not_reach_child_processes(system: PosixFileSystem, tmp_path: Path) -> None:
    file = system.open(tmp_path / "a", "x")
    lock = system.lock(tmp_path / "LOCK", "me")
    command = [sys.executable, "-c", LIST_DESCRIPTORS]
    out = subprocess.run(command, close_fds=False, capture_output=True, text=True, check=True)
    assert "/dev/null" in out.stdout or "pipe:" in out.stdout
    assert str(tmp_path) not in out.stdout
    lock.release()
    file.close()


# -- names ----------------------------------------------------------------------------------------


def test_directories_are_made_with_their_parents(system: PosixFileSystem, tmp_path: Path) -> None:
    system.make_directory(tmp_path / "a" / "b" / "c")
    system.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_directory_is_synced_into_its_parent(
    system: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(system, "sync_directory", synced.append)
    system.make_directory(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]


def test_a_relative_directory_can_be_made(
    system: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    system.make_directory(Path("a/b"))
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_on_which_another_one_holds_a_lease_is_opened_after_it(
    system: PosixFileSystem, tmp_path: Path
) -> None:
    """As the writer does for a moment, to see that nobody else has a segment that it would recycle."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    held = os.open(path, os.O_RDWR)
    waited = []

    def give_back(*_: object) -> None:
        waited.append(True)
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    before = signal.signal(signal.SIGURG, give_back)
    try:
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with ThreadPoolExecutor(1) as other:
            assert other.submit(system.read, path).result(timeout=40) == b"content"
    finally:
        signal.signal(signal.SIGURG, before)
        os.close(held)
    assert waited


def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(
    system: PosixFileSystem, tmp_path: Path
) -> None:
    """An open that waits for somebody who writes to it would hold a thread for ever."""
    os.mkfifo(tmp_path / "pipe")
    for read in (system.read, lambda path: system.open(path, "r")):
        with pytest.raises(IsADirectoryError, match="Not a regular file"):
            read(tmp_path / "pipe")


def test_a_file_in_the_way_of_a_directory_is_an_error(
    system: PosixFileSystem, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        system.make_directory(tmp_path / "file" / "log")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        system.make_directory(tmp_path / "file")


def test_names(system: PosixFileSystem, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    assert sorted(system.list(tmp_path)) == ["a", "b"]
    system.replace(tmp_path / "a", tmp_path / "b")
    system.sync_directory(tmp_path)
    assert (system.list(tmp_path), system.read(tmp_path / "b")) == (["b"], b"1")
    system.remove(tmp_path / "b")
    assert system.list(tmp_path) == []
    for act in (system.remove, system.read, system.list, system.sync_directory):
        with pytest.raises(FileNotFoundError):
            act(tmp_path / "b")


def test_free_space(system: PosixFileSystem, tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert 0 < system.free_bytes(tmp_path) <= found.f_blocks * found.f_frsize


# -- lock and cell --------------------------------------------------------------------------------


def test_one_lock_at_a_time(system: PosixFileSystem, tmp_path: Path) -> None:
    first = system.lock(tmp_path / "LOCK", "pid 7 since a long time")
    (tmp_path / "other name").hardlink_to(tmp_path / "LOCK")
    with pytest.raises(WalLockedError, match=r"already .*pid 7.* use that one") as caught:
        system.lock(tmp_path / "other name", "pid 8")
    assert (caught.value.path, caught.value.owner) == (str(tmp_path), "pid 7 since a long time")
    assert caught.value.__cause__ is None
    first.release()
    first.release()
    second = system.lock(tmp_path / "LOCK", "pid 8")
    assert (tmp_path / "LOCK").read_bytes().rstrip() == b"pid 8"
    second.release()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_lock_that_cannot_be_signed_is_given_back_but_for_want_of_space(
    system: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """On a full disk it has no note, and is held: the log must be trimmed."""

    def fail(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(posix.os, "pwrite", fail)
        if code == errno.ENOSPC:
            held = system.lock(tmp_path / "LOCK", "me")
            with pytest.raises(WalLockedError) as caught:
                system.lock(tmp_path / "LOCK", "other")
            assert caught.value.owner is None
            held.release()
        else:
            with pytest.raises(OSError, match=os.strerror(code)):
                system.lock(tmp_path / "LOCK", "me")
    system.lock(tmp_path / "LOCK", "me").release()


def test_a_lock_does_not_survive_its_process(system: PosixFileSystem, tmp_path: Path) -> None:
    system.lock(tmp_path / "LOCK", "me").release()
    program = """
import pathlib, sys
from walstore.core.files.posix import PosixFileSystem
lock = PosixFileSystem().lock(pathlib.Path(sys.argv[1]), "child")
print("locked", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "LOCK")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(WalLockedError, match=r"elsewhere .child.*close it there"):
            system.lock(tmp_path / "LOCK", "me")
        child.kill()
        child.wait()
        system.lock(tmp_path / "LOCK", "me").release()


def test_a_cell_is_viewed_without_being_changed(system: PosixFileSystem, tmp_path: Path) -> None:
    path = tmp_path / "cell"
    with pytest.raises(FileNotFoundError):
        system.view_cell(path, 16)
    path.write_bytes(b"short")  # its writer is just making it
    with pytest.raises(FileNotFoundError):
        system.view_cell(path, 16)
    cell = system.cell(path, 16)
    view = system.view_cell(path, 16)
    cell.store(b"abc")
    assert view.load() == b"abcrt" + bytes(11)
    assert view.is_current()
    path.rename(tmp_path / "moved")
    assert not view.is_current()
    path.write_bytes(bytes(16))
    assert not view.is_current(), "another file of that name"
    with pytest.raises(FileNotFoundError, match="removed or replaced"):
        (tmp_path / "moved").unlink()
        cell.store(b"x")
    assert view.load() == b"xbcrt" + bytes(11), "what was open stays open"
    view.close()
    view.close()
    assert view.load() == b""
    cell.close()


def test_a_cell_that_is_cut_short_kills_nobody(system: PosixFileSystem, tmp_path: Path) -> None:
    """As ``cp`` and ``rsync --inplace`` do: a memory map would end both processes with SIGBUS."""
    path = tmp_path / "cell"
    cell = system.cell(path, 16)
    cell.store(b"0123456789abcdef")
    view = system.view_cell(path, 16)
    os.truncate(path, 0)
    assert view.load() == b""
    os.truncate(path, 5)
    assert view.load() == bytes(5)
    assert view.is_current()
    cell.store(b"again")
    assert view.load() == b"again"
    cell.store(b"0123456789abcdef")
    assert view.load() == b"0123456789abcdef"
    view.close()
    cell.close()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_look_where_the_system_cannot_refuse_to_wait(
    system: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    preadv = os.preadv

    def without_flags(fd, buffers, position, flags=0):
        if flags:
            raise OSError(number, os.strerror(number))
        return preadv(fd, buffers, position)

    monkeypatch.setattr(posix.os, "preadv", without_flags)
    cell = system.cell(tmp_path / "cell", 8)
    view = system.view_cell(tmp_path / "cell", 8)
    cell.store(b"12345678")
    assert (view.load(), view.load()) == (b"12345678", b"12345678")
    view.close()
    cell.close()


def test_a_look_that_would_have_to_wait_finds_nothing_new(
    system: PosixFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = system.cell(tmp_path / "cell", 8)
    cell.store(b"12345678")
    view = system.view_cell(tmp_path / "cell", 8)

    def would_wait(*_):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(posix.os, "preadv", would_wait)
    assert view.load() == b"12345678"
    view.close()
    cell.close()


def test_nothing_is_written_through_a_symbolic_link(
    system: PosixFileSystem, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"somebody's file")
    for target in (victim, tmp_path / "nothing"):
        (tmp_path / "link").symlink_to(target)
        for act in (
            lambda: system.lock(tmp_path / "link", "me"),
            lambda: system.lock_shared(tmp_path / "link"),
            lambda: system.cell(tmp_path / "link", 8),
            lambda: system.view_cell(tmp_path / "link", 8),
            lambda: system.open(tmp_path / "link", "r+"),
        ):
            with pytest.raises(OSError, match="symbolic link") as caught:
                act()
            assert (caught.value.errno, caught.value.filename) == (
                errno.ELOOP,
                str(tmp_path / "link"),
            )
        (tmp_path / "link").unlink()
    assert victim.read_bytes() == b"somebody's file"
    assert not (tmp_path / "nothing").exists()


def test_a_cell_is_seen_by_others(system: PosixFileSystem, tmp_path: Path) -> None:
    cell = system.cell(tmp_path / "cell", 16)
    assert (tmp_path / "cell").read_bytes() == bytes(16)
    cell.store(b"abc")
    assert (tmp_path / "cell").read_bytes() == b"abc" + bytes(13)
    again = system.cell(tmp_path / "cell", 16)
    assert (tmp_path / "cell").read_bytes() == b"abc" + bytes(13)
    again.store(b"xyz")
    cell.close()
    cell.close()
    again.close()
    assert (tmp_path / "cell").read_bytes() == b"xyz" + bytes(13)


def test_a_cell_that_is_too_short_is_made_longer(system: PosixFileSystem, tmp_path: Path) -> None:
    (tmp_path / "cell").write_bytes(b"ab")
    system.cell(tmp_path / "cell", 8).close()
    assert (tmp_path / "cell").read_bytes() == b"ab" + bytes(6)


def test_nothing_leaks(system: PosixFileSystem, tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    file = system.open(tmp_path / "a", "x")
    cell = system.cell(tmp_path / "cell", 8)
    lock = system.lock(tmp_path / "LOCK", "me")
    with pytest.raises(WalLockedError):
        system.lock(tmp_path / "LOCK", "you")
    system.sync_directory(tmp_path)
    for item in (file, cell):
        item.close()
    lock.release()
    assert os.listdir("/proc/self/fd") == before


def test_shared_locks_exclude_exclusive_ones_only(system: PosixFileSystem, tmp_path: Path) -> None:
    assert system.lock_shared(tmp_path / "LOCK") is None
    assert os.listdir(tmp_path) == []
    system.lock(tmp_path / "LOCK", "me").release()
    one, two = (system.lock_shared(tmp_path / "LOCK") for _ in range(2))
    assert one is not None
    assert two is not None
    with pytest.raises(WalLockedError):
        system.lock(tmp_path / "LOCK", "you")
    one.release()
    two.release()
    lock = system.lock(tmp_path / "LOCK", "you")
    with pytest.raises(WalLockedError, match="you"):
        system.lock_shared(tmp_path / "LOCK")
    lock.release()


def test_directories_are_listed_and_deleted_with_all_in_them(
    system: PosixFileSystem, tmp_path: Path
) -> None:
    system.make_directory(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "file").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert list(system.list_directories(tmp_path)) == ["a"]
    system.remove_tree(tmp_path / "a")
    system.remove_tree(tmp_path / "a")
    assert list(system.list_directories(tmp_path)) == []
    with pytest.raises(FileNotFoundError):
        system.list_directories(tmp_path / "a")


def test_a_small_file_is_read_whole(system: PosixFileSystem, tmp_path: Path) -> None:
    for size in (0, 1, 5000):
        (tmp_path / "a").write_bytes(bytes(size))
        assert system.read(tmp_path / "a") == bytes(size)
    with pytest.raises(FileNotFoundError):
        system.read(tmp_path / "b")
