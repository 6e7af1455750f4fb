"""SyncedNote: what a copy notes of itself in the file SYNCED. Blocking; one call at a time.

Its invariants are P6 and P7 of ``replication/replica.py``.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from walstore.cluster.replication.position import Place
from walstore.core.files.directory import SYNCED_NAME
from walstore.core.files.floor import NOTHING_NOTED, load_note
from walstore.core.files.open_files import ActiveCell, ActiveFile
from walstore.core.format import checkpoint
from walstore.core.format.checkpoint import DurableCell
from walstore.core.format.frame_scan import FrameScan
from walstore.core.format.segment import SegmentHeader
from walstore.core.ports import FileSystem

_SKIP_BYTES: Final = 4 << 10


class SyncedNote:
    """How far a copy was synced, what it knows to be replicated, and where it differs from its primary."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        """Load the note. CorruptionError if it is damaged, OSError."""
        self._fs, self._directory = fs, directory
        self._cell = ActiveCell(fs, directory / SYNCED_NAME, checkpoint.CELL_BYTES)
        self._noted: tuple[Place, int, int] | None = None
        """What it says."""
        known = load_note(fs, directory)
        self.floor = known.visible_limit
        """Every offset below it is on enough machines, and here."""
        self.differs_from = known.durable_limit
        """The first offset that its primary has not, or has others at, as a cut was refused; 0 for none."""
        self.frames_end = 0
        """End of the last whole frame of the last segment that was looked for."""

    def raise_floor(self, floor: int) -> None:
        """Take note that every offset below ``floor`` is on enough machines and, durably, here.

        The next sync notes it, too.
        """
        self.floor = max(self.floor, floor)

    def store(self, file: ActiveFile, header: SegmentHeader, place: Place) -> None:
        """Note the end of the last frame that is durable, before a place in a segment that was synced.

        A note that cannot be written is removed.
        """
        noted = (place, self.floor, self.differs_from)
        if header.salt is None or noted == self._noted:
            return
        # By the lengths of frames: a piece that a primary sends may end within one.
        scan = FrameScan(file.pread, place.position, None, ahead_bytes=_SKIP_BYTES)
        self.frames_end = scan.claimed_limit(self.frames_end, place.position)
        cell = DurableCell(
            0, self.differs_from, 0, header.start, self.frames_end, self.floor, header.salt
        )
        self._cell.store(checkpoint.encode_cell(cell))
        self._noted = noted

    def forget(self) -> None:
        """Remove what says how far the copy was synced, durably."""
        self._noted = None
        if self.floor > 1:
            cell = NOTHING_NOTED._replace(visible_limit=self.floor)
            self._cell.settle(checkpoint.encode_cell(cell))
            return
        self._cell.park()
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(self._directory / SYNCED_NAME)
        self._fs.sync_directory(self._directory)

    def close(self) -> None:
        """Close the file; OSError."""
        self._cell.close()
