"""LogSnapshot: a log directory as it is on disk, read without its lock. Synchronous.

For the command line and for Spark's executors, next to a live writer or after the writer is gone. It sees
only what is durable (``log_bounds.py`` explains how that is known). It never changes anything. The writer's
retention may delete segments meanwhile; that raises OffsetTrimmedError. To follow a log, and from an
event loop, use :class:`walstore.ReadonlyWal`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from walstore.batches.batch import Batch
from walstore.errors import CorruptionError, OffsetNotWrittenError, OffsetTrimmedError
from walstore.files.directory import anchor_log
from walstore.files.log_bounds import read_bounds
from walstore.files.posix import PosixFileSystem
from walstore.files.segment_file import (
    CHUNK_BYTES,
    Segment,
    find_offset,
    iter_chunks,
    load_index,
    read_footer,
    read_header,
    read_last_footer,
    timestamp_of,
)
from walstore.format import segment
from walstore.ports import FileSystem


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """A moment of a log directory. Make a new one to see more."""

    path: Path
    log_id: str
    """Identity of the log, 32 hex digits."""
    head: int
    """First offset on local disk."""
    durable_limit: int
    """Every offset in ``[head, durable_limit)`` can be read from the files."""
    epoch: int
    """Number of times the log had been opened for writing."""
    uploaded_limit: int
    """Uploaded limit of the last checkpoint; 0 if unknown. The truth is in the tier's manifest."""
    tier_url: str | None
    """Where the log was last shipped to, if anywhere."""
    segments: tuple[Segment, ...]
    """Segments in order; the last one is the active one."""
    fs: FileSystem
    """Bound to the directory that was read, even if it is moved."""

    @classmethod
    def open(cls, path: str | Path, *, fs: FileSystem | None = None) -> LogSnapshot:
        """Return a snapshot of the log in directory ``path``.

        Raises LogNotFoundError if there is none, CorruptionError or FormatVersionError if its
        headers cannot be read.
        """
        path = Path(path)
        anchored = anchor_log(fs or PosixFileSystem(), path)
        try:
            return _look(path, anchored)
        except BaseException:
            anchored.close()
            raise

    def close(self) -> None:
        """Release the directory, as the last reference does; nothing more can be read. Twice is allowed."""
        self.fs.close()

    def batches(self, start: int | None = None, limit: int | None = None) -> Iterator[Batch]:
        """Yield the checked batches of ``[start, limit)``; by default all that is durable.

        Raises OffsetTrimmedError if ``start`` is not on disk (any more), CorruptionError.
        """
        position = self.head if start is None else start
        limit = self.durable_limit if limit is None else min(limit, self.durable_limit)
        if position < self.head and position < limit:
            raise self._trimmed(position)
        for at, found in enumerate(self.segments):
            end = self.segments[at + 1].start if at + 1 < len(self.segments) else limit
            if position >= limit or position >= end:
                continue
            for batch in self._read(found, position, min(limit, end)):
                yield batch
                position = batch.limit

    def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time, or ``durable_limit`` if all are older.

        ``timestamp_us`` counts microseconds since 1970 UTC. Reads one segment at one place. Raises
        OffsetTrimmedError if that segment was deleted, CorruptionError.
        """
        if self.head == self.durable_limit:
            return self.head  # no record is left, and the last segment may be deleted
        sources = [s for s in self.segments if s.summary is not None or s is self.segments[-1]]
        try:
            found = find_offset(self.fs, sources, timestamp_us, self.durable_limit)
        except FileNotFoundError:
            raise self._trimmed(self.head) from None
        return self.durable_limit if found is None else max(found, self.head)

    def timestamp_at(self, offset: int) -> int:
        """Return the timestamp of a record, in microseconds since 1970 UTC.

        Raises OffsetTrimmedError, OffsetNotWrittenError, CorruptionError.
        """
        if offset >= self.durable_limit:
            raise OffsetNotWrittenError(requested=offset, head=self.head, tail=self.durable_limit)
        if offset < self.head:
            raise self._trimmed(offset)
        at = bisect_right(self.segments, offset, key=attrgetter("start")) - 1
        try:
            return timestamp_of(self.fs, self.segments[at], offset)
        except FileNotFoundError:
            raise self._trimmed(offset) from None

    def _read(self, source: Segment, position: int, limit: int) -> Iterator[Batch]:
        try:
            file = self.fs.open(source.path, "r")
        except FileNotFoundError:
            raise self._trimmed(position) from None
        try:
            at = load_index(file, source).locate(position)
            for chunk in iter_chunks(file, source, at, limit, CHUNK_BYTES):
                for batch in chunk:
                    if batch.start <= position < batch.limit:
                        yield batch.slice(position, min(limit, batch.limit))
                        position = batch.limit
            if position < limit:
                raise CorruptionError(
                    f"offset {position} is not where the log says", path=str(source.path)
                )
        finally:
            file.close()

    def _trimmed(self, position: int) -> OffsetTrimmedError:
        return OffsetTrimmedError(
            "the offset is not on local disk",
            requested=position,
            head=self.head,
            tail=self.durable_limit,
        )


def _look(path: Path, fs: FileSystem) -> LogSnapshot:
    extent = read_bounds(fs, path)
    segments = [Segment(path / segment.file_name(start), start) for start in extent.starts]
    for found in segments[:-1]:
        _load_footer(fs, found, is_sealed=True)
    _load_footer(fs, segments[-1], is_sealed=False)
    if segments[-1].summary is None:
        segments[-1].index = extent.tail_index
    hint = extent.hint
    return LogSnapshot(
        path=path,
        log_id=extent.log_id.hex(),
        head=extent.head,
        durable_limit=extent.limit,
        epoch=extent.epoch,
        uploaded_limit=hint.uploaded_limit if hint else 0,
        tier_url=hint.tier_url if hint else None,
        segments=tuple(s for at, s in enumerate(segments) if _reaches(segments, at, extent.head)),
        fs=fs,
    )


def _reaches(segments: list[Segment], at: int, head: int) -> bool:
    return at + 1 == len(segments) or segments[at + 1].start > head


def _load_footer(fs: FileSystem, found: Segment, *, is_sealed: bool) -> None:
    """Read a segment's footer, unless the file was deleted meanwhile."""
    try:
        file = fs.open(found.path, "r")
    except FileNotFoundError:
        return
    try:
        read_header(file, found.path)
        read = read_footer if is_sealed else read_last_footer
        footer = read(file, found.start, found.path)
    finally:
        file.close()
    if footer is not None:
        found.summary, found.index = footer
    elif is_sealed:
        raise CorruptionError("sealed segment has lost its footer", path=str(found.path))
