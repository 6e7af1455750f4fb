"""LogFiles and LogSnapshot: a log directory, read without its lock. Blocking; one thread at a time.

They see only what is durable (``log_bounds.py`` explains how that is known) and never change anything. The
writer's retention may delete segments meanwhile; that raises OffsetTrimmedError.

:class:`LogFiles` reads batches by position, for :class:`walstore.ReadonlyWal`. It keeps no file open and no
records, only positions: the names of the segments, the indexes of the sealed segments read last, an index
of the active segment that grows as it is read, and the ends of the last reads, since followers continue
exactly there. :class:`LogSnapshot` describes one moment, for the command line and for planning in Spark.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from walstore.core.batches.batch import Batch
from walstore.core.files.directory import anchor_log, list_segments, read_cell
from walstore.core.files.log_bounds import LogBounds, read_bounds
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import (
    CHUNK_BYTES,
    Segment,
    find_offset,
    iter_chunks,
    load_index,
    load_streams,
    read_footer,
    read_header,
    read_last_footer,
)
from walstore.core.format import segment
from walstore.core.format.segment import SegmentIndex
from walstore.core.offset_range import OffsetRange
from walstore.core.ports import File, FileSystem
from walstore.core.runtime.error_mapping import describe_read
from walstore.errors import CorruptionError, WalError

INDEX_BYTES: Final = 8 << 20
"""Most bytes of sealed segments' indexes that are kept; one is kept in any case."""
_PLACES: Final = 64


class BatchPlace(NamedTuple):
    """Where a batch begins."""

    start: int
    """First offset of the segment."""
    position: int
    """Byte in its file."""


class LogFiles:
    """The files of one log. Made from a first look; :meth:`update` takes the results of later ones."""

    def __init__(self, fs: FileSystem, directory: Path, extent: LogBounds) -> None:
        self._fs = fs
        self._directory = directory
        self._starts: list[int] = []
        self._segments: dict[int, Segment] = {}
        self._ordered: list[Segment] = []
        # Sealed segments whose index is loaded, the one used last at the end.
        self._indexed: OrderedDict[int, int] = OrderedDict()
        self._indexed_bytes = 0
        # Offset → where its batch begins, for the ends of the last reads.
        self._places: OrderedDict[int, BatchPlace] = OrderedDict()
        self.update(extent)

    def update(self, extent: LogBounds) -> None:
        """Take the result of a look."""
        self._take(extent.starts)
        last = self._ordered[-1]
        if last.index is None or not last.index.starts:
            last.index = extent.tail_index
        if extent.hint is not None:
            for summary in extent.hint.sealed:
                found = self._segments.get(summary.start)
                if found is not None and found is not last and found.summary is None:
                    found.summary = summary

    def read(
        self,
        position: int,
        limit: int,
        max_bytes: int,
        tail_start: int,
        place: BatchPlace | None = None,
        end_place: BatchPlace | None = None,
    ) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record.

        The caller knows that offsets up to ``limit > position`` are visible, and that the last of them are
        in the segment ``tail_start`` or before. ``place`` is the place of ``position`` and ``end_place``
        that of ``limit`` or a later offset, if the caller knows them.
        Raises OffsetTrimmedError if the position was removed, CorruptionError, StorageUnavailableError.
        """
        self._require(tail_start)
        if place is not None:
            self._note(position, place)
        source, end = self._segment_of(position, limit)
        end_position = None
        if end_place is not None and end_place.start == source.start:
            end_position = end_place.position
        try:
            try:
                return self._read(source, position, end, max_bytes, end_position)
            except CorruptionError:
                # What was remembered may be outdated; the files decide. A copy may have got a segment again.
                self._forget(source)
                self._take(list_segments(self._fs, self._directory))
                source, end = self._segment_of(position, limit)
                return self._read(source, position, end, max_bytes)
        except (OSError, CorruptionError) as error:
            raise self._judge(error, source, position, limit) from error

    def skip_stream(self, name: str, position: int, limit: int, tail_start: int) -> int:
        """Return an offset in ``[position, limit]`` before which there is no record of a stream.

        Skips the sealed segments, from the one at ``position`` on, whose footers say that they hold
        none. Reads each footer once. Arguments and errors as :meth:`read`.
        """
        self._require(tail_start)
        while position < limit:
            source, end = self._segment_of(position, limit)
            if source.start == self._starts[-1]:
                break
            try:
                streams = load_streams(self._fs, source)
            except (OSError, CorruptionError):
                break  # reading there reports the error
            if streams.may_hold(name):
                break
            position = end
        return position

    def find_offset(self, timestamp_us: int, limit: int, tail_start: int) -> int | None:
        """Return the first offset below ``limit`` that is not older than a time; None if all are older.

        Arguments and errors as :meth:`read`.
        """
        self._require(tail_start)
        is_repeated = False
        while True:
            segments = self._ordered[: bisect_left(self._starts, limit)]
            try:
                if segments and segments[-1].start == self._starts[-1]:
                    self._extend(segments[-1], limit)
                found = find_offset(self._fs, segments, timestamp_us, limit)
            except CorruptionError:
                if is_repeated:
                    raise
                is_repeated = True
                for source in segments:
                    self._forget(source)
                continue
            except OSError as error:
                before = self._starts
                self._take(list_segments(self._fs, self._directory))
                if isinstance(error, FileNotFoundError) and self._starts != before:
                    continue  # retention was faster
                raise describe_read(error, self._directory) from error
            if found is not None:
                self._weigh(self._segment_of(found, limit)[0])
            return found

    @property
    def index_bytes(self) -> int:
        """Bytes of the sealed segments' indexes that are kept now."""
        return self._indexed_bytes

    # -- inside ------------------------------------------------------------------------------

    def _require(self, tail_start: int) -> None:
        """List the segments again if the log has grown beyond the last known one."""
        if tail_start > self._starts[-1]:
            self._take(list_segments(self._fs, self._directory))

    def _take(self, starts: list[int] | tuple[int, ...]) -> None:
        """Replace the list of segments; what was the last one may be sealed now."""
        if not starts:
            return  # the directory is being removed; reading says so
        before = self._starts[-1] if self._starts else None
        self._starts = list(starts)
        for start in self._segments.keys() - set(starts):
            self._forget(self._segments.pop(start))
        for start in starts:
            if start not in self._segments:
                path = self._directory / segment.file_name(start)
                self._segments[start] = Segment(path, start)
        self._ordered = [self._segments[start] for start in starts]
        if before is not None and before != self._starts[-1] and before in self._segments:
            self._segments[before].index = None  # its footer has a better one
        last = self._segments[self._starts[-1]]
        if last.summary is None and last.index is None:
            last.index = SegmentIndex()

    def _segment_of(self, position: int, limit: int) -> tuple[Segment, int]:
        """Return the segment that holds a position, and up to where it may be read."""
        OffsetRange(self._starts[0], limit).check_head(position)
        at = bisect_right(self._starts, position) - 1
        end = min(limit, self._starts[at + 1]) if at + 1 < len(self._starts) else limit
        return self._ordered[at], end

    def _read(
        self,
        source: Segment,
        position: int,
        limit: int,
        max_bytes: int,
        end_position: int | None = None,
    ) -> list[Batch]:
        with contextlib.closing(self._fs.open(source.path, "r")) as file:
            at = self._locate(file, source, position)
            for chunk in iter_chunks(file, source, at, limit, max_bytes, end_position):
                found: list[Batch] = []
                for batch in chunk:
                    if batch.limit > limit:  # its rest is read when it is asked for
                        found.append(batch.slice(max(position, batch.start), limit))
                        break
                    if batch.start < batch.limit:
                        self._grow(source, batch.start, at, batch.header.base_timestamp_us)
                    at += batch.header.length
                    if batch.limit > max(position, batch.start):
                        found.append(batch.slice(max(position, batch.start), batch.limit))
                if found and found[0].start == position:
                    if found[-1].limit > source.start:
                        self._note(found[-1].limit, BatchPlace(source.start, at))
                    return found
                if found:
                    break
            raise CorruptionError(
                f"offset {position} is not where the log says", path=str(source.path), position=at
            )

    def _locate(self, file: File, source: Segment, position: int) -> int:
        place = self._places.get(position)
        if place is not None and place.start == source.start:
            return place.position
        if source.start == self._starts[-1]:
            assert source.index is not None
            return source.index.locate(position)
        at = load_index(file, source).locate(position)
        self._weigh(source)
        return at

    def _grow(self, source: Segment, start: int, position: int, timestamp_us: int) -> None:
        """Note a frame in the index of the active segment."""
        index = source.index
        if source.start == self._starts[-1] and index is not None and source.summary is None:
            index.add(start, position, timestamp_us)

    def _extend(self, source: Segment, limit: int) -> None:
        """Complete the index of the active segment up to ``limit``."""
        if source.index is None or source.summary is not None:
            return
        with contextlib.closing(self._fs.open(source.path, "r")) as file:
            at = source.index.locate(limit)
            for chunk in iter_chunks(file, source, at, limit, CHUNK_BYTES):
                for batch in chunk:
                    if batch.start < batch.limit <= limit:
                        self._grow(source, batch.start, at, batch.header.base_timestamp_us)
                    at += batch.header.length

    def _note(self, offset: int, place: BatchPlace) -> None:
        self._places[offset] = place
        self._places.move_to_end(offset)
        if len(self._places) > _PLACES:
            self._places.popitem(last=False)

    def _weigh(self, source: Segment) -> None:
        """Count a sealed segment's index as used now, and forget those unused for longest."""
        if source.index is None or source.start == self._starts[-1]:
            return
        size = len(source.index.starts) * SegmentIndex.ENTRY_BYTES
        self._indexed_bytes += size - self._indexed.pop(source.start, 0)
        self._indexed[source.start] = size
        while self._indexed_bytes > INDEX_BYTES and len(self._indexed) > 1:
            start, size = self._indexed.popitem(last=False)
            self._indexed_bytes -= size
            self._segments[start].index = None

    def _forget(self, source: Segment) -> None:
        """Forget all that was derived of a segment's file."""
        self._indexed_bytes -= self._indexed.pop(source.start, 0)
        is_last = bool(self._starts) and source.start == self._starts[-1]
        source.index = SegmentIndex() if is_last else None
        source.summary = source.streams = source.header = None
        for offset in [o for o, place in self._places.items() if place.start == source.start]:
            del self._places[offset]

    def _judge(
        self, error: OSError | CorruptionError, source: Segment, position: int, limit: int
    ) -> WalError:
        """Return what a failed read means: retention may have been faster."""
        cell = read_cell(self._fs, self._directory)
        starts = list_segments(self._fs, self._directory)
        self._take(starts)
        head = max(cell.head if cell is not None else 0, starts[0] if starts else 0)
        if position < head:
            return OffsetRange(head, limit).trimmed(position)
        if isinstance(error, CorruptionError):
            return error
        return describe_read(error, source.path)


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
            raise OffsetRange(self.head, self.durable_limit).trimmed(
                self.head,
                f"a segment in {self.path} was deleted while the read was planned; try again",
            ) from None
        return self.durable_limit if found is None else max(found, self.head)


def _look(path: Path, fs: FileSystem) -> LogSnapshot:
    extent = read_bounds(fs, path)
    segments = [Segment(path / segment.file_name(start), start) for start in extent.starts]
    for found in segments:
        _load_footer(fs, found, is_sealed=found is not segments[-1])
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
        segments=tuple(
            source
            for at, source in enumerate(segments)
            if at + 1 == len(segments) or segments[at + 1].start > extent.head
        ),
        fs=fs,
    )


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
