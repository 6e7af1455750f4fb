"""PowerLossFileSystem: what was synced survives every crash, and what was not may go in any way."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from walstore.core.files.posix import PosixFileSystem
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

SEEDS = range(40)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that loses power."""
    path = tmp_path / "log"
    path.mkdir()
    return path


@pytest.fixture
def system(root: Path) -> PowerLossFileSystem:
    """The file system under test."""
    return PowerLossFileSystem(root, PosixFileSystem())


@pytest.fixture
def crash(system: PowerLossFileSystem, tmp_path: Path) -> Callable[[int], dict[str, bytes]]:
    """Crash with a seed; return names and contents of what is left."""

    def act(seed: int) -> dict[str, bytes]:
        into = tmp_path / f"crashed-{seed}"
        system.crash(seed, into)
        return {
            str(path.relative_to(into)): path.read_bytes()
            for path in into.rglob("*")
            if path.is_file()
        }

    return act


def make_durable(system: PowerLossFileSystem, path: Path, content: bytes):
    """Create a file whose name and content are synced; return it open."""
    file = system.open(path, "x")
    file.pwrite([content], 0)
    file.datasync()
    system.sync_directory(path.parent)
    return file


def test_what_was_synced_survives_every_crash(system, root, crash) -> None:
    make_durable(system, root / "a", b"abc" * 1000)
    for seed in SEEDS:
        assert crash(seed) == {"a": b"abc" * 1000}


def test_files_from_before_are_durable(system, root, crash) -> None:
    (root / "old").write_bytes(b"old")
    (root / "sub").mkdir()
    (root / "sub" / "deep").write_bytes(b"deep")
    file = system.open(root / "old", "r+")
    file.pwrite([b"new"], 0)
    assert file.pread(3, 0) == b"new"
    assert crash(LOSE_ALL) == {"old": b"old", "sub/deep": b"deep"}
    assert crash(KEEP_ALL) == {"old": b"new", "sub/deep": b"deep"}


def test_sectors_survive_one_by_one(system, root, crash) -> None:
    file = make_durable(system, root / "a", b"-" * 4096)
    file.pwrite([b"x" * 2048], 100)
    outcomes = {crash(seed)["a"] for seed in SEEDS}
    assert len(outcomes) > 10
    for content in outcomes:
        assert (content[:100], content[2148:]) == (b"-" * 100, b"-" * 1948)
        for low, high in ((100, 512), (512, 1024), (1024, 1536), (1536, 2048), (2048, 2148)):
            assert len(set(content[low:high])) == 1


def test_lengths_survive_without_data_but_in_order(system, root, crash) -> None:
    file = make_durable(system, root / "a", b"")
    file.allocate(1024)
    file.pwrite([b"x" * 512], 0)
    file.pwrite([b"y" * 512], 1024)
    outcomes = {crash(seed)["a"] for seed in SEEDS}
    assert {len(content) for content in outcomes} == {0, 1024, 1536}
    assert bytes(1024) in outcomes
    for content in outcomes:
        assert content[:512] in (b"", bytes(512), b"x" * 512)
        assert content[1024:] in (b"", bytes(512), b"y" * 512)


def test_cutting_a_file_may_be_lost(system, root, crash) -> None:
    file = make_durable(system, root / "a", b"a" * 1024)
    file.truncate(100)
    assert {crash(seed)["a"] for seed in SEEDS} == {b"a" * 1024, b"a" * 100}


def test_a_cut_that_was_synced_is_not_lost(system, root, crash) -> None:
    file = make_durable(system, root / "a", b"a" * 1024)
    file.truncate(100)
    file.allocate(50)
    file.datasync()
    assert {crash(seed)["a"] for seed in SEEDS} == {b"a" * 100}


def test_a_new_file_needs_the_sync_of_its_directory(system, root, crash) -> None:
    file = system.open(root / "a", "x")
    file.pwrite([b"abc"], 0)
    file.datasync()
    outcomes = [crash(seed) for seed in SEEDS]
    assert {} in outcomes
    assert {"a": b"abc"} in outcomes
    assert all(found in ({}, {"a": b"abc"}) for found in outcomes)


def test_a_rename_is_never_half_done(system, root, crash) -> None:
    make_durable(system, root / "CHECKPOINT", b"old").close()
    file = system.open(root / "tmp", "x")
    file.pwrite([b"new"], 0)
    file.datasync()
    system.replace(root / "tmp", root / "CHECKPOINT")
    outcomes = [crash(seed) for seed in SEEDS]
    assert all(found["CHECKPOINT"] in (b"old", b"new") for found in outcomes)
    assert {"CHECKPOINT": b"old", "tmp": b"new"} in outcomes
    assert {"CHECKPOINT": b"old"} in outcomes
    assert {"CHECKPOINT": b"new"} in outcomes


def test_renaming_what_was_not_synced_loses_content(system, root, crash) -> None:
    file = system.open(root / "tmp", "x")
    file.pwrite([b"new"], 0)
    system.replace(root / "tmp", root / "CHECKPOINT")
    system.sync_directory(root)
    assert {crash(seed)["CHECKPOINT"] for seed in SEEDS} == {b"", bytes(3), b"new"}


def test_removals_and_names_need_the_sync_too(system, root, crash) -> None:
    (root / "a").write_bytes(b"a")
    (root / "b").write_bytes(b"b")
    system.remove(root / "a")
    system.sync_directory(root)
    system.remove(root / "b")
    assert crash(LOSE_ALL) == {"b": b"b"}
    assert crash(KEEP_ALL) == {}


def test_replacing_a_file_from_before_may_bring_it_back(system, root, crash) -> None:
    (root / "old").write_bytes(b"old")
    (root / "new").write_bytes(b"new")
    system.replace(root / "new", root / "old")
    assert crash(LOSE_ALL) == {"old": b"old", "new": b"new"}
    assert crash(KEEP_ALL) == {"old": b"new"}


def test_a_directory_sync_covers_only_its_own_names(system, root, crash) -> None:
    system.make_directory(root / "cursors")
    system.open(root / "cursors" / "c", "x")
    system.open(root / "a", "x")
    system.sync_directory(root / "cursors")
    assert crash(LOSE_ALL) == {"cursors/c": b""}


def test_a_cell_shows_any_of_its_stores(system, root, crash) -> None:
    cell = system.cell(root / "DURABLE", 2)
    system.sync_directory(root)
    for number in range(10, 20):
        cell.store(b"%d" % number)
    cell.close()
    assert (root / "DURABLE").read_bytes() == b"19"
    outcomes = {crash(seed)["DURABLE"] for seed in SEEDS}
    assert {bytes(2), b"19"} < outcomes
    assert outcomes <= {bytes(2), *(b"%d" % number for number in range(10, 20))}
    assert len(outcomes) > 3


def test_a_cell_from_before_keeps_its_content(system, root, crash) -> None:
    (root / "DURABLE").write_bytes(b"ab")
    system.cell(root / "DURABLE", 2).store(b"cd")
    assert crash(LOSE_ALL) == {"DURABLE": b"ab"}
    assert crash(KEEP_ALL) == {"DURABLE": b"cd"}


def test_a_seed_decides_alone(system, root, tmp_path) -> None:
    file = make_durable(system, root / "a", b"-" * 8192)
    file.pwrite([b"x" * 8192], 0)
    for number in (1, 2):
        system.crash(7, tmp_path / str(number))
    assert (tmp_path / "1" / "a").read_bytes() == (tmp_path / "2" / "a").read_bytes()


def test_without_power_every_call_fails_and_nothing_changes(system, root, crash) -> None:
    file = make_durable(system, root / "a", b"abc")
    cell = system.cell(root / "cell", 8)
    lock = system.lock(root / "LOCK", "me")
    crash(KEEP_ALL)
    for act in (
        lambda: system.open(root / "b", "x"),
        lambda: system.list(root),
        lambda: system.make_directory(root / "new"),
        lambda: system.read(root / "a"),
        lambda: system.replace(root / "a", root / "b"),
        lambda: system.remove(root / "a"),
        lambda: system.sync_directory(root),
        lambda: system.lock(root / "LOCK2", "me"),
        lambda: system.cell(root / "cell", 8),
        lambda: system.view_cell(root / "cell", 8),
        lambda: system.free_bytes(root),
        lambda: file.pwrite([b"x"], 0),
        lambda: file.pread(1, 0),
        file.datasync,
        lambda: file.allocate(10),
        lambda: file.truncate(0),
        file.size,
        lambda: cell.store(b"x"),
    ):
        with pytest.raises(OSError, match=rf"^\[Errno {errno.EIO}\]"):
            act()
    file.close()
    cell.close()
    lock.release()
    assert (root / "a").read_bytes() == b"abc"


def test_a_sync_that_fails_makes_nothing_durable(root, tmp_path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    system = PowerLossFileSystem(root, faulty)
    file = make_durable(system, root / "a", b"old")
    file.pwrite([b"new"], 0)
    faulty.fail("datasync")
    with pytest.raises(OSError, match="Errno 5"):
        file.datasync()
    system.crash(LOSE_ALL, tmp_path / "crashed")
    assert (tmp_path / "crashed" / "a").read_bytes() == b"old"


def test_a_file_open_for_reading_is_only_read(system, root) -> None:
    make_durable(system, root / "a", b"abc").close()
    file = system.open(root / "a", "r")
    assert (file.size(), file.pread(10, 1)) == (3, b"bc")
    with pytest.raises(OSError, match="Errno 9"):
        file.pwrite([b"x"], 0)
    assert system.read(root / "a") == b"abc"


def test_a_removed_tree_may_come_back_until_its_parents_are_synced(
    system: PowerLossFileSystem, root: Path, crash
) -> None:
    system.make_directory(root / "a")
    make_durable(system, root / "a" / "file", b"x").close()
    assert list(system.list_directories(root)) == ["a"]
    assert system.lock_shared(root / "LOCK") is None
    system.remove_tree(root / "a")
    assert list(system.list_directories(root)) == []
    assert crash(KEEP_ALL) == {}
    assert crash(LOSE_ALL) == {"a/file": b"x"}


def test_a_renamed_directory_keeps_its_files_under_one_of_its_names(
    system: PowerLossFileSystem, root: Path, crash
) -> None:
    system.make_directory(root / "a")
    make_durable(system, root / "a" / "file", b"x").close()
    system.open(root / "a" / "new", "x").close()
    system.replace(root / "a", root / "b")
    assert system.read(root / "b" / "file") == b"x"
    found = [crash(seed) for seed in SEEDS]
    assert found[LOSE_ALL] == {"a/file": b"x"}
    assert found[KEEP_ALL] == {"b/file": b"x", "b/new": b""}
    assert {"a/file": b"x", "a/new": b""} in found
    assert {"b/file": b"x"} in found


def test_a_synced_rename_of_a_directory_survives_every_crash(
    system: PowerLossFileSystem, root: Path, crash
) -> None:
    system.make_directory(root / "a")
    make_durable(system, root / "a" / "file", b"x").close()
    system.replace(root / "a", root / "b")
    make_durable(system, root / "b" / "more", b"y").close()
    system.sync_directory(root)
    assert all(crash(seed) == {"b/file": b"x", "b/more": b"y"} for seed in SEEDS)


def test_what_was_removed_from_a_renamed_directory_is_gone_under_its_old_name_too(
    system: PowerLossFileSystem, root: Path, crash
) -> None:
    system.make_directory(root / "a")
    make_durable(system, root / "a" / "file", b"x").close()
    make_durable(system, root / "a" / "rest", b"y").close()
    system.replace(root / "a", root / "b")
    system.remove(root / "b" / "file")
    system.sync_directory(root / "b")
    assert crash(LOSE_ALL) == {"a/rest": b"y"}
    assert crash(KEEP_ALL) == {"b/rest": b"y"}
