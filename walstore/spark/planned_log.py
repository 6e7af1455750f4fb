"""Logs as a plan sees them: a snapshot of a log in an object store, or in a directory. Blocking I/O.

A plan looks at manifests, headers and indexes only. A log in a directory continues backwards in its tier, the
store to which it was shipped. Files are preferred wherever both have a record; for a file that retention
deletes before a task reads it the task reads the tier (``task.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, aclosing, closing, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Final, Self, TypeAlias
from urllib.parse import unquote, urlsplit

from uploader import CloudLog, open_store
from uploader.stores import ObjectStore
from walstore.core.files.directory import read_cell
from walstore.core.files.frame_walk import walk_file
from walstore.core.files.log_files import LogSnapshot
from walstore.core.files.segment_file import Segment, read_header
from walstore.core.format import segment
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import INDEX_INTERVAL_BYTES, SegmentIndex, parse_file_name
from walstore.errors import LogNotFoundError, WalError
from walstore.spark.blocking import SyncRunner
from walstore.spark.partitions import (
    PARTITION_BYTES,
    FileExtent,
    FilePart,
    FilePartition,
    FragmentPart,
    FragmentPartition,
    LogPartition,
    Span,
    clip,
    cut_file,
    group,
)
from walstore.spark.streaming.log_cursor import LogCursor

StoreOpener = Callable[[str], ObjectStore]
"""Opens the store at a URL."""

_CUTS: Final = 8
"""Spans of a file are at most this fraction of the requested bytes."""


class StoreLog:
    """A log in an object store, as of the manifest that was read last; without records before that."""

    def __init__(
        self,
        url: str,
        topic: str,
        partition: int = 0,
        *,
        may_be_new: bool = False,
        runner: SyncRunner | None = None,
        open_store: StoreOpener = open_store,
    ) -> None:
        """Make no request yet.

        ``partition`` is its number if it is one of a partitioned log; such a log ``may_be_new``: without a
        manifest it has no records. A log on the ``runner`` of several logs is closed by :meth:`aclose`.
        """
        self.name = (topic, partition)
        self._url = url
        self._may_be_new = may_be_new
        self._runner = runner or SyncRunner()
        self._open_store = open_store
        self._log: CloudLog | None = None

    @classmethod
    def open(cls, url: str, topic: str, partition: int = 0) -> Self:
        """Return the log after reading its manifest; see :meth:`uploader.CloudLog.open` for the errors."""
        log = cls(url, topic, partition)
        try:
            log._runner.run(log.refresh())
        except BaseException:
            log._runner.close()
            raise
        return log

    async def refresh(self) -> None:
        """Read the manifest: one request if nothing is new.

        Raises LogNotFoundError, CorruptionError, StorageUnavailableError.
        """
        if self._log is not None:
            await self._log.refresh()
            return
        try:
            self._log = await CloudLog.open(self._url, store=self.open_store())
        except LogNotFoundError as error:
            if self._may_be_new:
                return
            await asyncio.to_thread(_hint, error, self._url)
            raise

    def close(self) -> None:
        """Release connections, threads and the event loop."""
        try:
            self._runner.run(self.aclose())
        finally:
            self._runner.close()

    async def aclose(self) -> None:
        """Release connections and threads."""
        if self._log is not None:
            await self._log.aclose()

    def plan(self) -> AbstractContextManager[StoreLog]:
        """Return the log itself, which changes only by :meth:`refresh`, for a ``with`` block."""
        return nullcontext(self)

    def open_store(self) -> ObjectStore:
        """Return the log's store, newly opened."""
        return self._open_store(self._url)

    @property
    def stored(self) -> CloudLog | None:
        """The log; None if it has no manifest yet."""
        return self._log

    def cursor(self, name: str) -> LogCursor:
        """Return a cursor of the log, which need not exist yet; makes no request."""
        if self.stored is None:
            return LogCursor.without_log(self.open_store(), name)
        return LogCursor.of_store(self.stored.cursors, name)

    @property
    def head(self) -> int:
        """First retained offset."""
        return 1 if self._log is None else self._log.head

    @property
    def limit(self) -> int:
        """Offset after the last one in the manifest."""
        return 1 if self._log is None else self._log.tail

    def is_trimmed(self, offset: int) -> bool:
        """Return whether garbage collection has passed the offset."""
        return self._log is not None and offset < self.head

    def offset_at(self, timestamp_us: int) -> int | None:
        """Return the first offset that is not older than a time, or None."""
        if self._log is None:
            return None
        found = self._runner.run(self._log.offset_at(timestamp_us))
        return None if found >= self.limit else found

    def partitions(self, start: int, limit: int, most_bytes: int) -> list[LogPartition]:
        """Return partitions of about ``most_bytes`` that cover ``[start, limit)``, in order.

        They consist of whole fragments, cut only at the ends of the interval.
        """
        if self._log is None:
            return []
        topic, partition = self.name
        entries = self._runner.run(self._log.fragments(start, limit))
        first = self._log.manifest.ours_from
        parts = [
            FragmentPart(
                *clip((entry.start, entry.limit), start, limit),
                entry,
                is_ours=first is not None and entry.seq_no >= first,
            )
            for entry in entries
        ]
        return [
            FragmentPartition(
                topic=topic, partition=partition, url=self._log.url, parts=tuple(members)
            )
            for members in group(parts, most_bytes)
        ]

    def spans(self, start: int, limit: int, most_bytes: int) -> list[Span]:
        """Return the spans of ``[start, limit)`` in fragments, as many as ``most_bytes`` needs.

        Later fragments are not looked up. Raises OffsetTrimmedError if ``start`` was collected.
        """
        if self._log is None:
            return []
        return self._runner.run(_spans(self._log, start, limit, most_bytes))


async def _spans(log: CloudLog, start: int, limit: int, most_bytes: int) -> list[Span]:
    found: list[Span] = []
    total_bytes = 0
    async with aclosing(log.scan(start)) as entries:
        async for entry in entries:
            if entry.start >= limit or total_bytes >= most_bytes:
                break
            low, high = clip((entry.start, entry.limit), start, limit)
            # A part of a fragment counts in proportion to its records.
            size_bytes = entry.num_bytes * (high - low) // (entry.limit - entry.start)
            found.append(Span(low, high, max(1, size_bytes)))
            total_bytes += size_bytes
    return found


def _hint(error: LogNotFoundError, url: str) -> None:
    """Add a note if the URL of a store names a log directory."""
    parts = urlsplit(url)
    directory = Path(unquote(parts.path))
    if parts.scheme == "file" and any(
        parse_file_name(found.name) is not None for found in directory.glob("*.wal")
    ):
        error.add_note(f"there is a log directory at that path: load it by its path, {directory}")


class DirectoryLog:
    """A snapshot of a log's directory, continued backwards in its tier. Close it after planning."""

    def __init__(self, path: str, topic: str, partition: int = 0, *, use_tier: bool = True) -> None:
        """Look at the log; see :meth:`walstore.core.files.log_files.LogSnapshot.open` for the errors.

        ``partition`` is its number if it is one of a partitioned log.
        """
        self._directory = Path(path)
        self._topic = topic
        self._partition = partition
        try:
            self._view = LogSnapshot.open(self._directory)
        except LogNotFoundError as error:
            if (self._directory / "manifest").is_dir():
                error.add_note(f"a log's store is there: load it as file://{self._directory}")
            raise
        self.tier_url = self._view.tier_url if use_tier else None
        """URL to which the log was last shipped; None if there is none, or the tier is not to be used."""

    def close(self) -> None:
        """Release the directory, and the tier's connections, if there are any."""
        self._view.close()
        if "_tier" in self.__dict__ and self._tier is not None:
            self._tier.close()

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
        offset = self._view.offset_at(timestamp_us)
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
        found += [
            FilePartition(
                topic=self._topic,
                partition=self._partition,
                directory=str(self._directory),
                tier_url=self.tier_url,
                parts=tuple(members),
            )
            for members in group(parts, most_bytes)
        ]
        return found

    def spans(self, start: int, limit: int, most_bytes: int) -> list[Span]:
        """Return the spans of ``[start, limit)`` in fragments and files, as many as ``most_bytes`` needs."""
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
        """The tier, if it contains records before those of the files; opened at most once."""
        head = self._view.head
        if self.tier_url is None or head <= 1:
            return None
        try:
            tier = StoreLog.open(self.tier_url, self._topic, self._partition)
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
        """Yield each segment with records of ``[start, limit)``, its end, and these records' offsets."""
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
        index = SegmentIndex()
        with closing(self._view.fs.open(source.path, "r")) as file:
            header = read_header(file, source.path)
            chain = Chain(source.start, header.previous_crc, 0, header.epoch)
            end = walk_file(file, source.path, chain, header.salt, index=index)
        return end, index


PlannedLog: TypeAlias = StoreLog | DirectoryLog
