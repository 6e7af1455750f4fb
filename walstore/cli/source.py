"""Logs that read-only verbs read: a directory without its lock, or a prefix in object storage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from walstore import Batch, OffsetNotWrittenError, OffsetTrimmedError, ReadonlyWal
from walstore.cli.location import is_url, to_directory

if TYPE_CHECKING:
    from uploader import CloudLog


def check_offset(
    offset: int, head: int, limit: int, *, beyond: str = "has not been written yet"
) -> None:
    """Refuse a position outside ``[head, limit]``: OffsetTrimmedError or OffsetNotWrittenError.

    ``beyond`` is the reason in the message of the latter.
    """
    if offset < head:
        raise OffsetTrimmedError(
            "the offset was removed from the log", requested=offset, head=head, tail=limit
        )
    if offset > limit:
        raise OffsetNotWrittenError(f"the offset {beyond}", requested=offset, head=head, tail=limit)


class OpenedLog:
    """A log at the moment it was opened: the files of a directory, with or without a writer, or a store."""

    def __init__(self, log: ReadonlyWal | CloudLog) -> None:
        self._log = log
        self.limit = log.limit if isinstance(log, ReadonlyWal) else log.tail
        """Offset after the last record that could be read when the log was opened."""

    @property
    def head(self) -> int:
        """First offset that can be read."""
        return self._log.head

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time, or :attr:`limit` if all records are older."""
        return min(await self._log.offset_at(timestamp_us), self.limit)

    async def batches(
        self, start: int, stop: int | None, *, stream: str | None = None
    ) -> AsyncIterator[Batch]:
        """Yield the records of ``[start, stop)``, of one stream if one is named.

        With ``stop`` None it follows the log without an end. Raises OffsetTrimmedError or
        OffsetNotWrittenError if the log does not have ``start``.
        """
        check_offset(start, self.head, self.limit)
        follow = stop is None
        async with self._log.reader(start, stop=stop, stream=stream, follow=follow) as reader:
            async for batch in reader.batches():
                yield batch


@asynccontextmanager
async def open_location(location: str) -> AsyncIterator[OpenedLog]:
    """Open the log at a directory or store URL for reading; raises the typed errors of both."""
    if is_url(location):
        from uploader import CloudLog

        async with CloudLog.open(location) as log:
            yield OpenedLog(log)
    else:
        async with ReadonlyWal.open(to_directory(location, "this")) as readonly:
            yield OpenedLog(readonly)
