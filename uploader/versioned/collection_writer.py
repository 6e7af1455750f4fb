"""CollectionWriter: appends to one shard of a collection's pending area, one put-if-absent for each batch.

The key of a batch is the time at which it begins, so of two programs that append the same interval to one
shard exactly one succeeds: the shard is compare-and-append.

A put-if-absent is trusted only where no object was ever removed. The head says so (``purged``). Pending
batches are removed an hour after the merged area contains them, so a head that was read less than ten
minutes before the put's end is new enough: a collector that has not begun then cannot have removed the key.
After any answer that is not prompt, the head is read again, and decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import pyarrow as pa

from uploader.root import cas
from uploader.runtime.task_groups import task_group
from uploader.runtime.two_clock_time import TwoClockTime
from uploader.versioned import batch_file, updates
from uploader.versioned.batch_file import BatchFooter
from uploader.versioned.collection_session import CollectionSession
from uploader.versioned.head import Head
from uploader.versioned.names import pending_key
from uploader.versioned.pending import cover
from uploader.versioned.pending_batch import PendingBatch, StaleSchemaError
from uploader.versioned.schema import MAX_TIME, CollectionSchema
from walstore.core.validation.arguments import as_int
from walstore.errors import (
    CollectionNotFoundError,
    IndefiniteError,
    InvalidSettingsError,
    OutcomeUnknownError,
    UpperMismatchError,
    WalError,
)

logger = logging.getLogger("walstore.collections")

_REFRESH_SECONDS: Final = cas.TRUSTED_SECONDS / 2
"""A head that is older is read again next to the put."""

_T = TypeVar("_T")


class CollectionWriter:
    """Publishes batches in the name of one writer. Any number of tasks may call it; batches go one by one.

    Two programs may use the same name: each batch is decided between them. Writers of different names must
    publish the same updates for the same times.

    All methods raise CollectionNotFoundError if the collection was deleted, and pass on the store's errors.
    """

    def __init__(self, session: CollectionSession, name: str) -> None:
        self.name = name
        """The shard's name."""
        self._session = session
        self._turn = asyncio.Lock()
        self._upper: int | None = None  # where the shard ends, or the merged area, if that is later
        self._position = 0  # where the next batch goes
        self._last_put: TwoClockTime | None = None  # of this writer, into this shard
        self._is_open = False  # whether the outcome of an earlier put is unknown

    async def upper(self) -> int:
        """Return the upper frontier of the shard: where the next batch must begin. Reads the store."""
        self._session.check_home()
        async with self._turn:
            return (await self._survey())[0]

    async def append(
        self, table: pa.Table | pa.RecordBatch | None, *, lower: int, upper: int
    ) -> None:
        """Append the updates of the times ``[lower, upper)``, if the shard ends at ``lower``.

        When it returns, the batch is as durable as the store makes it, and readers see it. The same call
        again, with the same updates, succeeds without a second effect, also from another process, as long as
        the batch is remembered: until an hour after it was merged, and while it is one of the last 64 that
        were. Later the call raises UpperMismatchError, and :meth:`CollectionReader.snapshot` has the updates.

        Args:
            table: The updates, in the collection's columns; ``_t`` is the time of each (default: ``lower``).
                In a ``diff`` collection ``_d`` is the change of the row's count (default: 1), in an
                ``upsert`` collection a true ``_deleted`` removes the key. None: nothing happened in the
                interval.
            lower: Where the batch begins.
            upper: Where it ends, above ``lower``; ``2**64 - 1`` ends the shard for ever.

        Raises:
            UpperMismatchError: The shard ends elsewhere, at ``actual``. This call wrote nothing.
            InvalidSettingsError: The updates do not fit the schema or the interval. Nothing was written.
            OutcomeUnknownError: The store did not report the outcome. Append the same batch again.

        Cancellation leaves the outcome unknown, like OutcomeUnknownError.
        """
        self._session.check_home()
        _check_interval(lower, upper)
        async with self._turn:
            conformed = await self._conform(table, lower, upper)
            at = self._upper
            if at != lower:
                at, _ = await self._survey()
            if at != lower and not await self._is_there(conformed, lower, upper):
                raise _mismatch(self.name, lower, self._upper or 0)
            if at == lower and await self._put(conformed, lower, upper) is not None:
                at, _ = await self._survey()
                raise _mismatch(self.name, lower, at)

    async def publish(
        self, table: pa.Table | pa.RecordBatch | None, *, lower: int, upper: int
    ) -> int:
        """Publish the updates of ``[lower, upper)`` that the shard does not contain yet; return its upper.

        For writers that derive the same updates from the same input: whatever another process of this name
        published before is left out here. Arguments as of :meth:`append`.

        Raises:
            IndefiniteError: The shard contains other updates for the same times, as far as its batches are
                still there: an hour after they were merged they are not. Nothing more was written.
            UpperMismatchError: The shard ends before ``lower``, at ``actual``: there would be a gap.
            InvalidSettingsError: The updates do not fit the schema or the interval. Nothing was written.
            OutcomeUnknownError: The store did not report the outcome. Publish the same updates again.
        """
        self._session.check_home()
        _check_interval(lower, upper)
        async with self._turn:
            conformed = await self._conform(table, lower, upper)
            at = reach = -1 if self._upper is None else self._upper
            if lower > reach:
                at, reach = await self._survey()
            if lower > reach:
                raise _mismatch(self.name, lower, reach)
            if lower < at:
                await self._check_published(conformed, lower, min(at, upper))
            at = max(at, lower)
            while at < upper:
                part = await self._session.worker.run(updates.between, conformed, at, upper)
                other = await self._put(part, at, upper)
                # The other may end before this one begins, which follows the merged area or another shard.
                reach = upper
                if other is not None:
                    reach = await self._agreed(other, conformed, at, upper)
                self._upper = at = max(at, reach)
            return at

    async def _conform(
        self, table: pa.Table | pa.RecordBatch | None, lower: int, upper: int
    ) -> pa.Table:
        schema = self._session.head.seen.head.schema
        given = schema.columns.empty_table() if table is None else table
        try:
            return await self._session.worker.run(_conformed, given, schema, lower, upper)
        except InvalidSettingsError:
            # Another program may have added columns meanwhile.
            newest = (await self._session.head.load()).schema
            if newest.id == schema.id:
                raise
            return await self._session.worker.run(_conformed, given, newest, lower, upper)

    async def _survey(self) -> tuple[int, int]:
        """Return where the shard ends, and up to where a first batch of it may begin."""
        head = await self._session.head.load()
        own = await self._session.pending.counted(head, self.name)
        self._position = max((span.upper for span in own), default=head.purged)
        self._upper = reach = max(head.upper, self._position)
        if not own:
            self._last_put = None
            batches = await self._session.pending.survey(head)
            reach = max([reach, *(part.limit for part in cover(batches, head.upper))])
        return self._upper, reach

    def _follow(self, position: int) -> None:
        """Note where the shard goes on, before anything is awaited: a cancelled call may be repeated."""
        self._position = position
        self._upper = max(self._upper or 0, position)

    async def _put(
        self, table: pa.Table, lower: int, upper: int
    ) -> tuple[PendingBatch, pa.Table] | None:
        """Put a batch. None if it is there now; else the batch that is in its place.

        OutcomeUnknownError; UpperMismatchError if the merged area went past it with other updates.
        """
        session = self._session
        seen = session.head.seen
        schema = seen.head.schema
        position = self._position
        key = pending_key(self.name, position)
        footer, data = await session.worker.run(
            _encode, table, schema, seen.head.collection, self.name, lower, upper
        )
        was_open, self._is_open = self._is_open, True
        # The end of a shard that has batches is marked when the collection is deleted.
        was_idle = self._last_put is None or self._is_old(self._last_put)
        began = TwoClockTime.now(session.clock)
        result = await self._created(key, data)
        if result.outcome is cas.PutOutcome.LOST and result.data is not None:
            self._is_open = False
            found = result.data
            other = await self._newest(lambda schema: session.pending.decode(key, found, schema))
            is_same = (other[0].lower, other[0].upper) == (lower, upper)
            if not is_same or not self._is_equal(other[1], table):
                if (
                    position < seen.head.upper
                    and position < (await session.head.settle([position])).purged
                ):
                    self._upper = None
                    raise self._unknown(lower, upper)  # The other one does not count.
                self._follow(other[0].upper)
                return other
            # The same updates in another encoding.
            result = cas.PutResult(outcome=cas.PutOutcome.COMMITTED, etag=result.etag)
        is_sure = result.outcome is cas.PutOutcome.COMMITTED and not (
            result.is_late or was_open or was_idle
        )
        head, at = session.head.seen.head, session.head.seen.at
        # What the merged area has passed long ago may be removed at any time.
        if not is_sure or self._is_old(at) or position < head.upper:
            try:
                head = await session.head.settle([position])
            except CollectionNotFoundError:
                raise
            except WalError as error:
                raise self._unknown(lower, upper) from error
        if position < head.purged:
            self._judge_by_ring(head, footer)
        elif result.outcome is not cas.PutOutcome.COMMITTED:
            raise self._unknown(lower, upper) from result.cause
        self._is_open = False
        self._last_put = began
        self._upper = self._position = upper
        return None

    def _unknown(self, lower: int, upper: int) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self._session.store.url} did not say whether the batch [{lower}, {upper}) of {self.name} was "
            "published; append it again",
            retriable=True,
        )

    def _is_old(self, at: TwoClockTime) -> bool:
        return at.age_seconds(self._session.clock) >= cas.TRUSTED_SECONDS

    async def _created(self, key: str, data: bytes) -> cas.PutResult:
        """Put the object; read the head at the same time if the last one seen is old."""
        session = self._session
        if session.head.seen.at.age_seconds(session.clock) < _REFRESH_SECONDS:
            return await cas.create(session.store, key, data, retry=session.retry)
        async with task_group() as tasks:
            tasks.create_task(self._refresh())
            putting = tasks.create_task(cas.create(session.store, key, data, retry=session.retry))
        return putting.result()

    async def _refresh(self) -> None:
        """Read the head. A failure says nothing of the put: the head is read again where it matters."""
        try:
            await self._session.head.load()
        except CollectionNotFoundError:
            raise
        except WalError as error:
            logger.debug("the head of the collection was not read: %s", error)

    def _judge_by_ring(self, head: Head, footer: BatchFooter) -> None:
        """Return if a batch below ``purged`` was merged, raise if another was, or if it is not known."""
        self._upper = None
        for item in head.consumed:
            if item.writer == self.name and item.lower == footer.lower:
                if (item.upper, item.digest) == (footer.upper, footer.digest):
                    return
                self._is_open = False
                raise _mismatch(self.name, footer.lower, head.upper)
        raise OutcomeUnknownError(
            f"the collection has passed {footer.lower}; whether [{footer.lower}, {footer.upper}) of "
            f"{self.name} is part of it is no longer known; read the collection before publishing again"
        )

    async def _is_there(self, table: pa.Table, lower: int, upper: int) -> bool:
        """Return whether exactly this batch was appended before."""
        session = self._session
        head = session.head.seen.head
        for span in await session.pending.counted(head, self.name):
            if span.position <= lower and span.upper == upper:
                found = await self._fetched(span.position)
                return (
                    found is not None
                    and found[0].lower == lower
                    and self._is_equal(found[1], table)
                )
        digest = await session.worker.run(updates.digest, table)
        return any(
            (item.writer, item.lower, item.upper, item.digest) == (self.name, lower, upper, digest)
            for item in head.consumed
        )

    async def _fetched(self, position: int) -> tuple[PendingBatch, pa.Table] | None:
        return await self._newest(
            lambda schema: self._session.pending.fetch(self.name, position, schema)
        )

    async def _newest(self, read: Callable[[CollectionSchema], Awaitable[_T]]) -> _T:
        """Return what ``read`` returns for the newest schema that is needed."""
        try:
            return await read(self._session.head.seen.head.schema)
        except StaleSchemaError:
            return await read((await self._session.head.load()).schema)

    def _is_equal(self, theirs: pa.Table, ours: pa.Table) -> bool:
        """Return whether two tables have the same updates; each may be of an older schema."""
        schema = self._session.head.seen.head.schema
        one, other = (updates.upgrade(table, schema, path=self.name) for table in (theirs, ours))
        return updates.are_equal(one, other)

    async def _check_published(self, table: pa.Table, start: int, limit: int) -> None:
        """Compare updates with what the shard still has for their times; IndefiniteError."""
        session = self._session
        head = session.head.seen.head
        for span in await session.pending.spans(head, writer=self.name):
            if span.position < limit and span.upper > start:
                found = await self._fetched(span.position)
                if found is not None and found[0].lower < limit:
                    await self._agreed(found, table, max(start, found[0].lower), limit)

    async def _agreed(
        self, other: tuple[PendingBatch, pa.Table], table: pa.Table, start: int, upper: int
    ) -> int:
        """Return where the other's batch ends, if it has the same updates as far as both reach."""
        batch, theirs = other
        start, end = max(start, batch.lower), min(batch.upper, upper)
        if start >= end:
            return batch.upper
        cut = self._session.worker.run
        known = await cut(updates.between, theirs, start, end)
        if not self._is_equal(known, await cut(updates.between, table, start, end)):
            raise IndefiniteError(
                f"the shard {self.name} already contains other updates for these times",
                writers=(self.name, batch.writer),
                lower=start,
                upper=end,
            )
        return batch.upper


def _conformed(table: pa.Table, schema: CollectionSchema, lower: int, upper: int) -> pa.Table:
    return updates.conform(table, schema, lower=lower, upper=upper)


def _encode(
    table: pa.Table, schema: CollectionSchema, collection: str, writer: str, lower: int, upper: int
) -> tuple[BatchFooter, bytes]:
    table = updates.upgrade(table, schema, path=writer)  # columns may have been added since
    footer = BatchFooter(
        collection=collection,
        writer=writer,
        lower=lower,
        upper=upper,
        since=0,
        rows=table.num_rows,
        digest=updates.digest(table),
        schema_id=schema.id,
    )
    return footer, batch_file.encode(table, footer, schema=schema)


def _check_interval(lower: object, upper: object) -> None:
    start, end = as_int(lower, "lower"), as_int(upper, "upper")
    if not 0 <= start < end <= MAX_TIME:
        raise InvalidSettingsError(
            f"an interval needs 0 <= lower < upper <= 2**64 - 1, not [{start}, {end})"
        )


def _mismatch(name: str, lower: int, actual: int) -> UpperMismatchError:
    return UpperMismatchError(
        f"the shard {name} ends at {actual}, not at {lower}", expected=lower, actual=actual
    )
