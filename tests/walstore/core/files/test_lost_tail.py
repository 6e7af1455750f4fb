"""What is missing from the end of a log, told without opening it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local import close_opened, draft_of, open_blocking
from walstore.care.verify.verifying import verify_directory
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.files.log_bounds import find_missing
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format import checkpoint
from walstore.core.format.ledger import Marks
from walstore.errors import LogNotFoundError

FS = PosixFileSystem()


@pytest.fixture
def log(log_directory: Path) -> Path:
    """A closed log of four batches, a record each."""
    opened = open_blocking(log_directory)
    for offset in range(1, 5):
        opened.tail.commit([draft_of(offset, b"value %d" % offset)])
    close_opened(opened)
    return log_directory


def _segment(log: Path) -> Path:
    (path,) = log.glob("*.wal")
    return path


def _batch_at(log: Path, number: int) -> int:
    data, at = _segment(log).read_bytes(), -1
    for _ in range(number):
        at = data.index(b"WBF1", at + 1)
    return at


def test_nothing(log: Path) -> None:
    assert find_missing(FS, log) is None


@pytest.mark.parametrize("number", [1, 3, 4])
@pytest.mark.parametrize("how", ["cut", "zeroed"])
@pytest.mark.parametrize("forgotten", [checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME])
def test_the_end_is_gone(log: Path, number: int, how: str, forgotten: str) -> None:
    (log / forgotten).unlink()
    path, at = _segment(log), _batch_at(log, number)
    data = path.read_bytes()
    path.write_bytes(data[:at] if how == "cut" else data[:at] + bytes(len(data) - at))
    assert find_missing(FS, log) == number
    opened = open_blocking(log)
    assert opened.recovery.missing_from == number
    close_opened(opened)
    assert find_missing(FS, log) is None


def test_nobody_knows_what_was_there(log: Path) -> None:
    for name in (checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME):
        (log / name).unlink()
    path = _segment(log)
    path.write_bytes(path.read_bytes()[: _batch_at(log, 3)])
    assert find_missing(FS, log) is None


def test_damage_is_something_else(log: Path) -> None:
    path = _segment(log)
    data = bytearray(path.read_bytes())
    data[_batch_at(log, 3) + 90] ^= 0xFF
    path.write_bytes(data)
    assert find_missing(FS, log) is None


def test_a_sealed_end(log: Path) -> None:
    opened = open_blocking(log)
    opened.tail.rotate()
    opened.tail.commit([draft_of(5, b"value 5")])
    close_opened(opened)
    max(log.glob("*.wal")).unlink()
    assert find_missing(FS, log) == 5


def test_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError):
        find_missing(FS, tmp_path / "nowhere")


@pytest.mark.parametrize("lost", ["zeroed", "cut"])
@pytest.mark.parametrize("hint", ["CHECKPOINT", "DURABLE", "both"])
def test_S2_changes_without_records(log_directory: Path, hint: str, lost: str, caplog) -> None:
    """They share one offset: what was synced is a byte. Registers must not go back without a word."""
    opened = open_blocking(log_directory)
    opened.tail.commit([draft_of(1, b"record")])
    for serial in range(1, 5):
        marks = Marks(registers={"owner": str(serial)})
        opened.tail.commit([BatchBuilder(2, marks=marks, serial=serial)])
    close_opened(opened)
    path = _segment(log_directory)
    data = path.read_bytes()
    for name in {"CHECKPOINT", "DURABLE"} - {hint} if hint != "both" else ():
        (log_directory / name).unlink()
    end = data.rindex(b"WBF1")
    path.write_bytes(data[:end] + (bytes(len(data) - end) if lost == "zeroed" else b""))
    assert find_missing(FS, log_directory) == 2
    assert not verify_directory(log_directory).is_ok
    opened = open_blocking(log_directory)
    assert opened.tail.ledger.registers == {"owner": "3"}
    assert opened.recovery.missing_from == 2
    assert "had been synced" in caplog.text
    close_opened(opened)
