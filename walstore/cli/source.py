"""Logs that read-only verbs read: a directory without its lock, or a prefix in object storage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from walstore.batches.batch import Batch
from walstore.cli.location import is_url, to_directory
from walstore.errors import OffsetNotWrittenError, OffsetTrimmedError
from walstore.log.readonly import ReadonlyWal

if TYPE_CHECKING:
    from uploader.read.cloud_log import CloudLog


class OpenedLog(Protocol):
    """A log at the moment it was opened."""

    @property
    def head(self) -> int:
        """First offset that can be read."""

    @property
    def limit(self) -> int:
        """Offset after the last one that could be read when it was opened."""

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time, or :attr:`limit` if all records are older."""

    def batches(
        self, start: int, stop: int | None, *, stream: str | None = None
    ) -> AsyncIterator[Batch]:
        """Yield the records of ``[start, stop)``, of one stream if one is named.

        With ``stop`` None go on with new ones for ever.
        """


class LocalLog:
    """A log directory, read through its files, beside a live writer or without one."""

    def __init__(self, log: ReadonlyWal) -> None:
        self._log = log
        self._limit = log.limit

    @property
    def head(self) -> int:
        """First offset on local disk."""
        return self._log.head

    @property
    def limit(self) -> int:
        """Durable limit when the directory was opened."""
        return self._limit

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time; see :class:`OpenedLog`."""
        return min(await self._log.offset_at(timestamp_us), self._limit)

    async def batches(
        self, start: int, stop: int | None, *, stream: str | None = None
    ) -> AsyncIterator[Batch]:
        """Yield records; see :class:`OpenedLog`. Follows as :meth:`ReadonlyWal.reader` does."""
        _check(start, self)
        follow = stop is None
        async with self._log.reader(start, stop=stop, stream=stream, follow=follow) as reader:
            async for batch in reader.batches():
                yield batch


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
        """Return the first offset at or after a time; see :class:`OpenedLog`."""
        return await self._log.offset_at(timestamp_us)

    async def batches(
        self, start: int, stop: int | None, *, stream: str | None = None
    ) -> AsyncIterator[Batch]:
        """Yield records; see :class:`OpenedLog`. Follows as :meth:`CloudLog.reader` does."""
        _check(start, self)
        follow = stop is None
        async with self._log.reader(start, stop=stop, stream=stream, follow=follow) as reader:
            async for batch in reader.batches():
                yield batch


@asynccontextmanager
async def open_location(location: str) -> AsyncIterator[OpenedLog]:
    """Open the log at a directory or store URL for reading; raises the typed errors of both."""
    if is_url(location):
        from uploader.read.cloud_log import CloudLog

        async with CloudLog.open(location) as log:
            yield StoredLog(log)
    else:
        async with ReadonlyWal.open(to_directory(location, "this")) as readonly:
            yield LocalLog(readonly)


def _check(start: int, log: OpenedLog) -> None:
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
