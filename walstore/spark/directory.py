"""A log in a directory of this machine: what is in its files, and before them in its tier.

Planning looks at headers and indexes only. Files are preferred to the tier wherever both have a record;
a file that retention deletes before a task reads it is made up for from the tier (``task.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

from walstore.errors import LogNotFoundError, OffsetTrimmedError, WalError
from walstore.files.directory import read_cell
from walstore.files.frame_walk import walk_file
from walstore.files.log_files import LogSnapshot
from walstore.files.segment_file import Segment, read_header
from walstore.format import segment
from walstore.format.recovery import Chain
from walstore.format.segment import INDEX_INTERVAL_BYTES, SegmentIndex
from walstore.spark.options import Location
from walstore.spark.plan import (
    PARTITION_BYTES,
    FileExtent,
    FilePart,
    FilePartition,
    LogPartition,
    Span,
    clip,
    cut_file,
    group,
)
from walstore.spark.store import StoreLog

_CUTS: Final = 8
"""How finely files are looked at, in parts of what is asked for."""


class DirectoryLog:
    """A moment of a log directory, with its tier behind it. Close it after planning."""

    def __init__(self, location: Location, *, partition: int = 0, use_tier: bool = True) -> None:
        """Look at the log; see :meth:`walstore.files.log_files.LogSnapshot.open` for the errors.

        ``partition`` is its number if it is one of a partitioned log.
        """
        self._directory = Path(location.text)
        self._topic = location.topic
        self._partition = partition
        try:
            self._view = LogSnapshot.open(self._directory)
        except LogNotFoundError as error:
            if (self._directory / "manifest").is_dir():
                error.add_note(f"a log's store is there: load it as file://{self._directory}")
            raise
        self._tier_url = self._view.tier_url if use_tier else None

    def close(self) -> None:
        """Release the directory, and the tier's connections, if there are any."""
        self._view.close()
        if "_tier" in self.__dict__ and self._tier is not None:
            self._tier.close()

    @property
    def tier_url(self) -> str | None:
        """Where the log was last shipped to; None if nowhere, or if the tier is not to be used."""
        return self._tier_url

    @property
    def head(self) -> int:
        """First offset in the tier if it reaches up to the files, else in the files."""
        return self._view.head if self._tier is None else self._tier.head

    @property
    def limit(self) -> int:
        """The durable limit."""
        return self._view.durable_limit

    def is_trimmed(self, offset: int) -> bool:
        """Return whether neither files nor tier reach back to the offset."""
        return offset < self._view.head and offset < self.head

    def offset_at(self, timestamp_us: int) -> int | None:
        """Return the first durable offset that is not older than a time, or None."""
        if self._tier is not None:
            found = self._tier.offset_at(timestamp_us)
            if found is not None and found < self._view.head:
                return found
        try:
            offset = self._view.offset_at(timestamp_us)
        except OffsetTrimmedError as error:
            raise OffsetTrimmedError(
                f"a segment in {self._directory} was deleted while the read was planned; try again",
                requested=error.requested,
                head=error.head,
                tail=error.tail,
            ) from None
        return offset if offset < self.limit else None

    def partitions(self, start: int, limit: int, most_bytes: int) -> list[LogPartition]:
        """Return partitions of fragments up to the files' head, then of files."""
        found: list[LogPartition] = []
        head = self._view.head
        if start < head and self._tier is not None:
            found += self._tier.partitions(start, min(limit, head), most_bytes)
        parts: list[FilePart] = []
        for source, end, low, high in self._files(start, limit):
            parts += cut_file(self._extent(source, end, most_bytes), low, high, most_bytes)
        for members in group(parts, most_bytes):
            found.append(
                FilePartition(
                    topic=self._topic,
                    partition=self._partition,
                    directory=str(self._directory),
                    tier_url=self._tier_url,
                    parts=tuple(members),
                )
            )
        return found

    def spans(self, start: int, limit: int, most_bytes: int) -> list[Span]:
        """Return what fragments and files hold of ``[start, limit)``, as far as ``most_bytes`` needs."""
        found: list[Span] = []
        head = self._view.head
        if start < head and self._tier is not None:
            found += self._tier.spans(start, min(limit, head), most_bytes)
        total_bytes = sum(span.size_bytes for span in found)
        for source, end, low, high in self._files(start, limit):
            if total_bytes >= most_bytes:
                break
            extent = self._extent(source, end, PARTITION_BYTES)
            for part in cut_file(extent, low, high, max(1, most_bytes // _CUTS)):
                found.append(Span(part.start, part.limit, max(1, part.size_bytes)))
                total_bytes += part.size_bytes
        return found

    @cached_property
    def _tier(self) -> StoreLog | None:
        """The tier, if it holds anything that comes before the files; asked at most once."""
        head = self._view.head
        if self._tier_url is None or head <= 1:
            return None
        try:
            place = Location(self._tier_url, is_store=True, topic=self._topic)
            tier = StoreLog(place, partition=self._partition)
        except WalError as error:
            if isinstance(error, LogNotFoundError) and not self._view.uploaded_limit:
                return None  # nothing has been shipped yet
            error.add_note("tier=off reads only what is in the log's directory")
            raise
        if tier.head < head <= tier.limit:
            return tier
        tier.close()
        return None

    def _files(self, start: int, limit: int) -> Iterator[tuple[Segment, int, int, int]]:
        """Yield each segment that holds some of ``[start, limit)``, its end, and what of that it holds."""
        for at, source in enumerate(self._view.segments):
            end = self._segment_limit(at)
            low, high = clip((max(source.start, self._view.head), end), start, limit)
            if low < high:
                yield source, end, low, high

    def _segment_limit(self, at: int) -> int:
        segments = self._view.segments
        return segments[at + 1].start if at + 1 < len(segments) else self.limit

    def _extent(self, source: Segment, limit: int, most_bytes: int) -> FileExtent:
        if source.summary is not None:
            end = source.summary.data_bytes
            index = source.index or SegmentIndex()
        else:
            end, index = self._active_extent(source, most_bytes)
        return FileExtent(source.path.name, source.start, limit, end, index)

    def _active_extent(self, source: Segment, most_bytes: int) -> tuple[int, SegmentIndex]:
        """Return where the active file's records end, and an index good enough to cut it."""
        index = source.index or SegmentIndex()
        cell = read_cell(self._view.fs, self._directory)
        end = (
            index.positions[-1] + INDEX_INTERVAL_BYTES if index.positions else segment.HEADER_BYTES
        )
        if cell is not None and cell.tail_start == source.start:
            end = max(end, cell.tail_position)
        last = index.positions[-1] if index.positions else segment.HEADER_BYTES
        if end - last <= max(most_bytes, INDEX_INTERVAL_BYTES):
            return end, index
        # The checkpoint's index is older than the tail; one pass over the file makes a full one.
        return self._walk(source)

    def _walk(self, source: Segment) -> tuple[int, SegmentIndex]:
        index = SegmentIndex()
        with contextlib.closing(self._view.fs.open(source.path, "r")) as file:
            header = read_header(file, source.path)
            chain = Chain(source.start, header.previous_crc, 0, header.epoch)
            end = walk_file(file, source.path, chain, index, segment.HEADER_BYTES, header.salt)
        return end, index
