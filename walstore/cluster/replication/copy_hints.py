"""CopyHints: the checkpoint and cell that a copy may have. Blocking; one call at a time.

They are those of a time as primary, or the checkpoint that a primary sent: P4 of ``replication/replica.py``.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from walstore.cluster.replication.position import Place
from walstore.core.files.directory import has_cell, load_checkpoint, write_hint
from walstore.core.format import checkpoint
from walstore.core.ports import FileSystem


class CopyHints:
    """What bounds how much of a copy is read when it is looked at, or opened as a log."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        """Find out what is there; a damaged checkpoint is removed. OSError."""
        self._fs, self._directory = fs, directory
        hint = load_checkpoint(fs, directory)
        if hint is None and checkpoint.FILE_NAME in fs.list(directory):
            self._remove(checkpoint.FILE_NAME)  # damaged, which is said once
        self._is_sent = hint is not None and hint.is_of_copy
        """Whether there is a checkpoint that a primary sent."""
        self.are_own = not self._is_sent or has_cell(fs, directory)
        """Whether there may be those of a time as primary."""

    def keep(self, place: Place, data: bytes, log_id: bytes) -> None:
        """Keep a checkpoint of the primary, of the log up to a place that is here, durably. OSError.

        What it says of syncs holds on this disk, too; what frames up to it say does not.
        """
        found = checkpoint.decode_checkpoint(data, "the checkpoint of the primary")
        if found is None or found.log_id != log_id:
            return
        if (found.tail_start, found.tail_position) != (place.segment, place.position):
            return
        kept = replace(
            found,
            own_epoch=found.epoch + 1,
            uploaded_limit=0,
            tier_url=None,
            is_closed=False,
            is_epoch_written=False,
        )
        self.forget()
        self._is_sent = True  # before the write: one that reports failure may have happened
        path = self._directory / checkpoint.FILE_NAME
        write_hint(self._fs, path, checkpoint.encode_checkpoint(kept))

    def forget(self) -> None:
        """Remove checkpoint and cell, durably."""
        if self.are_own or self._is_sent:
            self._remove(checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME)
            self.are_own = self._is_sent = False

    def _remove(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove(self._directory / name)
        self._fs.sync_directory(self._directory)
