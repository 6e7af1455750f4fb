"""What was noted of a copy: whatever a crash leaves of it can be read, and all else is damage."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.crash.disk import Content
from walstore.core.files.directory import SYNCED_NAME
from walstore.core.files.floor import NOTHING_NOTED, load_note, note_floor
from walstore.core.files.open_files import ActiveCell
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.checkpoint import CELL_BYTES, DurableCell, encode_cell
from walstore.core.ports import FileSystem
from walstore.errors import CorruptionError
from walstore.testing import FaultyFileSystem, PowerLossFileSystem

FS = PosixFileSystem()
SETTLED = NOTHING_NOTED._replace(visible_limit=9)
NOTES = [DurableCell(0, 0, 0, at, 400 + at, 7 * at, 0xFEDCBA98) for at in range(1, 4)]


def store(fs: FileSystem, directory: Path) -> None:
    """Store to the note of a copy, settle it, and let it be removed and made again."""
    cell = ActiveCell(fs, directory / SYNCED_NAME, CELL_BYTES)
    with contextlib.closing(cell), contextlib.suppress(OSError):
        for note in NOTES:
            cell.store(encode_cell(note))
        cell.settle(encode_cell(SETTLED))
        cell.store(encode_cell(NOTES[1]))
        cell.park()
        fs.remove(directory / SYNCED_NAME)
        cell.store(encode_cell(NOTES[0]))


def test_the_power_may_go_before_any_call(tmp_path: Path) -> None:
    found: set[DurableCell] = set()
    for nth in itertools.count(1):
        (machine := tmp_path / str(nth)).mkdir()
        power = PowerLossFileSystem(machine)
        fs = FaultyFileSystem(power)
        fs.before_each(lambda _, fs=fs, power=power, nth=nth: len(fs.calls) >= nth and power.cut())
        store(fs, machine)
        for seed in range(10):
            after = tmp_path / f"{nth}-{seed}"
            power.crash(seed, after)
            found.add(load_note(FS, after))
        if len(fs.calls) < nth:
            break
    assert found == {*NOTES, SETTLED, NOTHING_NOTED}


def outcomes(content: Content) -> Iterator[bytes]:
    """Return all that a power failure may leave of a file."""
    cells: Iterable[int | None] = range(len(content.cells)) if content.cells else (None,)
    choices = itertools.product((False, True), repeat=len(content.pending))
    for kept, cell in itertools.product(choices, cells):
        yield content.outcome(kept, cell)


def test_what_the_crash_simulation_leaves_of_the_file(tmp_path: Path) -> None:
    content = Content()
    path = tmp_path / SYNCED_NAME
    for data in (bytes(CELL_BYTES), *map(encode_cell, NOTES)):
        content.write(0, data)
        for left in outcomes(content):
            path.write_bytes(left)
            assert load_note(FS, tmp_path) in {*NOTES, NOTHING_NOTED}


@pytest.mark.parametrize("at", range(0, CELL_BYTES, 7))
def test_a_flipped_bit_is_damage(at: int, tmp_path: Path) -> None:
    data = bytearray(encode_cell(NOTES[2]))
    data[at] ^= 1
    path = tmp_path / SYNCED_NAME
    path.write_bytes(data)
    for is_locked in (False, True):
        with pytest.raises(CorruptionError, match="what was noted of this copy is damaged") as told:
            load_note(FS, tmp_path, is_locked=is_locked)
        assert told.value.path == str(path)


def test_a_primary_writes_it_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / SYNCED_NAME
    path.write_bytes(b"\xff" * CELL_BYTES)
    note_floor(FS, tmp_path, 7)
    assert load_note(FS, tmp_path).visible_limit == 7
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        f"{path} is damaged, and is written again"
    ]
