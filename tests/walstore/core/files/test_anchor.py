"""File systems that are bound to a directory: where their names are looked up."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tests.local import open_descriptors
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import FileSystem
from walstore.testing import Call, FaultyFileSystem, PowerLossFileSystem


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with one file."""
    path = tmp_path / "home"
    path.mkdir()
    (path / "file").write_bytes(b"ours")
    return path


def use(fs: FileSystem, path: Path) -> None:
    """Make each call that takes a path once, and clean up."""
    fs.make_directory(path / "below" / "deeper")
    file = fs.open(path / "new", "x")
    file.pwrite([b"text"], 0)
    file.datasync()
    file.close()
    fs.replace(path / "new", path / "below" / "other")
    fs.sync_directory(path)
    assert fs.read(path / "below" / "other") == b"text"
    assert sorted(fs.list(path / "below")) == ["deeper", "other"]
    assert "below" in fs.list_directories(path)
    fs.lock(path / "LOCK", "me").release()
    shared = fs.lock_shared(path / "LOCK")
    assert shared is not None
    shared.release()
    cell = fs.cell(path / "cell", 8)
    cell.store(b"12345678")
    view = fs.view_cell(path / "cell", 8)
    assert (view.load(), view.is_current()) == (b"12345678", True)
    view.close()
    cell.close()
    assert fs.free_bytes(path) > 0
    for name in ("LOCK", "cell"):
        fs.remove(path / name)
    fs.remove_tree(path / "below")
    fs.remove_tree(path / "below")


def make_all(tmp_path: Path) -> list[FileSystem]:
    return [
        PosixFileSystem(),
        FaultyFileSystem(PosixFileSystem()),
        PowerLossFileSystem(tmp_path, PosixFileSystem()),
    ]


def test_every_call_follows_the_directory(tmp_path: Path, home: Path) -> None:
    for fs in make_all(tmp_path)[:2]:
        anchored = fs.anchor(home)
        moved = home.rename(tmp_path / "moved")
        home.mkdir()
        use(anchored, home)
        assert os.listdir(home) == []
        assert anchored.read(home / "file") == b"ours"
        anchored.close()
        home.rmdir()
        moved.rename(home)


def test_every_call_works_where_nothing_is_moved(tmp_path: Path, home: Path) -> None:
    for fs in make_all(tmp_path):
        anchored = fs.anchor(home)
        use(anchored, home)
        below = anchored.anchor(home)
        use(below, home)
        anchored.close()


def test_relative_paths_are_looked_up_once(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    anchored = PosixFileSystem().anchor(Path("home"))
    monkeypatch.chdir("/")
    use(anchored, Path("home"))
    assert anchored.list(Path("home")) == ["file"]
    anchored.close()


def test_the_working_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths of what is in it do not begin with its own."""
    monkeypatch.chdir(home)
    anchored = PosixFileSystem().anchor(Path())
    monkeypatch.chdir("/")
    use(anchored, Path())
    assert anchored.list(Path()) == ["file"]
    for path in (home, home / "file"):
        with pytest.raises(ValueError, match="not below"):
            anchored.list(path)
    anchored.close()


def test_the_parent_is_that_of_the_directory_itself(tmp_path: Path, home: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "link").symlink_to(home)
    anchored = PosixFileSystem().anchor(tmp_path / "far" / "link")
    assert anchored.list(tmp_path / "far" / "link" / "..") == PosixFileSystem().list(tmp_path)
    anchored.close()


def test_paths_elsewhere_are_refused(tmp_path: Path, home: Path) -> None:
    anchored = PosixFileSystem().anchor(home)
    for path in (tmp_path, tmp_path / "home2", Path("home")):
        with pytest.raises(ValueError, match="not below"):
            anchored.list(path)
    anchored.close()


def test_a_directory_below_is_known_again(tmp_path: Path, home: Path) -> None:
    (home / "log").mkdir()
    anchored = PosixFileSystem().anchor(home)
    before = open_descriptors(tmp_path)
    logs = [anchored.anchor(home / "log") for _ in range(3)]
    assert open_descriptors(tmp_path) == before
    home.rename(tmp_path / "moved")
    for log in logs:
        use(log, home / "log")
    (tmp_path / "moved" / "log").rename(tmp_path / "moved" / "elsewhere")
    for replaced in (False, True):
        if replaced:
            (tmp_path / "moved" / "log").mkdir()
        for log in logs:
            with pytest.raises(OSError, match="moved") as caught:
                log.open(home / "log" / "file", "x")
            assert caught.value.errno == errno.ESTALE
    (tmp_path / "moved" / "log").rmdir()
    (tmp_path / "moved" / "elsewhere").rename(tmp_path / "moved" / "log")
    use(logs[0], home / "log")
    anchored.close()


def test_a_directory_that_is_removed(tmp_path: Path, home: Path) -> None:
    anchored = PosixFileSystem().anchor(home)
    file = anchored.open(home / "file", "r+")
    anchored.remove_tree(home / "nothing")
    (home / "file").unlink()
    home.rmdir()
    home.mkdir()
    for act in (
        lambda: anchored.list(home),
        lambda: anchored.open(home / "new", "x"),
        lambda: anchored.make_directory(home / "cursors"),
        lambda: anchored.lock(home / "LOCK", "me"),
        file.datasync,
    ):
        with pytest.raises(FileNotFoundError):
            act()
    assert os.listdir(home) == []
    file.close()
    anchored.close()


def test_closing_waits_for_no_call_and_leaves_none_without_its_directory(
    tmp_path: Path, home: Path
) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    anchored = PosixFileSystem().anchor(home)
    inside, go_on = threading.Event(), threading.Event()

    def list_slowly() -> None:
        with anchored._anchor.at(home) as (descriptor, _):
            inside.set()
            assert go_on.wait(30)
            assert os.listdir(descriptor) == ["file"]

    thread = threading.Thread(target=list_slowly)
    thread.start()
    assert inside.wait(30)
    anchored.close()
    anchored.close()
    with pytest.raises(OSError, match="closed") as caught:
        anchored.list(home)
    assert caught.value.errno == errno.EBADF
    go_on.set()
    thread.join()
    assert open_descriptors(tmp_path) == []
    assert faulty.calls == ()


def test_faults_and_calls_are_shared(home: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    anchored = faulty.anchor(home)
    faulty.fail("read", times=2)
    for fs in (faulty, anchored):
        with pytest.raises(OSError, match="Input/output"):
            fs.read(home / "file")
    faulty.limit_space(2)
    with pytest.raises(OSError, match="No space"):
        anchored.open(home / "new", "x").pwrite([b"four"], 0)
    faulty.heal()
    assert anchored.read(home / "file") == b"ours"
    assert Call("read", home / "file") in faulty.calls
    faulty.fail("anchor", happened=True)
    with pytest.raises(OSError, match="Input/output"):
        faulty.anchor(home)
    anchored.close()


def test_what_a_subclass_keeps_is_shared(home: Path) -> None:
    class Disk(PosixFileSystem):
        def __init__(self, free: int) -> None:
            self.free = free

        def free_bytes(self, path: Path) -> int:
            return self.free

    disk = Disk(1)
    anchored = disk.anchor(home)
    disk.free = 2
    assert anchored.free_bytes(home) == 2
    anchored.close()


def test_errors_name_the_whole_path(home: Path) -> None:
    anchored = PosixFileSystem().anchor(home)
    for act in (anchored.read, anchored.remove, anchored.list):
        with pytest.raises(FileNotFoundError, match=str(home / "gone")):
            act(home / "gone")
    anchored.close()
