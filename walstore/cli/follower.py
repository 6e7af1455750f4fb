"""DirectoryFollower: follows a log that another process writes, through its files. Blocking.

Looks at the durable cell, which costs one small read, and reads on where it stopped. Takes no lock and
sees only what is durable, so nothing it returned is ever taken back by a crash of the writer.
"""

from __future__ import annotations

from pathlib import Path

from walstore import segment
from walstore.batch import Batch
from walstore.directory import read_cell
from walstore.errors import CorruptionError, OffsetTrimmedError
from walstore.ports import File, FileSystem
from walstore.posix import PosixFileSystem
from walstore.segment_file import Segment, iter_chunks, read_footer, read_header
from walstore.view import LogView

CHUNK_BYTES = 1 << 20


class DirectoryFollower:
    """A position that moves over the files of a log. One thread at a time."""

    def __init__(self, path: Path, position: int, *, fs: FileSystem | None = None) -> None:
        """Begin at offset ``position`` of the log in directory ``path``."""
        self._path = path
        self._fs = fs or PosixFileSystem()
        self._position = position
        # The segment that holds the position, and where its next batch begins.
        self._file: File | None = None
        self._segment: Segment | None = None
        self._at = 0

    @property
    def position(self) -> int:
        """Offset of the next record."""
        return self._position

    def poll(self, stop: int | None = None) -> list[Batch]:
        """Return the next records below ``stop`` that are durable, about a mebibyte, or nothing.

        Raises OffsetTrimmedError if the position was removed, CorruptionError, LogNotFoundError.
        """
        cell = read_cell(self._fs, self._path)
        # The cell is a hint that may be missing; then the files tell.
        durable = (
            cell.durable_limit if cell else LogView.open(self._path, fs=self._fs).durable_limit
        )
        limit = durable if stop is None else min(stop, durable)
        while self._position < limit:
            if self._file is None:
                self._open()
            end = self._segment_limit(limit)
            if self._position < end:
                return self._read(end)
            self.close()  # the segment was sealed at the position: go on with the next one
        return []

    def close(self) -> None:
        """Release the file; twice is allowed. The position stays."""
        if self._file is not None:
            self._file.close()
        self._file = self._segment = None

    def _open(self) -> None:
        """Open the segment that holds the position, and find a place at or before it."""
        next_path = self._path / segment.file_name(self._position)
        try:
            self._file = self._fs.open(next_path, "r")
            self._segment = Segment(next_path, self._position)
            self._at = segment.HEADER_BYTES
        except FileNotFoundError:
            self._search()
        assert self._file is not None
        assert self._segment is not None
        read_header(self._file, self._segment.path)

    def _search(self) -> None:
        view = LogView.open(self._path, fs=self._fs)
        found = [source for source in view.segments if source.start <= self._position]
        if not found or self._position < view.head:
            raise self._trimmed(view)
        try:
            self._file = self._fs.open(found[-1].path, "r")
        except FileNotFoundError:
            raise self._trimmed(LogView.open(self._path, fs=self._fs)) from None
        self._segment = Segment(found[-1].path, found[-1].start)
        index = found[-1].index
        self._at = index.locate(self._position) if index else segment.HEADER_BYTES

    def _segment_limit(self, limit: int) -> int:
        """Return the offset up to which this segment can be read now, at most ``limit``."""
        assert self._file is not None
        assert self._segment is not None
        if self._segment.summary is None:
            footer = read_footer(self._file, self._segment.start, self._segment.path)
            if footer is None:
                return limit
            self._segment.summary = footer[0]
        return min(limit, self._segment.summary.limit)

    def _read(self, limit: int) -> list[Batch]:
        assert self._file is not None
        assert self._segment is not None
        for chunk in iter_chunks(self._file, self._segment, self._at, limit, CHUNK_BYTES):
            found: list[Batch] = []
            for batch in chunk:
                if batch.limit > limit:  # read its rest when it is asked for
                    found.append(batch.slice(max(self._position, batch.start), limit))
                    break
                self._at += batch.header.length
                if batch.limit > self._position:
                    found.append(batch.slice(max(self._position, batch.start), batch.limit))
            if found:
                self._position = found[-1].limit
                return found
        raise CorruptionError(
            f"offset {self._position} is not where the log says",
            path=str(self._segment.path),
            position=self._at,
        )

    def _trimmed(self, view: LogView) -> OffsetTrimmedError:
        return OffsetTrimmedError(
            "the offset was removed from the directory",
            requested=self._position,
            head=view.head,
            tail=view.durable_limit,
        )
