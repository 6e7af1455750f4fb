"""LogView: a log directory as it lies on disk, read without its lock. Synchronous.

For the command line and for Spark's executors, beside a live writer or after it is gone. It sees only
what is durable: the cell says how far while a writer has been there, and a walk over the active segment
says so when the cell is missing. Nothing is ever changed. Segments may vanish while it looks, by the
writer's retention; that raises OffsetTrimmedError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from walstore import segment
from walstore.batch import Batch
from walstore.checkpoint import Checkpoint
from walstore.directory import list_segments, load_checkpoint, read_cell, walk_file
from walstore.errors import CorruptionError, LogNotFoundError, OffsetTrimmedError
from walstore.ports import FileSystem
from walstore.posix import PosixFileSystem
from walstore.recovery import Chain
from walstore.segment import SegmentIndex
from walstore.segment_file import (
    CHUNK_BYTES,
    Segment,
    iter_chunks,
    load_index,
    read_footer,
    read_header,
)


@dataclass(frozen=True, slots=True)
class LogView:
    """A moment of a log directory. Make a new one to see more."""

    path: Path
    log_id: str
    """Identity of the log, 32 hex digits."""
    head: int
    """First offset on local disk."""
    durable_limit: int
    """Every offset in ``[head, durable_limit)`` can be read from the files."""
    epoch: int
    """How often the log had been opened for writing."""
    uploaded_limit: int
    """Uploaded limit of the last checkpoint; 0 if unknown. The truth is in the tier's manifest."""
    tier_url: str | None
    """Where the log was last shipped to, if anywhere."""
    segments: tuple[Segment, ...]
    """Segments in order; the last one is the active one."""
    fs: FileSystem

    @classmethod
    def open(cls, path: str | Path, *, fs: FileSystem | None = None) -> LogView:
        """Look at the log in directory ``path``.

        Raises LogNotFoundError if there is none, CorruptionError or FormatVersionError if its
        headers cannot be read.
        """
        return _look(Path(path), fs or PosixFileSystem())

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


def _look(path: Path, fs: FileSystem) -> LogView:
    cell = read_cell(fs, path)  # before the listing, so that its segment is listed
    starts = list_segments(fs, path)
    if not starts:
        raise LogNotFoundError(f"there is no log at {path}", location=str(path))
    hint = load_checkpoint(fs, path)
    head = max(starts[0], cell.head if cell else 0, hint.head if hint else 0)
    segments = [Segment(path / segment.file_name(start), start) for start in starts]
    last = segments[-1]
    file = fs.open(last.path, "r")
    try:
        header = read_header(file, last.path)
        footer = read_footer(file, last.start, last.path)
        if footer is not None:
            last.summary, last.index = footer
            durable_limit = footer[0].limit
        elif cell is not None and cell.tail_start == last.start:
            durable_limit = cell.durable_limit
            last.index = _index_from(hint, last.start)
        else:
            last.index = SegmentIndex()
            chain = Chain(last.start, header.previous_crc, 0, header.epoch)
            walk_file(file, chain, last.index, segment.HEADER_BYTES)
            durable_limit = chain.next_offset
    finally:
        file.close()
    for found in segments[:-1]:
        _load_summary(fs, found)
    return LogView(
        path=path,
        log_id=header.log_id.hex(),
        head=head,
        durable_limit=durable_limit,
        epoch=max(header.epoch, cell.epoch if cell else 0),
        uploaded_limit=hint.uploaded_limit if hint else 0,
        tier_url=hint.tier_url if hint else None,
        segments=tuple(s for at, s in enumerate(segments) if _reaches(segments, at, head)),
        fs=fs,
    )


def _reaches(segments: list[Segment], at: int, head: int) -> bool:
    return at + 1 == len(segments) or segments[at + 1].start > head


def _index_from(hint: Checkpoint | None, start: int) -> SegmentIndex:
    return hint.tail_index if hint is not None and hint.tail_start == start else SegmentIndex()


def _load_summary(fs: FileSystem, found: Segment) -> None:
    """Read a sealed segment's footer, unless the file vanished meanwhile."""
    try:
        file = fs.open(found.path, "r")
    except FileNotFoundError:
        return
    try:
        read_header(file, found.path)
        footer = read_footer(file, found.start, found.path)
    finally:
        file.close()
    if footer is None:
        raise CorruptionError("sealed segment has lost its footer", path=str(found.path))
    found.summary, found.index = footer
