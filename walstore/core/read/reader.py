"""Reader: a position that moves over a log. It pulls, has no queue, and may be arbitrarily slow."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from operator import length_hint
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from walstore.core.batches.batch import Batch, iterate
from walstore.core.batches.derived import ConcatBatch, EmptyBatch, covering, spanning
from walstore.core.offset_range import OffsetRange
from walstore.core.read.read_source import (
    LaggingSource,
    LocalSource,
    ReadSource,
    SizedSource,
    StreamIndex,
)
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.owned import Owned, checks_itself
from walstore.core.runtime.resource import abandon_in_children
from walstore.core.validation.arguments import as_count, as_int, as_seconds, as_text
from walstore.errors import OffsetTrimmedError, WalClosedError, WalError
from walstore.records import Record, Start, to_timestamp_us

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")

MIB = 1 << 20
_TURN_SECONDS = 0.002
"""After this much work on records that are not delivered, a reader yields to the event loop."""
_TAKEN_APART_RECORDS = 4096
"""How many records of a batch are unpacked at once, which blocks the event loop."""
_ARROW_RECORDS: Final = 128 * 1024
"""Most records of one Arrow batch."""
_AT_ONCE_RECORDS: Final = 256
"""Up to so many records are made into Arrow at once; a thread would cost more."""
_NO_RECORDS: Final[Iterator[Record]] = iter(())
_NONE_LEFT: Final[tuple[Sequence[int], Iterator[object]]] = ((), iter(()))
_NO_OFFSET = "offsets begin at 1; start at 'earliest' for the first record that is retained"
_SEARCH_BYTES = 64 << 10
"""How much is read at once to find the first record for a start by time, or the time of a record."""


def _allow() -> None:
    """For sources without an owner."""


class ReadGuard:
    """Keeps readers from returning buffered records in a wrong thread, or once the log is closed.

    Shared by all readers of a log. Costs one comparison per record: only a thread other than the last
    one repeats the check.
    """

    __slots__ = ("__weakref__", "check", "check_owner", "thread")

    def __init__(
        self, check: Callable[[], None] = _allow, check_owner: Callable[[], None] | None = None
    ) -> None:
        self.check = check
        """Raises WrongLoopError if the caller is not the owner, WalClosedError after closing."""
        self.check_owner = check if check_owner is None else check_owner
        """Raises only if the caller is not the owner."""
        self.thread = 0
        """Identity of the thread checked last; 0 makes every thread repeat the check, which closing
        needs."""
        abandon_in_children(self)

    def abandon(self, error: WalClosedError) -> None:
        """Repeat the check in a child process, whose threads have the same identities."""
        self.thread = 0


async def timestamp_at(source: ReadSource, offset: int) -> int:
    """Return the timestamp of a visible record, in microseconds since 1970 UTC.

    Raises OffsetTrimmedError, OffsetNotWrittenError, and as reading does.
    """
    OffsetRange(source.head, source.tail).check_record(offset, source.limit)
    return (await source.read(offset, offset + 1, _SEARCH_BYTES))[0].timestamps_us[0]


class Reader(Owned):
    """Reads records in offset order, each exactly once, and follows the log with ``follow=True``.

    Use it with ``async for``, :meth:`fetch` or :meth:`batches`; all move the same position. ``async
    with`` is allowed, but there is nothing to release. One task at a time.

    Raises OffsetTrimmedError if its position was removed from the log, OffsetNotWrittenError if it is
    beyond the tail, CorruptionError for damaged data, WalClosedError when the log is closed, also for
    buffered records. After an error or a cancellation the position is that of the first record not yet
    delivered.
    """

    def __init__(
        self,
        source: ReadSource,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        stop: int | None = None,
        stream: str | None = None,
        follow: bool = True,
        read_bytes: int = MIB,
        guard: ReadGuard | None = None,
        may_lack: bool = False,
    ) -> None:
        """Begin at ``start``; see :meth:`walstore.Wal.reader` for the options.

        With ``may_lack`` the log may have more than the source will hear of when it asks: reading beyond the
        tail waits then, and is no error.
        """
        if stream is not None:
            stream = as_text(stream, "stream")
            if not stream:
                raise ValueError(
                    "a stream name is never empty; leave stream out to read all records"
                )
        self._source = source
        self._stream = stream
        self._index = source if stream is not None and isinstance(source, StreamIndex) else None
        self._lagging = source if isinstance(source, LaggingSource) else None
        self._local = source if isinstance(source, LocalSource) else None
        self._stop = None if stop is None else as_int(stop, "stop")
        self._follow = follow
        self._may_lack = may_lack
        self._read_bytes = read_bytes
        self._time_us: int | None
        # Batches read and not yet delivered, the next one last; the first of them is at _position.
        self._batches: list[Batch] = []
        # Records unpacked for ``async for`` and not yet delivered; each is made when it is delivered.
        self._records = _NO_RECORDS
        # Their offsets, with those delivered, and an iterator that has as many left as self._records.
        self._offsets: tuple[Sequence[int], Iterator[object]] = _NONE_LEFT
        self._guard = guard or ReadGuard()
        # Size of the batches of other streams that the last read found instead.
        self._passed_bytes = 0
        # When to yield to the event loop while batches of other streams are skipped.
        self._turn_at = 0.0
        self._position, self._time_us = self._resolve(start, "start")

    def _resolve(self, start: object, what: str) -> tuple[int, int | None]:
        """Return a position, and the time to search from there if a time was given."""
        if isinstance(start, datetime):
            return self._source.head, to_timestamp_us(start)
        if isinstance(start, int) and not isinstance(start, bool):
            return as_int(start, what), None
        try:
            word = Start(start)  # type: ignore[arg-type]
        except ValueError:
            raise ValueError(
                f"{what} must be 'earliest', 'latest', an offset or a datetime, not {start!r}"
            ) from None
        return self._source.head if word is Start.EARLIEST else self._source.limit, None

    async def __aenter__(self) -> Self:
        await self._settle(follow=False)
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
        ``async with``, the head; while no record is late enough, the next one to examine."""
        coming = self._first_unpacked()  # metrics read it on another thread meanwhile
        return self._position if coming is None else coming

    @property
    def is_caught_up(self) -> bool:
        """Whether every record visible now has been delivered.

        With a stream: delivered, or seen to belong to another stream. A reader that has delivered the
        stream's last record may have more records to examine; :meth:`fetch` without waiting does so.
        """
        return self.position >= self._source.limit

    @property
    def lag(self) -> int:
        """How many records that are visible now have not been delivered, whatever their stream."""
        return max(0, self._source.limit - self.position)

    def seek(self, start: Start | str | int | datetime) -> None:
        """Continue at another place: an offset, ``"earliest"``, ``"latest"``, or an aware datetime.

        As ``start`` of :meth:`walstore.Wal.reader`: reading checks whether the log has that offset.
        ValueError for an invalid place; then the reader stays where it is.
        """
        self._guard.check_owner()
        self._position, self._time_us = self._resolve(start, "a place to seek")
        self._batches.clear()
        self._records, self._offsets = _NO_RECORDS, _NONE_LEFT

    def __aiter__(self) -> Self:
        return self

    @checks_itself
    async def __anext__(self) -> Record:
        if get_ident() != self._guard.thread:
            self._guard.check()
            self._guard.thread = get_ident()
        while True:
            for record in self._records:
                return record
            if not await self._unpack():
                raise StopAsyncIteration

    def batches(self) -> AsyncIterator[Batch]:
        """Iterate over batches as they are stored, the cheapest way to read many records.

        A batch counts as delivered when it is yielded.
        """
        return _Batches(self._next_batch)

    def arrow_batches(
        self, columns: Iterable[str] | None = None, *, batch_bytes: int = 4 * MIB
    ) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over the records as ``pyarrow.RecordBatch`` objects; ends, or waits, where the reader does.

        Each has the records that are there, up to ``batch_bytes`` of stored batches and 128 Ki records, and
        is made on a thread. A stored batch is not divided by its bytes, so one may have as many more as one
        commit has. A batch counts as delivered when it is yielded; one that was not is read again.

        Args:
            columns: Which columns of ``walstore.arrow.SCHEMA``, in this order; None for all.
            batch_bytes: 1 or more; 4 MiB by default.

        Raises:
            InvalidSettingsError: There is no such column; at once.
            MissingExtraError: pyarrow is not installed; the extra ``cloud`` has it. At once.
        """
        from walstore.core.batches.arrow import check_columns, rows_of

        names = check_columns(columns)
        most_bytes = as_count(batch_bytes, "batch_bytes")

        async def next_batch() -> pa.RecordBatch | None:
            batch = await self.fetch(max_records=_ARROW_RECORDS, max_bytes=most_bytes)
            if not len(batch):
                return None
            if len(batch) <= _AT_ONCE_RECORDS:
                return rows_of(batch.to_arrow(), names)
            try:
                return await asyncio.to_thread(lambda: rows_of(batch.to_arrow(), names))
            except BaseException:
                self.seek(batch.start)  # it was not delivered
                raise

        return _Batches(next_batch)

    @renamed(max_wait="max_wait_seconds")
    async def fetch(
        self,
        *,
        max_records: int = 500,
        max_bytes: int = MIB,
        max_wait_seconds: float | None = None,
    ) -> Batch:
        """Return the next records as one batch: those available now, up to the limits.

        Waits only if there are none: at most ``max_wait_seconds`` from the call (None: without limit,
        or not at all without ``follow``), then returns an empty batch. ``max_bytes`` counts whole
        stored batches; at least one record is returned whatever its size. Cancelling loses nothing.

        With a stream, ``max_records`` counts only its records, and ``max_bytes`` also the records
        skipped after the first of them, so that no call reads without end to fill a batch. The
        ``limit`` of the returned batch, empty or not, is the new position.
        """
        if max_records < 1:
            raise ValueError(f"max_records must be at least 1, not {max_records}")
        seconds = (
            None if max_wait_seconds is None else as_seconds(max_wait_seconds, "max_wait_seconds")
        )
        self._guard.check()
        self._unread_records()
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        follow = self._follow or deadline is not None
        begin = self._begin()
        parts: list[Batch] = []
        count = size = 0
        while count < max_records and (not parts or size < max_bytes):
            if not self._batches:
                if parts and self._position >= self._source.limit:
                    break  # also of a source that lags: what its answer did not contain comes later
                filling = (
                    self._fill_more(parts)
                    if parts
                    else self._fill(follow=follow, deadline=deadline)
                )
                if not await filling:
                    break
                if not self._batches:  # there were only records of other streams
                    if parts:
                        size += self._passed_bytes
                    elif _seconds_left(deadline) == 0:
                        break
                    continue
            batch = self._pop(max_records - count)
            parts.append(batch)
            count += len(batch)
            size += batch.nbytes
            self._position = batch.limit
        if not parts:
            return EmptyBatch(self._position if begin is None else begin, self._position)
        parts[0] = spanning(parts[0], parts[0].start if begin is None else begin, parts[0].limit)
        parts[-1] = spanning(parts[-1], parts[-1].start, self._position)
        return parts[0] if len(parts) == 1 else ConcatBatch(parts)

    @renamed(max_wait="max_wait_seconds")
    async def wait(self, max_wait_seconds: float | None = None) -> bool:
        """Wait until there are records at the position, of any stream, and read none of them.

        At most ``max_wait_seconds`` (None: without limit). False if there are none then, or never will be:
        before ``stop``. Raises as :meth:`fetch`, and is the way to wait without holding what is waited for.
        """
        seconds = (
            None if max_wait_seconds is None else as_seconds(max_wait_seconds, "max_wait_seconds")
        )
        self._guard.check()
        self._unread_records()
        if self._batches:
            return True
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        return await self._readable(follow=True, deadline=deadline) is not None

    async def coming_bytes(self) -> int:
        """Not for callers: what the next batch takes once it is read; 0 if it is in memory, or if that is
        not known, or if there is none."""
        self._guard.check()
        source, position = self._source, self._position
        if self._batches or not isinstance(source, SizedSource) or position >= source.limit:
            return 0
        return await source.stored_bytes(position)

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._guard.check_owner()

    # -- inside ------------------------------------------------------------------------------

    async def _unpack(self) -> bool:
        """Unpack the next records for ``async for``; False if there are none and the reader does not
        follow."""
        self._guard.check()
        self._unread_records()
        while not self._batches:
            if self._local is None or self._stream is not None:
                if not await self._fill(follow=self._follow):
                    return False
                continue
            limit = await self._readable(follow=self._follow)
            if limit is None:
                return False
            shared = self._local.share_records(self._position, limit)
            if shared is not None:
                taken = iter(shared)
                self._records, self._offsets = taken, (range(self._position, limit), taken)
                self._position = limit
                return True
            batches = self._cached(self._position, limit) or await self._source.read(
                self._position, limit, self._read_bytes
            )
            batches.reverse()
            self._batches = batches
        batch = self._pop(_TAKEN_APART_RECORDS)
        offsets = batch.offsets
        coming = iter(offsets)
        try:
            self._records = iterate(batch, coming)
        except BaseException:
            self._batches.clear()  # the position is still that of the batch
            raise
        self._offsets = (offsets, coming)
        self._position = batch.limit
        return True

    async def _fill_more(self, parts: list[Batch]) -> bool:
        """Continue a fetch that has gathered ``parts``; False if it should end with them."""
        try:
            return await self._fill(follow=False)
        except WalError:
            return False  # the next call begins there and gets the error again
        except BaseException:
            self._batches = parts[::-1]  # they were not delivered: the next call begins with them
            self._position = parts[0].start
            raise

    async def _next_batch(self) -> Batch | None:
        self._guard.check()
        self._unread_records()
        begin = self._begin()
        while not self._batches:
            if not await self._fill(follow=self._follow):
                return None
        batch = self._batches.pop()
        self._position = batch.limit
        return batch if begin is None else spanning(batch, begin, batch.limit)

    def _pop(self, most_records: int) -> Batch:
        """Return the next batch, or ``most_records`` of it: unpacking blocks the event loop."""
        batch = self._batches.pop()
        if len(batch) <= most_records:
            return batch
        cut = batch.offsets[most_records]
        self._batches.append(batch.slice(cut, batch.limit))
        return batch.slice(batch.start, cut)

    def _begin(self) -> int | None:
        """Return where the interval of the next batch begins; None while a start by time is unresolved."""
        return self._position if self._time_us is None else None

    def _unread_records(self) -> None:
        """Put records unpacked for ``async for`` and not delivered back into the batches."""
        coming = self._first_unpacked()
        if coming is not None:
            self._position = coming
            self._batches.clear()
        self._records, self._offsets = _NO_RECORDS, _NONE_LEFT

    def _first_unpacked(self) -> int | None:
        """Return the offset of the next record unpacked for ``async for``; None if all are delivered."""
        offsets, coming = self._offsets
        left = length_hint(coming)
        return offsets[-left] if left else None

    async def _fill(self, *, follow: bool, deadline: float | None = None) -> bool:
        """Read batches at the position; False if there are none and the caller does not wait.

        With a stream there may be no batch, if only other streams were found; then the position has
        moved past them.
        """
        limit = await self._readable(follow=follow, deadline=deadline)
        if limit is None:
            return False
        if self._stream is None:
            batches = self._cached(self._position, limit) or await self._source.read(
                self._position, limit, self._read_bytes
            )
        else:
            batches = await self._read_stream(self._stream, limit)
        batches.reverse()
        self._batches = batches
        return True

    async def _readable(self, *, follow: bool, deadline: float | None = None) -> int | None:
        """Return where reading at the position may end; None if there is nothing to read and the caller
        does not wait."""
        if self._time_us is not None and not await self._settle(
            follow=follow, max_wait_seconds=_seconds_left(deadline)
        ):
            return None
        source, stop = self._source, self._stop
        if stop is not None and self._position >= stop:
            return None
        if (
            self._lagging is not None
            and self._position >= source.limit
            and (not follow or deadline is not None or self._is_beyond())
        ):
            with suppress(
                TimeoutError
            ):  # without time to wait it is asked once, however long that takes
                async with asyncio.timeout_at(deadline if _seconds_left(deadline) else None):
                    await self._lagging.refresh()
        limit = source.limit
        if self._position >= limit:  # a thousand readers may pass here for each record
            if self._is_beyond():
                self._check_position()
            if not follow:
                return None
            wanted = self._position + 1
            if deadline is None:
                await source.wait_limit(wanted)
            elif self._local is not None:
                await self._local.wait_limit(wanted, deadline)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await source.wait_limit(wanted)
            limit = source.limit
            if limit < wanted:
                return None
            if self._stream is not None:
                self._turn_at = asyncio.get_running_loop().time() + _TURN_SECONDS
        if self._position < source.head:
            self._check_position()
        return limit if stop is None else min(limit, stop)

    def _is_beyond(self) -> bool:
        return self._position > self._source.tail and not self._may_lack

    def _check_position(self) -> None:
        position, source = self._position, self._source
        trimmed = "" if position > 0 else _NO_OFFSET
        OffsetRange(source.head, source.tail).check_position(position, trimmed)

    def _cached(self, position: int, limit: int) -> list[Batch]:
        """Return batches from exactly ``position`` if they are in memory; else none."""
        if self._local is None:
            return []
        return self._local.read_cached(position, limit, self._read_bytes)

    async def _read_stream(self, name: str, limit: int) -> list[Batch]:
        """Read at the position and return the stream's records; advance if there are none."""
        position = self._position
        if self._index is not None:
            position = await self._index.skip_stream(name, position, limit)
        found: list[Batch] = []
        batches: list[Batch] = []
        if position == self._position:
            found = self._cached(position, limit) or await self._source.read(
                position, limit, self._read_bytes
            )
            batches = await self._select(found, name)
            position = found[-1].limit
        if not batches:
            self._position = position
            self._passed_bytes = sum(batch.nbytes for batch in found)
        return covering(batches, self._position, position)

    async def _select(self, batches: Sequence[Batch], name: str) -> list[Batch]:
        """Return the stream's part of the batches, without empty ones.

        Cached batches are read without waiting, and there may be many to skip: this yields to the event
        loop every few milliseconds.
        """
        time = asyncio.get_running_loop().time
        found: list[Batch] = []
        for batch in batches:
            if batch.may_hold_stream(name):
                part = batch.select_stream(name)
                if len(part):
                    found.append(part)
            if time() >= self._turn_at:
                await asyncio.sleep(0)  # noqa: TID251 - no wait is meant
                self._turn_at = time() + _TURN_SECONDS
        return found

    async def _settle(self, *, follow: bool, max_wait_seconds: float | None = None) -> bool:
        """Turn a start by time into the offset of the first record that is not older.

        Waits for that record if there is none yet, skipping older ones that arrive meanwhile. False if
        there is none and the caller does not wait; then the next call continues the search.
        """
        if self._time_us is None:
            return True
        source = self._source
        deadline = (
            None
            if max_wait_seconds is None
            else asyncio.get_running_loop().time() + max_wait_seconds
        )
        position = await source.offset_at(self._time_us)
        while True:
            self._position = position = max(position, source.head)
            limit = source.limit if self._stop is None else min(source.limit, self._stop)
            if position < limit:
                try:
                    batches = await source.read(position, limit, _SEARCH_BYTES)
                except OffsetTrimmedError:
                    if position >= source.head:
                        raise
                    continue
                for batch in batches:
                    at = bisect_left(batch.timestamps_us, self._time_us)
                    position = batch.start + at
                    if at < len(batch):
                        self._position, self._time_us = position, None
                        return True
            elif not follow or (self._stop is not None and position >= self._stop):
                return False
            else:
                try:
                    async with asyncio.timeout_at(deadline):
                        await source.wait_limit(position + 1)
                except TimeoutError:
                    return False
                if source.limit <= position:
                    return False


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())


class _Batches(AsyncIterator[_T]):
    """Iterates over a reader's batches. Not a generator, so that abandoning it leaves nothing behind."""

    def __init__(self, next_batch: Callable[[], Awaitable[_T | None]]) -> None:
        self._next_batch = next_batch

    async def __anext__(self) -> _T:
        batch = await self._next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch
