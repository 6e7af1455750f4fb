"""The floor of a copy: below which offset its machine knows the log to be on enough machines, and here.

It is in the cell ``SYNCED``, as ``visible_limit``. A primary says it with each write, and of its own copy it
notes it itself. It stays true whichever machine leads, so whoever asks this machine to cut below it has
another history: one of the two was made of a copy that was put back from an older state. Such a cut is
refused, and the offset from which on the histories differ is noted, as ``durable_limit``. The note may be
late, never early.

A crash leaves no file, an empty one, zeroes, or a whole cell: the file is made as zeroes, and each store
lies within one sector. So anything else is damage: the copy may lack what it acknowledged, and counts for
nothing.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

from walstore.core.files.directory import CELL_ATTEMPTS, REMAKE, SYNCED_NAME
from walstore.core.files.open_files import ActiveCell
from walstore.core.files.segment_file import read_header
from walstore.core.format import checkpoint
from walstore.core.format.checkpoint import DurableCell
from walstore.core.format.frame_scan import FrameScan
from walstore.core.format.segment import HEADER_BYTES
from walstore.core.ports import FileSystem
from walstore.errors import CorruptionError

logger = logging.getLogger("walstore.log")

NOTHING_NOTED: Final = DurableCell(0, 0, 0, 0, 0, 0, 0)
"""What a cell says that is not there."""
_SEARCHED_BYTES: Final = 256 << 10
"""Before the end of a segment, to begin with."""


def load_note(fs: FileSystem, directory: Path, *, is_locked: bool = True) -> DurableCell:
    """Return what the machine has noted of its copy. Blocking; CorruptionError if that is damaged, OSError.

    Without the lock it is read again, since the machine may be half-way through a store.
    """
    path = directory / SYNCED_NAME
    for _ in range(1 if is_locked else CELL_ATTEMPTS):
        try:
            data = fs.read(path)[: checkpoint.CELL_BYTES]
        except FileNotFoundError:
            return NOTHING_NOTED
        found = checkpoint.decode_cell(data) if any(data) else NOTHING_NOTED
        if found is not None:
            return found
    raise CorruptionError(
        f"what was noted of this copy is damaged, so it may lack what it acknowledged; {REMAKE}",
        path=str(path),
    )


def note_floor(fs: FileSystem, directory: Path, floor: int) -> None:
    """Raise the floor of the copy whose primary this program is; what is noted of syncs stays. Blocking.

    A note that is damaged meanwhile is written again: the primary has everything, and its checkpoint and
    cell say what was synced.
    """
    try:
        known = load_note(fs, directory)
    except CorruptionError as error:
        logger.warning("%s is damaged, and is written again", error.path)
        known = NOTHING_NOTED
    if known.visible_limit < floor:
        cell = ActiveCell(fs, directory / SYNCED_NAME, checkpoint.CELL_BYTES)
        cell.store(checkpoint.encode_cell(known._replace(visible_limit=floor)))
        cell.close()


def limit_at(fs: FileSystem, path: Path, start: int, position: int) -> int:
    """Return the offset after the last record before a byte of a segment. Blocking; as :func:`frames_of`."""
    if position <= HEADER_BYTES:
        return start
    with contextlib.closing(fs.open(path, "r")) as file:
        scan = FrameScan(file.pread, position, read_header(file, path).salt)
        for begin in (position - _SEARCHED_BYTES, HEADER_BYTES):
            at = scan.next_whole(begin) if begin > HEADER_BYTES else HEADER_BYTES
            found = 0
            for _, one, _ in scan.frames(position if at is None else at):
                found = one.limit
            if found:
                return found
    return start


def two_histories(directory: Path, first: int, limit: int) -> CorruptionError:
    """Return the error for a copy that is not cut: its offsets from ``first`` on are not the leader's."""
    return CorruptionError(
        f"two histories: offsets {first} to {limit - 1} in {directory} were acknowledged, and are not in the "
        "log that is led now; nothing was cut. One of its copies was put back from an older state. Decide: "
        "'walstore logs give-up' of this directory, or 'walstore logs reset-head' of it with all others "
        "emptied",
        path=str(directory),
    )
