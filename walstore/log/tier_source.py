"""Shipping: a log as the cloud tier sees it: its records at opening, and the records to ship."""

from __future__ import annotations

import asyncio
from bisect import bisect_right

from walstore.core.append.log_state import LogState
from walstore.core.append.tail import Tail
from walstore.core.append.writer import Writer
from walstore.core.batches.batch import Batch
from walstore.core.files.segment_file import read_batches
from walstore.core.offset_range import OffsetRange
from walstore.core.read.tiered import NOT_LOCAL, TieredSource
from walstore.core.runtime.error_mapping import describe_read
from walstore.core.runtime.threads import Lane
from walstore.core.tier_port import Tier
from walstore.errors import WalError
from walstore.log.opening import Opened


class RecoveredRecords:
    """Implements :class:`walstore.core.tier_port.LocalRecords` for a recovered log that has no writer yet."""

    def __init__(self, opened: Opened, reading: Lane, *, uploaded_limit: int) -> None:
        self._opened = opened
        self._segments = [*opened.sealed, opened.tail.active]
        self._reading = reading
        self.head = opened.tail.head
        """First offset on local disk."""
        self.durable_limit = opened.tail.durable_limit
        """Every offset below is on disk."""
        self.uploaded_limit = uploaded_limit
        """Every offset below is known to be named by a manifest."""

    async def read_local(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; OffsetTrimmedError below ``head``.

        CorruptionError or StorageUnavailableError if the file cannot be read.
        """
        OffsetRange(self.head, self.durable_limit).check_head(position, NOT_LOCAL)
        at = bisect_right(self._segments, position, key=lambda segment: segment.start)
        segment = self._segments[at - 1]
        if segment.summary is not None:
            limit = min(limit, segment.summary.limit)
        try:
            return await self._reading.run(
                read_batches, self._opened.fs, segment, position, limit, max_bytes
            )
        except OSError as error:
            raise describe_read(error, segment.path) from error


class Shipping:
    """Implements :class:`walstore.core.tier_port.TierSource` over an open log.

    Of a replicated log only what is on enough machines is shown: a takeover may cut the rest.
    """

    def __init__(self, state: LogState, source: TieredSource, writer: Writer, log_id: str) -> None:
        self._state = state
        self._source = source
        self._writer = writer
        self._limit = state.durable if state.replicated is None else state.replicated
        self.log_id = log_id
        """Hex identity of the log."""

    @property
    def head(self) -> int:
        """First offset still on local disk."""
        return self._state.head

    @property
    def durable_limit(self) -> int:
        """Every offset below is on disk, or on enough machines; only those may be shipped."""
        return self._limit.value

    @property
    def uploaded_limit(self) -> int:
        """Every offset below is known to be named by a manifest."""
        return self._state.uploaded.value

    @property
    def wants_cloud(self) -> bool:
        """Whether a caller is waiting for a record to reach the cloud."""
        return self._state.wants_cloud

    @property
    def is_draining(self) -> bool:
        """Whether the log is closing."""
        return self._state.is_draining

    @property
    def appended_bytes(self) -> int:
        """Bytes of frames that became durable since the log was opened."""
        return self._state.appended_bytes

    async def wait_durable_limit(self, limit: int) -> None:
        """Return when the durable limit has reached ``limit``, or when the log is draining."""
        if self._state.is_draining or self.durable_limit >= limit:
            return
        reached = self._limit.waiter(limit)
        try:
            await asyncio.wait((reached, self._state.draining), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not reached.cancel() and not reached.cancelled():
                reached.exception()  # too few copies, or a failed log, which drains; reported elsewhere

    async def wait_draining(self) -> None:
        """Return when the log is closing."""
        await asyncio.wait((self._state.draining,))

    async def wait_shipping_due(self, appended_bytes: int) -> None:
        """Return when shipping is due."""
        await self._state.wait_shipping_due(appended_bytes)

    async def read_local(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``, from cache or files only."""
        return await self._source.read_local(position, limit, max_bytes)

    def advance_uploaded(self, limit: int) -> None:
        """Record that a manifest now names every offset below ``limit``."""
        self._writer.note_uploaded(limit)
        self._state.advance_uploaded(limit)

    def refuse_cloud(self, error: WalError) -> None:
        """Fail the callers that wait for the cloud; see the port."""
        self._state.refuse_cloud(error)


def local_uploaded_limit(tail: Tail, tier: Tier | None) -> int:
    """Return the limit of what this directory is known to have shipped or no longer has.

    A manifest may name more; the tier reports that once it has compared it with the local records.
    """
    if tier is None:
        return max(tail.uploaded_limit, 1)
    return min(tier.limit, max(tail.uploaded_limit, tail.head))
