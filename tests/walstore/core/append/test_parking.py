"""Parking: a log's files are closed between two calls and nobody notices."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.local import SMALL, close_opened, draft_of, open_blocking, open_descriptors, read_opened
from walstore.core.append.log_state import TailError
from walstore.core.files.directory import load_checkpoint, read_cell
from walstore.core.files.open_files import ActiveCell, ActiveFile
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import FileSystem
from walstore.log.entered import enter_log
from walstore.log.opening import Opened, recover_log
from walstore.testing import FaultyFileSystem, ManualClock


def test_a_parked_log_has_nothing_open_and_goes_on(log_directory: Path) -> None:
    opened = open_blocking(log_directory, settings=SMALL)
    tail = opened.tail
    for n in range(1, 6):
        tail.commit([draft_of(n, b"%d" % n)], sync=True)
        tail.park()
        tail.park()
        assert [Path(name).name for name in open_descriptors(log_directory)] == ["LOCK"]
        cell = read_cell(PosixFileSystem(), log_directory)
        assert cell is not None
        assert cell.durable_limit == n + 1
    tail.rotate()
    tail.park()
    tail.checkpoint()
    tail.commit([draft_of(6, b"6")], sync=True)
    close_opened(opened)
    assert open_descriptors(log_directory) == []
    again = open_blocking(log_directory, settings=SMALL)
    assert (again.tail.durable_limit, again.recovery.scanned_bytes) == (7, 0)
    assert [record.value for record in read_opened(again)] == [b"%d" % n for n in range(1, 7)]
    close_opened(again)


def test_a_parked_log_holds_no_reserved_space(log_directory: Path) -> None:
    opened = open_blocking(log_directory, settings=SMALL)
    opened.tail.commit([draft_of(1, b"1")], sync=True)
    path = opened.tail.active.path
    assert path.stat().st_size == SMALL.segment_bytes
    opened.tail.park()
    assert path.stat().st_size < 1000
    opened.tail.commit([draft_of(2, b"2")], sync=True)
    assert path.stat().st_size == SMALL.segment_bytes
    close_opened(opened)


def test_closing_what_is_parked_and_unchanged_costs_no_call(log_directory: Path) -> None:
    close_opened(open_blocking(log_directory, settings=SMALL))
    faulty = FaultyFileSystem(PosixFileSystem())
    opened = open_deferring(log_directory, faulty)
    opened.tail.park()
    before = len(faulty.calls)
    opened.tail.close(clean=True)
    assert faulty.calls[before:] == ()
    opened.release()


def test_opening_what_was_closed_cleanly_syncs_the_checkpoint_only(log_directory: Path) -> None:
    opened = open_blocking(log_directory, settings=SMALL)
    opened.tail.commit([draft_of(1, b"1")], sync=True)
    close_opened(opened)
    faulty = FaultyFileSystem(PosixFileSystem())
    opened = open_blocking(log_directory, settings=SMALL, fs=faulty)
    assert [call.path.name for call in faulty.calls if call.kind == "datasync"] == [
        "CHECKPOINT.tmp"
    ]
    assert faulty.count("truncate") == 0
    close_opened(opened)
    assert faulty.count("datasync") == 2  # the checkpoint says that the log was closed
    opened = open_blocking(log_directory, settings=SMALL)
    assert opened.tail.epoch == 3
    opened.tail.uploaded_limit = 2
    close_opened(opened)  # something to remember
    opened = open_blocking(log_directory, settings=SMALL)
    assert opened.tail.uploaded_limit == 2
    close_opened(opened)


def open_deferring(directory: Path, fs: FileSystem | None = None) -> Opened:
    return recover_log(
        enter_log(directory, fs=fs or PosixFileSystem(), owner="test"),
        clock=ManualClock(),
        settings=SMALL,
        defers_epoch=True,
        make_log_id=lambda: b"identity of log ",
        tier_limit=1,
        tier_url=None,
    )


def changes(faulty: FaultyFileSystem) -> list[str]:
    harmless = ("read", "list", "open", "pread", "size", "close", "lock", "lock_shared")
    quiet = (*harmless, "anchor", "make_directory", "free_bytes")
    return [call.kind for call in faulty.calls if call.kind not in quiet]


def make_log(directory: Path) -> None:
    opened = open_deferring(directory)
    opened.tail.commit([draft_of(1, b"1")], sync=True)
    opened.tail.rotate()
    opened.tail.commit([draft_of(2, b"2")], sync=True)
    close_opened(opened)


def test_a_clean_log_is_opened_and_closed_without_writing(log_directory: Path) -> None:
    make_log(log_directory)
    faulty = FaultyFileSystem(PosixFileSystem())
    opened = open_deferring(log_directory, faulty)
    assert (opened.tail.epoch, opened.tail.durable_limit) == (2, 3)
    close_opened(opened)
    assert changes(faulty) == []
    opened = open_deferring(log_directory)
    assert opened.tail.epoch == 2  # nobody ever saw the one before
    close_opened(opened)


@pytest.mark.parametrize("first", ["commit", "rotate", "advance_head", "checkpoint"])
def test_the_epoch_is_durable_before_anything_carries_it(log_directory: Path, first: str) -> None:
    make_log(log_directory)
    faulty = FaultyFileSystem(PosixFileSystem())
    opened = open_deferring(log_directory, faulty)
    tail = opened.tail
    act = {
        "commit": lambda: tail.commit([draft_of(3, b"3")], sync=True),
        "rotate": tail.rotate,
        "advance_head": lambda: tail.advance_head(3),
        "checkpoint": tail.checkpoint,
    }[first]
    act()
    assert next(call.path.name for call in faulty.calls if call.kind == "replace") == "CHECKPOINT"
    found = load_checkpoint(PosixFileSystem(), log_directory)
    assert found is not None
    assert found.epoch == 2
    close_opened(opened)
    opened = open_deferring(log_directory)
    assert opened.tail.epoch == 3
    close_opened(opened)


def test_what_was_not_closed_cleanly_is_announced_at_once(log_directory: Path) -> None:
    make_log(log_directory)
    opened = open_deferring(log_directory)
    opened.tail.commit([draft_of(3, b"3")], sync=True)
    close_opened(opened, clean=False)
    faulty = FaultyFileSystem(PosixFileSystem())
    opened = open_deferring(log_directory, faulty)
    assert (opened.tail.epoch, opened.tail.durable_limit) == (3, 4)
    assert "replace" in changes(faulty)
    close_opened(opened)


@pytest.mark.parametrize("name", ["CHECKPOINT", "DURABLE"])
def test_a_log_without_checkpoint_or_cell_is_announced_at_once(
    log_directory: Path, name: str
) -> None:
    make_log(log_directory)
    (log_directory / name).unlink()
    opened = open_deferring(log_directory)
    assert (opened.tail.durable_limit, (log_directory / name).exists()) == (3, True)
    close_opened(opened)


@pytest.mark.parametrize("kind", ["open", "size"])
def test_a_file_that_cannot_be_opened_again_fails_the_commit(
    log_directory: Path, kind: str
) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    opened = open_blocking(log_directory, settings=SMALL, fs=faulty)
    opened.tail.commit([draft_of(1, b"1")], sync=True)
    opened.tail.park()
    faulty.fail(kind, errno.EMFILE, name="*.wal")
    with pytest.raises(TailError) as found:
        opened.tail.commit([draft_of(2, b"2")], sync=True)
    reached = found.value.reached
    assert (reached.outcome(3), reached.durable_limit) == ("not_written", 2)
    close_opened(opened, clean=False)


def make_file(path: Path, faulty: FaultyFileSystem) -> ActiveFile:
    return ActiveFile.create(faulty, path, [b"header"], 1 << 20)


def test_a_file_that_is_opened_again_in_vain_is_closed(log_directory: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    opened = open_blocking(log_directory, settings=SMALL, fs=faulty)
    opened.tail.park()
    faulty.fail("size", name="*.wal")
    with pytest.raises(TailError):
        opened.tail.commit([draft_of(1, b"1")], sync=True)
    opened.tail.close(clean=False)
    opened.release()
    assert open_descriptors(log_directory) == []


def test_what_is_not_synced_is_synced_before_parking(tmp_path: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    file = make_file(tmp_path / "a", faulty)
    file.write([b"frame"])
    before = faulty.count("datasync")
    file.park()
    assert faulty.count("datasync") == before + 1
    assert file.has_unsynced  # until its owner asks for the sync
    file.sync()
    assert not file.has_unsynced
    file.close()
    assert (tmp_path / "a").read_bytes()[:11] == b"headerframe"


def test_a_sync_that_fails_while_parking_is_not_forgotten(tmp_path: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    file = make_file(tmp_path / "a", faulty)
    file.write([b"frame"])
    faulty.fail("datasync", errno.EIO)
    file.park()
    for call in (file.sync, lambda: file.write([b"more"])):
        with pytest.raises(OSError) as found:
            call()
        assert found.value.errno == errno.EIO
    file.close()


def test_a_closed_file_is_not_opened_again(tmp_path: Path) -> None:
    file = make_file(tmp_path / "a", FaultyFileSystem(PosixFileSystem()))
    file.close()
    file.close()
    file.park()
    with pytest.raises(ValueError, match="closed"):
        file.write([b"more"])


def test_a_cell_is_open_from_a_store_on(tmp_path: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    cell = ActiveCell(faulty, tmp_path / "cell", 8)
    cell.store(b"1")
    cell.park()
    cell.park()
    cell.store(b"2")
    cell.store(b"3")
    assert faulty.count("cell") == 2
    cell.close()
    cell.close()
    cell.store(b"4")
    assert (tmp_path / "cell").read_bytes()[:1] == b"3"
