"""TieredSource: reads the batch at a position from the fastest tier that has it.

Each read chooses the tier again, so a reader moves between cloud, files and cache as needed: commits,
rotation, upload and deletion may change the tiers at any time. Where a local file is damaged, missing
or unreadable and the tier has the position, the tier's copy is read instead. The uploader's own reads
never come from the tier.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from walstore.core.append.channel import Channel
from walstore.core.append.log_state import LogState
from walstore.core.batches.batch import Batch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.files.segment_file import (
    Segment,
    find_offset,
    load_streams,
    read_batches,
    stored_bytes,
)
from walstore.core.format.frame import ColumnKind
from walstore.core.offset_range import OffsetRange
from walstore.core.ports import FileSystem
from walstore.core.read.reader import ReadGuard, timestamp_at
from walstore.core.runtime.error_mapping import copy_error, describe_read
from walstore.core.runtime.threads import Lane
from walstore.core.tier_port import Tier
from walstore.errors import CorruptionError, OffsetTrimmedError, WalClosedError, WalError
from walstore.records import Record

logger = logging.getLogger("walstore.log")

NOT_LOCAL: Final = "the offset is no longer on local disk"
"""Why a record cannot be shipped."""
_SHARED_RECORDS: Final = 1024
_SHARED_BYTES: Final = 256 << 10
"""How much is made at once for all readers that follow the log; if there is more, each reads by itself."""
_SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR))
"""Temporary shortages of the system; the file may be intact."""


class TieredSource:
    """Reads an open log: cache, then files, then the cloud tier."""

    def __init__(
        self,
        *,
        state: LogState,
        channel: Channel,
        fs: FileSystem,
        worker: Lane,
        tier: Tier | None,
    ) -> None:
        self._state = state
        self._fs = fs
        self._worker = worker
        self._tier = tier
        self._channel = channel
        self._closed: WalError | None = None
        self.guard = ReadGuard(self.check_open, channel.check_loop)
        """Shared by all readers of the log."""
        # Bytes of the batches that reads returned, by source.
        self.cache_read_bytes = 0
        self.file_reads = 0
        self.file_read_bytes = 0
        self.tier_reads = 0
        self.tier_read_bytes = 0
        self.healed_reads = 0
        """Reads served from the tier because a local file is damaged, including searches by time."""
        self._damaged = DamagedSegments()
        self.repair: Callable[[int], Awaitable[bool]] | None = None
        """Repairs a segment, by its first offset, and returns whether it is whole then."""
        # The interval that a reader wanted last, and its records and their size if several want it now.
        self._wanted = (0, 0)
        self._shared: tuple[list[Record] | None, int] | None = None

    @property
    def head(self) -> int:
        """First offset that can be read from any tier."""
        tier, head = self._tier, self._state.head
        if tier is not None and tier.head < tier.limit and tier.head < head <= tier.limit:
            return tier.head
        return head

    @property
    def limit(self) -> int:
        """Offset after the last visible record: the durable limit, unless syncing is left to the system."""
        return self._state.visible.value

    @property
    def tail(self) -> int:
        """Next offset to be assigned."""
        return self._channel.tail

    async def wait_limit(self, limit: int, deadline: float | None = None) -> None:
        """Return when the visible limit has reached ``limit``, or at the deadline, a time of the event
        loop; raises when the log closes."""
        visible = self._state.visible
        while visible.value < limit:
            future = visible.waiter(limit)
            timer: asyncio.TimerHandle | None = None
            if deadline is not None:
                timer = asyncio.get_running_loop().call_at(deadline, _give_up, future)
            try:
                await future
            except asyncio.CancelledError:
                visible.note_abandoned()
                raise
            except WalClosedError:
                raise
            except WalError as error:
                if (
                    error.retriable
                ):  # too few copies: those who append give up, readers wait for more
                    continue
                raise WalClosedError(f"the log failed: {error}", reason="failed") from error
            finally:
                if timer is not None:
                    timer.cancel()
            if visible.value < limit:
                visible.note_abandoned()
            return

    def read_cached(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position`` if it is cached, else an empty list."""
        if self._closed is not None:
            return []
        cached = self._state.cache.read(position, limit, max_bytes)
        for batch in cached:
            self.cache_read_bytes += batch.nbytes
        return cached

    def share_records(self, position: int, limit: int) -> list[Record] | None:
        """Return all records of ``[position, limit)`` if they are few, cached, and wanted by other readers
        at this moment; else None.

        A thousand readers may follow a log, and each commit wakes them in one turn of the event loop.
        What is made for them is forgotten in the next turn. Records with headers are not shared: a caller
        might change the dict.
        """
        if limit - position > _SHARED_RECORDS or self._closed is not None:
            return None
        wanted, self._wanted = self._wanted, (position, limit)
        if wanted != self._wanted:
            self._shared = None
            return None
        if self._shared is None:
            batches = self._state.cache.read(position, limit, _SHARED_BYTES)
            records: list[Record] | None = None
            if batches and batches[-1].limit == limit and all(map(_is_sharable, batches)):
                records = [record for batch in batches for record in batch]
            self._shared = records, _size(batches)
            asyncio.get_running_loop().call_soon(self._forget_shared)
        elif self._shared[0] is not None:
            self._state.cache.hits += 1
        records, size = self._shared
        if records is not None:
            self.cache_read_bytes += size
        return records

    def _forget_shared(self) -> None:
        self._shared = None

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record.

        The caller ensures ``position < limit <= self.limit``. Raises OffsetTrimmedError if no tier has
        the position any more, CorruptionError, StorageUnavailableError.
        """
        try:
            return await self._read(position, limit, max_bytes)
        except WalError as error:
            self._state.errors.count(error)
            raise

    async def stored_bytes(self, position: int) -> int:
        """As of :class:`walstore.core.read.read_source.SizedSource`."""
        segment = self._state.segment_of(position)
        if segment is None or self._state.cache.has(position):
            return 0
        try:
            return await self._worker.run(stored_bytes, self._fs, segment, position)
        except (OSError, WalError):
            return 0  # reading there raises the right error, or is healed

    async def _read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        while True:
            self.check_open()
            try:
                found = await self._read_local(position, limit, max_bytes)
            except WalError as error:
                if not is_damage(error):
                    raise
                return await self._heal(error, position, limit, max_bytes)
            if found:
                return found
            if position < self._state.head:
                tier = self._holder_of(position)
                if tier is None:
                    raise OffsetRange(self.head, self.limit).trimmed(position)
                return await self._read_tier(tier, position, limit, max_bytes)

    async def _heal(
        self, error: WalError, position: int, limit: int, max_bytes: int
    ) -> list[Batch]:
        """Return the tier's copy of what could not be read locally; raise ``error`` if it has none."""
        tier, segment = self._holder_of(position), self._state.segment_of(position)
        if tier is None or segment is None:
            raise error
        self._damaged.report(segment, error, tier.url)
        try:
            found = await self._read_tier(tier, position, limit, max_bytes)
        except (OffsetTrimmedError, CorruptionError) as worse:
            raise error from worse
        self.healed_reads += 1
        return found

    def _holder_of(self, position: int) -> Tier | None:
        """Return the tier if it has the position."""
        tier = self._tier
        return tier if tier is not None and tier.head <= position < tier.limit else None

    async def _read_tier(
        self, tier: Tier, position: int, limit: int, max_bytes: int
    ) -> list[Batch]:
        self.tier_reads += 1
        found = await tier.read(position, min(limit, tier.limit), max_bytes)
        self.tier_read_bytes += _size(found)
        return found

    async def skip_stream(self, name: str, position: int, limit: int) -> int:
        """Return an offset in ``[position, limit]`` with no record of the stream between ``position``
        and it.

        Skips the sealed segments, from the one at ``position`` on, whose footers list no such record.
        Reads each footer once and no records.
        """
        while position < limit:
            segment = self._state.segment_of(position)
            if segment is None or segment.summary is None:
                break
            streams = segment.known_streams
            if streams is None:
                try:
                    streams = await self._worker.run(load_streams, self._fs, segment)
                except (OSError, WalError):
                    break  # reading there raises the right error
            if streams.may_hold(name):
                break
            position = min(limit, segment.summary.limit)
        return position

    async def read_local(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return batches from cache or files only; OffsetTrimmedError if they are gone.

        The caller ensures ``position < limit <= self.limit``. CorruptionError if the file is damaged,
        even if the tier has a copy: records from the tier must not be shipped as new.
        """
        while True:
            OffsetRange(self._state.head, self.limit).check_head(position, NOT_LOCAL)
            try:
                found = await self._read_local(position, limit, max_bytes)
            except CorruptionError as error:
                if self._tier is None or self._holder_of(position) is not None:
                    raise
                raise not_shipped(error, self._tier.limit) from error
            if found:
                return found

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first visible offset at or after a time, or the limit if all records are older.

        Costs one binary search over the segments, whose times are in memory, and a read at one place.
        """
        self.check_open()
        if self._tier is not None and self.head < self._state.head:
            found = await self._tier.offset_at(timestamp_us)
            if found is not None and found < self._state.head:
                return found
        try:
            return await self._offset_in_files(timestamp_us)
        except WalError as error:
            if not is_damage(error):
                raise
            return await self._heal_offset_at(error, timestamp_us)

    async def _offset_in_files(self, timestamp_us: int, least: int = 0) -> int:
        """Search as :meth:`offset_at` does, in the segments that end after ``least``. What is damaged is
        repaired first, if other copies of the log have it."""
        repaired: set[int] = set()
        while True:
            limit = self.limit
            segments = [
                one
                for one in self._segments_at(timestamp_us)
                if one.summary is None or one.summary.limit > least
            ]
            self.file_reads += 1
            try:
                found = await self._worker.run(find_offset, self._fs, segments, timestamp_us, limit)
            except (OSError, CorruptionError) as error:
                if isinstance(error, OSError):
                    if any(one.start not in self._state.segments for one in segments):
                        continue  # deleted meanwhile
                    failure = describe_read(error, segments[0].path.parent)
                else:
                    failure = error
                left = [one for one in _damaged(failure, segments) if one.start not in repaired]
                if not left or not await self._repair(failure, *left):
                    raise failure from failure.__cause__
                repaired.update(one.start for one in left)
                continue
            return max(limit if found is None else found, self._state.head)

    async def _heal_offset_at(self, error: WalError, timestamp_us: int) -> int:
        """Search for a time in the tier, and in the files only after the end of the tier."""
        tier, head = self._tier, self._state.head
        if tier is None or not tier.head <= head < tier.limit:
            raise error
        limit = tier.limit
        found = await tier.offset_at(timestamp_us)
        if found is None:  # everything in the tier is older; the damage may begin right after it
            found = await self._offset_in_files(timestamp_us, least=limit)
        segment = self._state.segment_of(min(max(found, head), limit - 1))
        if segment is not None:
            self._damaged.report(segment, error, tier.url)
        self.healed_reads += 1
        return max(found, self._state.head)

    async def timestamp_at(self, offset: int) -> int:
        """Return the timestamp of a visible record, in microseconds since 1970 UTC.

        Raises OffsetTrimmedError, OffsetNotWrittenError for one that is not visible yet, and as
        :meth:`read`.
        """
        return await timestamp_at(self, offset)

    def _segments_at(self, timestamp_us: int) -> list[Segment]:
        """Return the few segments that may contain the first record not older than a time.

        All segments, if the times of some are not in memory.
        """
        sources = self._state.segments.values()
        try:
            at = bisect_left(sources, timestamp_us, 0, len(sources) - 1, key=_latest_us)
        except LookupError:
            return list(sources)
        return list(sources[at : at + 2])

    def close(self, error: WalError) -> None:
        """Fail every read from now on with ``error``, also of records that readers have buffered."""
        self._closed = error
        self.guard.thread = 0

    def check_open(self) -> None:
        """Raise the error that ended reading, or WrongLoopError for another thread or event loop."""
        if self._closed is not None:
            raise copy_error(self._closed)
        self._channel.check_loop()

    async def _read_local(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return batches from cache or files; an empty list if the files were deleted meanwhile.

        A file that is damaged is repaired first, if other copies of the log have what is missing.
        """
        try:
            return await self._read_files(position, limit, max_bytes)
        except WalError as error:
            segment = self._state.segment_of(position)
            if segment is None or not await self._repair(error, segment):
                raise
        return await self._read_files(position, limit, max_bytes)

    async def _repair(self, error: WalError, *segments: Segment) -> bool:
        """Repair the segments that an error may be about; return whether they are whole then."""
        if self.repair is None or not is_damage(error):
            return False
        return all([await self.repair(one.start) for one in segments])

    async def _read_files(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        cached = self._state.cache.read(position, limit, max_bytes)
        if cached:
            self.cache_read_bytes += _size(cached)
            return cached
        segment: Segment | None = self._state.segment_of(position)
        if segment is None:
            return []
        if segment.summary is not None:
            limit = min(limit, segment.summary.limit)
        self.file_reads += 1
        try:
            found = await self._worker.run(
                read_batches, self._fs, segment, position, limit, max_bytes
            )
        except OSError as error:
            if position < self._state.head:
                return []
            raise describe_read(error, segment.path) from error
        self.file_read_bytes += _size(found)
        return found


def _latest_us(source: Segment) -> int:
    if source.summary is None:
        raise LookupError(source.start)
    return source.summary.max_timestamp_us


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _is_sharable(batch: Batch) -> bool:
    return isinstance(batch, FrameBatch) and not batch.has(ColumnKind.HEADERS)


def _size(batches: list[Batch]) -> int:
    return sum(batch.nbytes for batch in batches)


def _damaged(error: WalError, segments: Sequence[Segment]) -> Sequence[Segment]:
    """Return the segment that an error is about, or all of them if it names none."""
    path = error.path if isinstance(error, CorruptionError) else None
    if path is None:
        path = getattr(error.__cause__, "filename", None)
    name = Path(path).name if isinstance(path, str) else ""
    return [one for one in segments if one.path.name == name] or segments


def is_damage(error: WalError) -> bool:
    """Return whether a local file is damaged, missing or unreadable, so that reading a copy helps."""
    if isinstance(error, CorruptionError):
        return True
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno not in _SHORTAGES


class DamagedSegments:
    """The segments of an open log whose files are damaged. Belongs to the event loop."""

    def __init__(self) -> None:
        self._reported: set[int] = set()

    def report(self, segment: Segment, error: WalError, url: str) -> None:
        """Log the damage of a segment, once."""
        if segment.start in self._reported:
            return
        self._reported.add(segment.start)
        logger.error(
            "%s is damaged; its records are read from %s until 'walstore repair --from-tier' has "
            "rebuilt it: %s",
            segment.path,
            url,
            error,
        )


def not_shipped(error: CorruptionError, limit: int) -> CorruptionError:
    """Return the error for damage found by the uploader: the tier has only offsets below ``limit``."""
    where = error.path if error.position is None else f"{error.path} at byte {error.position}"
    bare = str(error).removesuffix(f": {where}")
    found = CorruptionError(
        f"{bare}, and these records are not in the tier, which ends at offset {limit}",
        path=error.path,
        position=error.position,
        expected=error.expected,
        found=error.found,
    )
    found.__cause__ = error
    return found
