"""Upkeep: what a log does besides its data. Checkpoints, the durable cell, and files of segments that were
given up.

Blocking; belongs to the writer's thread, between two commits. The tail says what is so; this says when
something is due, and remembers what failed. Failures cost time or space, no data (T4, T7 and T8 of
:mod:`walstore.core.append.tail`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from walstore.core.files.directory import write_hint
from walstore.core.files.open_files import ActiveCell
from walstore.core.files.spare_segment import SpareSegment
from walstore.core.files.torn_copies import TornCopies
from walstore.core.files.unlinked_file import OPEN_AT_ONCE, UnlinkedFile, unlink
from walstore.core.format import checkpoint, segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.ports import File, FileSystem
from walstore.core.replication_port import SegmentTee
from walstore.core.settings import Settings

logger = logging.getLogger("walstore.log")

_REPLICATED_CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
_REPLICATED_CHECKPOINT_WRITES: Final = 1024
"""Frames are walked in 20 µs each, several times in a takeover; a checkpoint takes two syncs."""
_RETRY_SHARE: Final = 8
"""After a failed checkpoint the next one is due once this share of what is between two was written."""
_BUSY_US: Final = 600 * 1_000_000
"""The file of a segment is used again if the last one was filled within this time."""


class Upkeep:
    """Of one open log."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        settings: Settings,
        cell: ActiveCell,
        given_up: Sequence[int] = (),
        copies: TornCopies | None = None,
    ) -> None:
        """``given_up`` are the first offsets of segments below the head, to be removed with their
        ``copies``."""
        self._fs = fs
        self._directory = directory
        self._checkpoint_bytes = settings.checkpoint_bytes
        self._cell = cell
        self._spare = SpareSegment(
            fs,
            directory,
            segment_bytes=settings.segment_bytes,
            min_free_bytes=settings.min_free_bytes,
        )
        self._written_bytes = self._writes = 0  # since the last checkpoint
        self.is_checkpoint_due = False
        """Whether enough was written since the last checkpoint."""
        self._noted_state: tuple[int, ...] = ()
        self._is_noted_closed = False
        self._given_up = list(given_up)
        self._copies = copies
        self.is_removing = False
        """Whether :meth:`remove` has more to delete."""
        self.filled_us = _BUSY_US
        """How long the last segment took to fill."""

    # -- checkpoints -------------------------------------------------------------------------

    def note_write(self, size: int, *, is_replicated: bool) -> None:
        """Count a write: of a replicated log less is enough, since a takeover, which everybody waits for,
        reads what follows the checkpoint."""
        self._written_bytes += size
        self._writes += 1
        is_due = self._written_bytes >= self._checkpoint_bytes
        if is_replicated and not is_due:
            is_due = self._written_bytes >= self._enough_bytes(is_replicated=True)
            is_due = is_due or self._writes >= _REPLICATED_CHECKPOINT_WRITES
        self.is_checkpoint_due = is_due

    def write_checkpoint(self, found: Checkpoint, state: tuple[int, ...]) -> bytes:
        """Write a checkpoint durably, and return it encoded; OSError. Everything written is synced already.

        ``state`` distinguishes one checkpoint of this opening from the next.
        """
        data = checkpoint.encode_checkpoint(found)
        write_hint(self._fs, self._directory / checkpoint.FILE_NAME, data)
        self._written_bytes = self._writes = 0
        self.is_checkpoint_due = False
        self.note_checkpoint(state, is_closed=found.is_closed)
        return data

    def note_checkpoint(self, state: tuple[int, ...], *, is_closed: bool) -> None:
        """Remember what the checkpoint on disk says."""
        self._noted_state, self._is_noted_closed = state, is_closed

    def is_noted_closed(self, state: tuple[int, ...]) -> bool:
        """Whether the checkpoint on disk says that the log was closed in this state."""
        return self._is_noted_closed and self._noted_state == state

    def put_off_checkpoint(self, error: OSError, *, is_replicated: bool) -> None:
        """Retry the checkpoint after some more writes; without it only opening takes longer."""
        logger.warning("the checkpoint in %s is postponed: %s", self._directory, error)
        enough = self._enough_bytes(is_replicated=is_replicated)
        self._written_bytes = enough - enough // _RETRY_SHARE
        self.is_checkpoint_due = False
        writes_left = _REPLICATED_CHECKPOINT_WRITES // _RETRY_SHARE
        self._writes = _REPLICATED_CHECKPOINT_WRITES - writes_left

    def _enough_bytes(self, *, is_replicated: bool) -> int:
        enough = self._checkpoint_bytes
        return min(enough, _REPLICATED_CHECKPOINT_BYTES) if is_replicated else enough

    # -- the cell ----------------------------------------------------------------------------

    def store_cell(self, cell: DurableCell) -> bool:
        """Show other processes what is durable; return whether they see it. Never raises."""
        return self._cell.store(checkpoint.encode_cell(cell))

    # -- files of segments that were given up ------------------------------------------------

    def take_spare(self) -> File | None:
        """As :meth:`SpareSegment.take`."""
        return self._spare.take()

    def drop_spare(self) -> None:
        """As :meth:`SpareSegment.drop`."""
        self._spare.drop()

    def give_up(self, starts: Sequence[int]) -> None:
        """Take segments below the head, which is durable, to be deleted by :meth:`remove`."""
        self._given_up += starts
        self.is_removing = bool(self._given_up)

    def remove(
        self, cell: DurableCell, tee: SegmentTee | None, *, in_parts: bool
    ) -> list[UnlinkedFile]:
        """Delete some of the segments that were given up; :attr:`is_removing` says if there are more.

        With ``in_parts`` files are returned whose blocks are still to be freed, at most
        :data:`OPEN_AT_ONCE`: free them before the next call. Never raises: a file that cannot be deleted now
        is deleted later, at the latest when the log is opened again.
        """
        left = len(self._given_up)
        unlinked = self._remove(cell, tee, in_parts=in_parts)
        self.is_removing = left > OPEN_AT_ONCE and len(self._given_up) < left
        return unlinked

    def remove_left(self, cell: DurableCell, tee: SegmentTee | None) -> None:
        """Delete all that were given up: also by an earlier opening, or those that could not be deleted
        before."""
        self.is_removing = True
        while self.is_removing:
            self.remove(cell, tee, in_parts=False)

    def _remove(
        self, cell: DurableCell, tee: SegmentTee | None, *, in_parts: bool
    ) -> list[UnlinkedFile]:
        if not self._given_up:
            return []
        try:
            # A power failure must not bring back a cell that covers what is removed now.
            self._cell.settle(checkpoint.encode_cell(cell))
        except OSError as error:
            logger.warning("segments of %s are deleted later: %s", self._directory, error)
            return []
        if tee is not None:
            tee.removed(cell.head)
        recycles = tee is None and self.filled_us < _BUSY_US
        unlinked = self._take_names(recycles=recycles, in_parts=in_parts)
        try:
            self._fs.sync_directory(self._directory)
        except OSError:
            # A crash may bring a file back, which is deleted again. It must have its old content then.
            self._spare.drop()
            for file in unlinked:
                file.close()
            return []
        return unlinked

    def _take_names(self, *, recycles: bool, in_parts: bool) -> list[UnlinkedFile]:
        """Delete the names of some files.

        One of them may be kept for the next segment. Not if segments fill slowly: an idle log has nothing
        reserved. Nor in a replicated log, whose copies read its segments by their bytes.
        """
        unlinked: list[UnlinkedFile] = []
        starts, self._given_up = self._given_up[:OPEN_AT_ONCE], self._given_up[OPEN_AT_ONCE:]
        for start in starts:
            path = self._directory / segment.file_name(start)
            if self._copies is not None:
                self._copies.remove_of(start)
            try:
                if recycles and self._spare.keep(path):
                    continue
                if not in_parts:
                    self._fs.remove(path)
                elif (found := unlink(self._fs, path)) is not None:
                    unlinked.append(found)
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("segment %d is deleted later: %s", start, error)
                self._given_up.append(start)
        return unlinked

    # -- the end -----------------------------------------------------------------------------

    def park(self) -> None:
        """Close and delete what an idle log does without; never raises."""
        self._cell.park()
        self._spare.drop()

    def close(self) -> None:
        """Release the cell."""
        self._cell.close()
