"""Reader: a position that moves over a log. Pulls; holds no queue; may be as slow as it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from walstore.batch import Batch, ConcatBatch, EmptyBatch
from walstore.errors import OffsetNotWrittenError, OffsetTrimmedError, WalError
from walstore.records import Record, Start, to_timestamp_us

MIB = 1 << 20


class ReadSource(Protocol):
    """What a reader reads from: a local log with its tiers, or a log in object storage."""

    @property
    def head(self) -> int:
        """First offset that can be read."""

    @property
    def limit(self) -> int:
        """Offset after the last one that readers may see now."""

    @property
    def tail(self) -> int:
        """Next offset to be assigned; at least ``limit``."""

    async def wait_limit(self, limit: int) -> None:
        """Return when the visible limit has reached ``limit``; raises when the log closes."""

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record."""

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first visible offset at or after a time, or the limit if all are older."""


class Reader:
    """Reads records in offset order, each exactly once, following the log if asked to.

    Use it with ``async for``, or :meth:`fetch`, or :meth:`batches`; all move the same position. It
    may be used with ``async with``, but holds nothing that must be released. One task at a time.

    Raises OffsetTrimmedError if its position was removed from the log, OffsetNotWrittenError if it
    lies beyond the tail, CorruptionError for damaged data, WalClosedError when the log is closed. After
    an error or a cancellation the position is that of the first record not yet delivered.
    """

    def __init__(
        self,
        source: ReadSource,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        stop: int | None = None,
        follow: bool = True,
        read_bytes: int = MIB,
    ) -> None:
        """Begin at ``start``; see :meth:`walstore.Wal.reader` for the options."""
        self._source = source
        self._stop = stop
        self._follow = follow
        self._read_bytes = read_bytes
        self._time_us: int | None = None
        # Batches read and not yet delivered, the next one last; the first of them is at _position.
        self._batches: list[Batch] = []
        self._records: Sequence[Record] = ()
        self._next_record = 0
        self._position = self._resolve(start)

    def _resolve(self, start: Start | str | int | datetime) -> int:
        if isinstance(start, datetime):
            self._time_us = to_timestamp_us(start)
            return self._source.head
        if isinstance(start, int) and not isinstance(start, bool):
            return start
        try:
            word = Start(start)  # type: ignore[arg-type]
        except ValueError:
            raise ValueError(
                f"start must be 'earliest', 'latest', an offset or a datetime, not {start!r}"
            ) from None
        return self._source.head if word is Start.EARLIEST else self._source.limit

    async def __aenter__(self) -> Self:
        await self._settle()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._unread_records()
        self._batches.clear()

    @property
    def position(self) -> int:
        """Offset of the next record to be delivered. For a start by time: before the first read or
        ``async with``, the head."""
        if self._next_record < len(self._records):
            return self._records[self._next_record].offset
        return self._position

    @property
    def is_caught_up(self) -> bool:
        """Whether every record visible now has been delivered."""
        return self.position >= self._source.limit

    def seek(self, offset: int) -> None:
        """Continue at ``offset`` instead. Checked when it is read."""
        self._position = offset
        self._time_us = None
        self._batches.clear()
        self._records = ()
        self._next_record = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        at = self._next_record
        try:
            record = self._records[at]
        except IndexError:
            batch = await self._next_batch()
            if batch is None:
                raise StopAsyncIteration from None
            self._records = batch.records()
            at, record = 0, self._records[0]
        self._next_record = at + 1
        return record

    def batches(self) -> AsyncIterator[Batch]:
        """Iterate over batches as they lie in the log, the cheapest way to read much.

        A batch counts as delivered when it is yielded.
        """
        return _Batches(self._next_batch)

    async def fetch(
        self,
        *,
        max_records: int = 500,
        max_bytes: int = MIB,
        max_wait: float | None = None,
    ) -> Batch:
        """Return the next records as one batch: what is there now, up to the limits.

        Waits only if there is nothing: at most ``max_wait`` seconds (None: as long as it takes, or
        not at all without ``follow``), then returns an empty batch. ``max_bytes`` counts whole stored
        batches; at least one record is returned whatever its size. Cancelling loses nothing.
        """
        if max_records < 1:
            raise ValueError(f"max_records must be at least 1, not {max_records}")
        self._unread_records()
        parts: list[Batch] = []
        count = size = 0
        while count < max_records and (not parts or size < max_bytes):
            if not self._batches:
                follow = not parts and (self._follow or max_wait is not None)
                try:
                    if not await self._fill(follow=follow, max_wait=max_wait):
                        break
                except WalError:
                    if not parts:
                        raise
                    break  # the next call begins there and meets it again
                except BaseException:
                    if parts:
                        self.seek(parts[0].start)  # they were not delivered
                    raise
            batch = self._batches.pop()
            room = max_records - count
            if len(batch) > room:
                self._batches.append(batch.slice(batch.start + room, batch.limit))
                batch = batch.slice(batch.start, batch.start + room)
            parts.append(batch)
            count += len(batch)
            size += batch.nbytes
            self._position = batch.limit
        if not parts:
            return EmptyBatch(self._position)
        return parts[0] if len(parts) == 1 else ConcatBatch(parts)

    # -- inside ------------------------------------------------------------------------------

    async def _next_batch(self) -> Batch | None:
        self._unread_records()
        if not self._batches and not await self._fill(follow=self._follow):
            return None
        batch = self._batches.pop()
        self._position = batch.limit
        return batch

    def _unread_records(self) -> None:
        """Return records taken apart for ``async for`` and not delivered to the batches."""
        if self._next_record < len(self._records):
            position = self._records[self._next_record].offset
            self._batches.clear()
            self._position = position
        self._records = ()
        self._next_record = 0

    async def _fill(self, *, follow: bool, max_wait: float | None = None) -> bool:
        """Read batches at the position; False if there are none and none are waited for."""
        await self._settle()
        source = self._source
        if self._stop is not None and self._position >= self._stop:
            return False
        if self._position > source.tail:
            raise OffsetNotWrittenError(
                "the offset has not been written yet",
                requested=self._position,
                head=source.head,
                tail=source.tail,
            )
        if self._position >= source.limit:
            if not follow:
                return False
            try:
                async with asyncio.timeout(max_wait):
                    await source.wait_limit(self._position + 1)
            except TimeoutError:
                return False
        if self._position < source.head:
            raise OffsetTrimmedError(
                "the offset was removed from the log",
                requested=self._position,
                head=source.head,
                tail=source.tail,
            )
        limit = source.limit if self._stop is None else min(source.limit, self._stop)
        batches = await source.read(self._position, limit, self._read_bytes)
        batches.reverse()
        self._batches = batches
        return True

    async def _settle(self) -> None:
        """Turn a start by time into an offset, once."""
        if self._time_us is not None:
            self._position = await self._source.offset_at(self._time_us)
            self._time_us = None


class _Batches:
    """Iterates over a reader's batches. Not a generator, so that abandoning it leaves nothing behind."""

    def __init__(self, next_batch: Callable[[], Awaitable[Batch | None]]) -> None:
        self._next_batch = next_batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        batch = await self._next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch
