"""CollectionReader: reads a collection, and holds back its compaction and the removal of what it reads.

A reader is registered in the head with a version and a frontier. It reads times before the upper frontier
of a version of the merged area from there, and later ones from the pending area. Compaction distinguishes
all updates after its frontier, and no object of its version or a later one is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Self

import pyarrow as pa

from uploader.iceberg.content_table import Exported, ExportedContent, export_content
from uploader.iceberg.iceberg_target import IcebergTarget, as_target
from uploader.root.cas import TRUSTED_SECONDS
from uploader.versioned import updates
from uploader.versioned.collection_session import CollectionSession
from uploader.versioned.head import Head
from uploader.versioned.names import MAX_NAME_CHARACTERS, check_name, new_id
from uploader.versioned.pending import cover
from uploader.versioned.pending_batch import PendingPart, check_schema
from uploader.versioned.registration import Registration, check_lease
from uploader.versioned.scan import CollectionScan, plan_scan
from uploader.versioned.schema import MAX_TIME, CollectionSchema
from walstore.core.runtime.old_names import renamed
from walstore.core.validation.arguments import as_int, as_seconds, as_text
from walstore.errors import (
    InvalidSettingsError,
    SinceViolationError,
)

LEASE_SECONDS: Final = 900.0
POLL_SECONDS: Final = 0.25
_POLLS_PER_SURVEY: Final = 8
"""A listener that finds no next batch looks at the head and at other shards this rarely."""
MAX_TOKEN_BYTES: Final = 1024


class CollectionReader:
    """A registered reader. Any number of tasks may read; made by ``Collection.reader`` and ``critical``.

    A leased reader renews its lease in the background, four times in its length. Use it as an async context
    manager, or ``await aclose()``: that releases a leased reader. A critical reader has no lease: its hold
    stays until :meth:`release`, also after its program has ended.

    All methods pass on the store's errors, and raise LeaseExpiredError once the registration is lost.
    """

    def __init__(self, session: CollectionSession, registration: Registration) -> None:
        self.name = registration.name
        """Its name in the head."""
        self._session = session
        self._registration = registration

    @property
    def frontier(self) -> int:
        """The earliest time as of which the collection is sure to be readable for this reader."""
        return self._registration.frontier

    @property
    def version(self) -> int | None:
        """The oldest version that is kept for this reader; None for a critical one."""
        return self._registration.hold.version

    @property
    def token(self) -> str:
        """Of a critical reader: the token that :meth:`compare_and_downgrade` stored last."""
        return self._registration.hold.token

    async def upper(self) -> int:
        """Return the upper frontier of what can be read now: the latest ``as_of`` is one less."""
        head = await self._registration.load()
        parts = cover(await self._session.pending.survey(head), head.upper)
        return parts[-1].limit if parts else head.upper

    @renamed(max_wait="max_wait_seconds")
    async def snapshot(
        self, *, as_of: int | None = None, max_wait_seconds: float | None = None
    ) -> pa.Table:
        """Return the content of the collection at time ``as_of``: the effect of all updates up to then.

        In a ``diff`` collection the rows with their counts in ``_d``, in an ``upsert`` collection the live
        keys with their values. Sorted by key.

        Args:
            as_of: At least :attr:`frontier`. Default: the latest time that is readable now.
            max_wait_seconds: Longest wait until all updates up to ``as_of`` are published; TimeoutError
                when it has passed. Default: no limit.

        Raises:
            SinceViolationError: Times after ``as_of`` were compacted with it.
        """
        at = None if as_of is None else check_time(as_of, "as_of")
        waiting = (
            None if max_wait_seconds is None else as_seconds(max_wait_seconds, "max_wait_seconds")
        )
        async with asyncio.timeout(waiting):
            return (await self._registration.reread(lambda: self._snapshot(at)))[0]

    @renamed(max_wait="max_wait_seconds")
    async def export_iceberg(
        self,
        target: IcebergTarget | str,
        *,
        as_of: int | None = None,
        max_wait_seconds: float | None = None,
    ) -> Exported:
        """Make the content at time ``as_of`` the only content of an Iceberg table, in one commit.

        The rows become Parquet files in the table's own folder, which pyiceberg writes with the catalog's
        settings. The collection never removes them. Columns have the nearest types of Iceberg: ``uint64`` is
        ``decimal(20, 0)``, a duration is a number of its units, times have microseconds; all may be null. The
        table belongs to this collection, and changes its columns when the collection does.

        The same time again changes nothing. Any number of programs may export; the table never goes back.
        An interrupted export may leave files that no snapshot has; Iceberg's ``remove_orphan_files`` removes
        them.

        Args:
            target: The table, or text that names it: ``iceberg:[catalog/]namespace.table``. It is created,
                also its namespace, if it is not there.
            as_of: As for :meth:`snapshot`.
            max_wait_seconds: As for :meth:`snapshot`; does not count the export.

        Raises:
            SinceViolationError: Times after ``as_of`` were compacted with it.
            InvalidSettingsError: The table has the content of a later time, or of something else; Iceberg
                cannot have a column or value; or the catalog is not configured.
            StorageUnavailableError: The catalog or the table's storage failed. The table is as it was.
            OutcomeUnknownError: The table was replaced or not; the same call again settles it.
            ContentionError: Other programs changed the table all the time.
            MissingExtraError: pyiceberg is not installed.

        Cancellation: the table may still be replaced; the same call again settles it.
        """
        chosen = as_target(target)
        at = None if as_of is None else check_time(as_of, "as_of")
        waiting = (
            None if max_wait_seconds is None else as_seconds(max_wait_seconds, "max_wait_seconds")
        )

        async def read() -> ExportedContent:
            async with asyncio.timeout(waiting):
                rows, found, schema = await self._registration.reread(lambda: self._snapshot(at))
            return ExportedContent(rows=rows, as_of=found, schema_id=schema.id)

        head = await self._registration.load()
        return await export_content(
            read,
            chosen,
            collection=head.collection,
            as_of=at,
            schema_id=head.schema.id,
            columns=updates.content_columns(head.schema),
            worker=self._session.worker,
        )

    async def subscribe(
        self, *, as_of: int | None = None, poll_seconds: float = POLL_SECONDS
    ) -> AsyncIterator[tuple[pa.Table, int]]:
        """Yield the content at ``as_of``, then what :meth:`listen` yields after it.

        The rows of the content have the time ``as_of``. Arguments and errors as of :meth:`snapshot` and
        :meth:`listen`.
        """
        at = None if as_of is None else check_time(as_of, "as_of")
        content, found, schema = await self._registration.reread(lambda: self._snapshot(at))
        yield updates.as_updates(content, schema, at=max(found, 0)), found + 1
        async for item in self._follow(found + 1, poll_seconds):
            yield item

    def listen(
        self, *, after: int, poll_seconds: float = POLL_SECONDS
    ) -> AsyncIterator[tuple[pa.Table, int]]:
        """Yield the updates at times greater than ``after``, each once, with the frontier that they reach.

        The rows of one step are sorted by time, then by key; ``_t`` is the time, ``_d`` the change of the
        count in a ``diff`` collection, ``_deleted`` whether the key is removed in an ``upsert`` collection.
        The frontier of a step is where the next one begins. Ends when a shard has ended at ``2**64 - 1``.

        The reader's hold follows the listener: once the caller asks for the next step, earlier times are
        given up with the next renewal. With two listeners, those that the slower one has passed. Clone the
        reader to keep earlier times.

        Args:
            after: At least :attr:`frontier`; -1 for all updates of a collection of which nothing was
                compacted.
            poll_seconds: Time from one look for the next batch to the one after it. Each look is one request.

        Raises:
            SinceViolationError: Times after ``after`` were compacted with it.
        """
        return self._follow(check_after(after) + 1, poll_seconds)

    @renamed(max_wait="max_wait_seconds")
    @asynccontextmanager
    async def scan(
        self,
        *,
        as_of: int | None = None,
        after: int | None = None,
        max_wait_seconds: float | None = None,
    ) -> AsyncIterator[CollectionScan]:
        """Yield the objects that a program with its own Parquet reader needs, as Spark has.

        They stay readable until the context is left, as long as the lease is renewed; with a critical reader,
        for half an hour. What they add up to is what :meth:`snapshot` returns, or, with ``after``, what
        :meth:`listen` yields from there up to ``as_of``.

        Args:
            as_of: As of :meth:`snapshot`.
            after: Only updates at later times; at least :attr:`frontier`, or -1.
            max_wait_seconds: As of :meth:`snapshot`.

        Raises:
            SinceViolationError: Times after ``as_of``, or ``after``, were compacted with it.
        """
        at = None if as_of is None else check_time(as_of, "as_of")
        if after is not None and max(check_after(after), 0) < self._registration.frontier:
            raise self._registration.not_held(after)
        async with asyncio.timeout(
            None if max_wait_seconds is None else as_seconds(max_wait_seconds, "max_wait_seconds")
        ):
            head, parts, found = await self._registration.reread(lambda: self._locate_newest(at))
        with self._registration.reading(head.version.n):
            yield plan_scan(head, parts, url=self._session.store.url, as_of=found, after=after)

    async def downgrade_since(self, since: int) -> None:
        """Give up all times before ``since``: compaction may advance updates up to there. Never moves back.

        Cancellation: the hold moves now, or with a later renewal, or stays.
        """
        registration = self._registration
        registration.frontier = max(registration.frontier, check_time(since, "since"))
        await registration.renew()

    async def compare_and_downgrade(self, expected: str, token: str, since: int) -> None:
        """Replace the token of a critical reader, and give up all times before ``since``, in one change.

        The token is the owner's: a fence, or its own position. ExpectationError if it is not ``expected``.
        """
        check_time(since, "since")
        self._registration.check()
        if self._registration.lease_seconds is not None:
            raise InvalidSettingsError("only a critical reader has a token; use downgrade_since()")
        for what, text in (("expected", expected), ("token", token)):
            if len(as_text(text, what).encode()) > MAX_TOKEN_BYTES:
                raise InvalidSettingsError(f"{what} must have at most {MAX_TOKEN_BYTES} bytes")
        await self._registration.compare_and_downgrade(expected, token, since)

    async def clone(
        self, name: str | None = None, *, lease_seconds: float = LEASE_SECONDS
    ) -> CollectionReader:
        """Register a second, leased reader with the same version and frontier, and return it.

        ``name``: that of the new reader, which must be free. Default: this one's with a random ending.
        """
        ending = new_id()[:8]
        chosen = f"{self.name[: MAX_NAME_CHARACTERS - 9]}-{ending}" if name is None else name
        check_name(chosen, "the name of a reader")
        lease = check_lease(lease_seconds)
        made = await self._registration.clone(chosen, lease_seconds=lease)
        return CollectionReader(self._session, made)

    async def release(self) -> None:
        """Remove the registration, also of a critical reader, and close. It holds nothing any more.

        That is so already if the collection was deleted.
        """
        await self._registration.release()

    async def leave(self) -> None:
        """Renew the lease once more, and close without releasing: the hold ends with the lease.

        For objects that another program goes on reading; within :meth:`scan`, those of the scan.
        Cancellation: the hold ends with this lease or the one before.
        """
        await self._registration.renew()
        await self._registration.close()

    async def aclose(self) -> None:
        """Close: a leased reader is released, a critical one keeps its hold. Idempotent."""
        await self._registration.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _snapshot(self, as_of: int | None) -> tuple[pa.Table, int, CollectionSchema]:
        """Return the content, the time it is of, and its schema.

        The time is -1 for a collection without any update.
        """
        head, parts, at = await self._locate(as_of)
        merged = head.version.before(at + 1)
        with self._registration.reading(head.version.n):
            tables = await self._session.read_merged(merged, head.schema)
            tables += await self._session.pending.read(parts, head.schema)
        content = await self._session.worker.run(_content, tables, head.schema, at)
        return content, at, head.schema

    async def _locate(self, as_of: int | None) -> tuple[Head, list[PendingPart], int]:
        """Wait until all updates up to ``as_of`` are published; return head, pending parts and the time."""
        while True:
            head = await self._registration.load()
            batches = await self._session.pending.survey(head)
            parts = cover(batches, head.upper, limit=None if as_of is None else as_of + 1)
            reach = parts[-1].limit if parts else head.upper
            at = reach - 1 if as_of is None else as_of
            if at < head.since and (head.since or reach):
                raise SinceViolationError(
                    "the collection cannot be read as of this time", as_of=at, since=head.since
                )
            if reach > at:
                return head, parts, at
            await self._session.clock.sleep(POLL_SECONDS)

    async def _locate_newest(self, as_of: int | None) -> tuple[Head, list[PendingPart], int]:
        """As :meth:`_locate`; StaleSchemaError if a pending part is newer than the head."""
        head, parts, at = await self._locate(as_of)
        for part in parts:
            check_schema(part.batch.footer, head.schema, part.batch.key)
        return head, parts, at

    async def _follow(
        self, frontier: int, poll_seconds: float
    ) -> AsyncIterator[tuple[pa.Table, int]]:
        interval = as_seconds(poll_seconds, "poll_seconds")
        if max(frontier - 1, 0) < self._registration.frontier:
            raise self._registration.not_held(frontier - 1)
        clock = self._session.clock
        listener = object()
        shard: str | None = None
        misses = 0
        try:
            while frontier < MAX_TIME:
                self._registration.listeners[listener] = frontier
                self._registration.check()
                began = clock.monotonic()
                step = await self._registration.reread(partial(self._step, frontier, shard, misses))
                if step is None:
                    misses += 1
                    await clock.sleep(max(interval - (clock.monotonic() - began), 0.0))
                    continue
                table, limit, shard = step
                misses = 0
                yield table, limit
                frontier = limit
        finally:
            self._registration.listeners.pop(listener, None)

    async def _step(
        self, frontier: int, shard: str | None, misses: int
    ) -> tuple[pa.Table, int, str | None] | None:
        """Return the next updates from ``frontier`` on, where they end, and the shard they are from."""
        seen = self._session.head.seen
        is_new = seen.at.age_seconds(self._session.clock) < TRUSTED_SECONDS
        if shard is not None and is_new and frontier >= seen.head.purged:
            found = await self._session.pending.fetch(shard, frontier, seen.head.schema)
            if found is not None and found[0].lower == frontier:
                rows = await self._session.worker.run(
                    _listed, [found[1]], seen.head.schema, frontier
                )
                return rows, found[0].upper, shard
            if found is not None:
                misses = 0  # It begins later: what is between was merged from another shard.
        if shard is not None and misses % _POLLS_PER_SURVEY:
            return None
        head = await self._registration.load()
        return await self._merged_step(frontier, head) or await self._pending_step(
            frontier, shard, head
        )

    async def _merged_step(
        self, frontier: int, head: Head
    ) -> tuple[pa.Table, int, str | None] | None:
        """Return the rest of the merged batch that contains ``frontier``, if there is one."""
        found = [batch for batch in head.version.batches if batch.lower <= frontier < batch.upper]
        if not found:
            return None
        if found[0].since > max(frontier - 1, 0):
            raise SinceViolationError(
                "the collection no longer distinguishes these times",
                as_of=frontier - 1,
                since=found[0].since,
            )
        with self._registration.reading(head.version.n):
            tables = await self._session.read_merged(found, head.schema)
        rows = await self._session.worker.run(_listed, tables, head.schema, frontier)
        return rows, found[0].upper, None

    async def _pending_step(
        self, frontier: int, shard: str | None, head: Head
    ) -> tuple[pa.Table, int, str | None] | None:
        batches = await self._session.pending.survey(head)
        parts = cover(batches, frontier, limit=frontier + 1, prefer=shard)
        if not parts:
            return None
        batch = parts[0].batch
        whole = [PendingPart(batch, frontier, batch.upper)]
        tables = await self._session.pending.read(whole, head.schema)
        rows = await self._session.worker.run(_listed, tables, head.schema, frontier)
        return rows, batch.upper, batch.writer


def check_time(value: object, what: str) -> int:
    """Return a time of updates; TypeError or InvalidSettingsError naming ``what``."""
    time = as_int(value, what)
    if not 0 <= time < MAX_TIME:
        raise InvalidSettingsError(f"{what} must be between 0 and 2**64 - 2, not {time}")
    return time


def check_after(value: object) -> int:
    """Return the time after which updates are wanted; TypeError or InvalidSettingsError."""
    after = as_int(value, "after")
    if not -1 <= after < MAX_TIME:
        raise InvalidSettingsError(f"after must be between -1 and 2**64 - 2, not {after}")
    return after


def _content(tables: list[pa.Table], schema: CollectionSchema, at: int) -> pa.Table:
    return updates.snapshot(tables, schema, as_of=max(at, 0))


def _listed(tables: list[pa.Table], schema: CollectionSchema, start: int) -> pa.Table:
    return updates.in_time_order(tables, schema, start=start)
