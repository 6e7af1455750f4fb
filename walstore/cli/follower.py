"""DirectoryFollower: follows a log that another process writes, through its files. Blocking.

For programs without an event loop; others use :class:`walstore.ReadonlyWal`. Takes no lock and sees only
what is durable, so nothing it returned is ever taken back by a crash of the writer.
"""

from __future__ import annotations

from pathlib import Path

from walstore.batches.batch import Batch
from walstore.errors import OffsetTrimmedError
from walstore.files.directory import read_cell
from walstore.files.log_bounds import read_bounds
from walstore.files.log_files import LogFiles
from walstore.files.posix import PosixFileSystem
from walstore.files.segment_file import CHUNK_BYTES
from walstore.ports import FileSystem


class DirectoryFollower:
    """A position that moves over the files of a log. One thread at a time; holds no file open."""

    def __init__(self, path: Path, position: int, *, fs: FileSystem | None = None) -> None:
        """Begin at offset ``position`` of the log in directory ``path``."""
        self._path = path
        self._fs = fs or PosixFileSystem()
        self._position = position
        # As the last looks found it.
        self._files: LogFiles | None = None
        self._head = self._limit = self._tail_start = 0

    @property
    def position(self) -> int:
        """Offset of the next record."""
        return self._position

    def poll(self, stop: int | None = None) -> list[Batch]:
        """Return the next records below ``stop`` that are durable, about a mebibyte, or nothing.

        Costs one small read while there is nothing. Raises OffsetTrimmedError if the position was
        removed, CorruptionError, LogNotFoundError, StorageUnavailableError.
        """
        files = self._look()
        limit = self._limit if stop is None else min(stop, self._limit)
        if self._position >= limit:
            return []
        if self._position < self._head:
            raise OffsetTrimmedError(
                "the offset was removed from the log",
                requested=self._position,
                head=self._head,
                tail=self._limit,
            )
        found = files.read(self._position, limit, CHUNK_BYTES, self._tail_start)
        self._position = found[-1].limit
        return found

    def _look(self) -> LogFiles:
        """Learn how far the log reaches now: from the cell, or without one from the files."""
        cell = read_cell(self._fs, self._path)
        if cell is not None:
            self._note(cell.head, cell.visible_limit, cell.tail_start)
        if cell is None or self._files is None:
            extent = read_bounds(self._fs, self._path)
            self._note(extent.head, extent.limit, extent.starts[-1])
            if self._files is None:
                self._files = LogFiles(self._fs, self._path, extent)
            else:
                self._files.update(extent)
        return self._files

    def _note(self, head: int, limit: int, tail_start: int) -> None:
        self._head = max(self._head, head)
        self._limit = max(self._limit, limit)
        self._tail_start = max(self._tail_start, tail_start)
