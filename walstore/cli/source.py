"""Logs that read-only verbs read: a directory without its lock, or a prefix in object storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from walstore.batch import Batch
from walstore.cli.follower import DirectoryFollower
from walstore.cli.location import is_url
from walstore.clock import SystemClock
from walstore.errors import OffsetNotWrittenError, OffsetTrimmedError
from walstore.segment_file import find_time
from walstore.view import LogView

if TYPE_CHECKING:
    from uploader.cloud_log import CloudLog

FIRST_POLL_SECONDS = 0.001
LONGEST_POLL_SECONDS = 0.05


class ReadableLog(Protocol):
    """A log at the moment it was opened."""

    @property
    def head(self) -> int:
        """First offset that can be read."""

    @property
    def limit(self) -> int:
        """Offset after the last one that could be read when it was opened."""

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time, or :attr:`limit` if all records are older."""

    def batches(self, start: int, stop: int | None) -> AsyncIterator[Batch]:
        """Yield the records of ``[start, stop)``; with ``stop`` None go on with new ones for ever."""


class DirectoryLog:
    """A log directory, read through its files, beside a live writer or without one."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self._clock = SystemClock()

    @property
    def head(self) -> int:
        """First offset on local disk."""
        return self._view.head

    @property
    def limit(self) -> int:
        """Durable limit when the directory was opened."""
        return self._view.durable_limit

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time; see :class:`ReadableLog`."""
        return await asyncio.to_thread(self._offset_at, timestamp_us)

    async def batches(self, start: int, stop: int | None) -> AsyncIterator[Batch]:
        """Yield records; see :class:`ReadableLog`.

        Follows by looking at the log's durable cell, again after 1 ms at first, then at growing
        intervals, at most 50 ms, while nothing new is there.
        """
        _check(start, self)
        follower = DirectoryFollower(self._view.path, start)
        pause = FIRST_POLL_SECONDS
        try:
            while stop is None or follower.position < stop:
                found = await asyncio.to_thread(follower.poll, stop)
                for batch in found:
                    yield batch
                if found:
                    pause = FIRST_POLL_SECONDS
                elif stop is None:
                    await self._clock.sleep(pause)
                    pause = min(pause * 2, LONGEST_POLL_SECONDS)
                else:
                    return
        finally:
            follower.close()

    def _offset_at(self, timestamp_us: int) -> int:
        view = self._view
        for segment in view.segments:
            if segment.summary and segment.summary.max_timestamp_us < timestamp_us:
                continue
            found = find_time(view.fs, segment, timestamp_us, view.durable_limit)
            if found is not None:
                return max(found, view.head)
        return view.durable_limit


class StoredLog:
    """A log in object storage."""

    def __init__(self, log: CloudLog) -> None:
        self._log = log
        self._limit = log.tail

    @property
    def head(self) -> int:
        """First offset in the store."""
        return self._log.head

    @property
    def limit(self) -> int:
        """Tail of the manifest when the log was opened."""
        return self._limit

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time; see :class:`ReadableLog`."""
        return await self._log.offset_at(timestamp_us)

    async def batches(self, start: int, stop: int | None) -> AsyncIterator[Batch]:
        """Yield records; see :class:`ReadableLog`. Follows as :meth:`CloudLog.reader` does."""
        _check(start, self)
        async with self._log.reader(start=start, stop=stop, follow=stop is None) as reader:
            async for batch in reader.batches():
                yield batch


@asynccontextmanager
async def open_location(location: str) -> AsyncIterator[ReadableLog]:
    """Open the log at a directory or store URL for reading; raises the typed errors of both."""
    if is_url(location):
        from uploader.cloud_log import CloudLog

        async with CloudLog.open(location) as log:
            yield StoredLog(log)
    else:
        yield DirectoryLog(await asyncio.to_thread(LogView.open, Path(location)))


def _check(start: int, log: ReadableLog) -> None:
    """Refuse to start where nothing is, instead of silently starting elsewhere."""
    if start < log.head:
        raise OffsetTrimmedError(
            "the offset was removed from the log", requested=start, head=log.head, tail=log.limit
        )
    if start > log.limit:
        raise OffsetNotWrittenError(
            "the offset has not been written yet",
            requested=start,
            head=log.head,
            tail=log.limit,
        )
