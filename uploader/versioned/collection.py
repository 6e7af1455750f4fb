"""Collection: a set of updates in object storage, with any number of writers and readers.

    async with Collection.open("file:///srv/c", create=True, schema=schema, key=("id",), kind="upsert") as c:
        await c.writer("main").append(table, lower=0, upper=9)
        async with await c.reader("report") as reader:
            rows = await reader.snapshot(as_of=8)

docs/versioned_collections.md explains times, frontiers and holds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from uploader.format.layout import MANIFEST
from uploader.root import cas
from uploader.stores.port import ObjectStore, remove
from uploader.stores.probe import require_conditional_puts
from uploader.stores.retry import RetryPolicy
from uploader.versioned import transitions
from uploader.versioned.collection_reader import (
    LEASE_SECONDS,
    CollectionReader,
    check_after,
    check_time,
)
from uploader.versioned.collection_session import CollectionSession
from uploader.versioned.collection_writer import CollectionWriter
from uploader.versioned.head import Head, ReaderHold
from uploader.versioned.names import (
    MERGED_FOLDER,
    PENDING_FOLDER,
    STAGING_FOLDER,
    VERSION_FOLDER,
    check_name,
    is_collection_key,
    new_id,
    parse_pending_key,
    pending_key,
)
from uploader.versioned.pending import cover
from uploader.versioned.pending_files import PLUG
from uploader.versioned.registration import Registration, check_lease
from uploader.versioned.scan import CollectionScan
from uploader.versioned.schema import MAX_TIME, CollectionSchema, Kind
from uploader.versioned.version import MergedBatch
from walstore.core.ports import Clock
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.resource import Opening
from walstore.errors import (
    CollectionNotFoundError,
    CorruptionError,
    FormatVersionError,
    InvalidSettingsError,
)

logger = logging.getLogger("walstore.collections")

_FIRST_WRITER: Final = "main"
_AT_ONCE: Final = 1000
_MOST_SHOWN: Final = 5
"""Columns in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionStatus:
    """What a collection consists of, as one look at its head and its pending area shows it."""

    collection: str
    """Its random id."""
    schema: CollectionSchema
    version: int
    """Number of the newest version of the merged area."""
    upper: int
    """The upper frontier of what can be read."""
    merged_upper: int
    """The upper frontier of the merged area."""
    since: int
    """Earliest time as of which it can be read."""
    gc_floor: int
    epoch: int
    holder: str | None
    """The controller, if there is one."""
    batches: tuple[MergedBatch, ...]
    pending_batches: int
    pending_rows: int
    pending_bytes: int
    readers: dict[str, ReaderHold]


class Collection:
    """A handle of one collection. Writers and readers made from it share its connections.

    Its methods pass on the store's errors, and raise CollectionNotFoundError once it was deleted.
    """

    def __init__(self, session: CollectionSession) -> None:
        self._session = session

    @classmethod
    def open(
        cls,
        url: str,
        *,
        create: bool = False,
        schema: pa.Schema | None = None,
        key: Sequence[str] = (),
        kind: Kind = "diff",
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> Opening[Collection]:
        """Open a collection; ``await`` it, or use it as an async context manager.

        Args:
            url: Its location: a store's URL with a prefix of its own.
            create: Whether to create it if there is none. Then ``schema`` is needed.
            schema: The columns. With a collection that exists, they must be the same.
            key: Key columns. An ``upsert`` collection needs them; a ``diff`` collection is sorted by them.
            kind: ``diff``: updates add to and subtract from the counts of whole rows. ``upsert``: updates
                replace or remove the row with their key.
            store: Replaces the store that the URL names, and stays open.
            retry: For puts whose answer asks for a retry.
            clock: For tests.

        Raises:
            CollectionNotFoundError: There is none, or it was deleted.
            InvalidSettingsError: The schema, key or kind is not the collection's, or makes no collection.
            UnsupportedStoreError: The store does not enforce conditional puts.
        """
        wanted = None
        if schema is not None:
            wanted = CollectionSchema.new(schema, kind=kind, key=key)
        elif create:
            raise InvalidSettingsError("to create a collection, give its schema")

        async def open_it() -> Collection:
            session = CollectionSession(url, store=store, retry=retry, clock=clock)
            try:
                await _found(session, wanted, create=create)
            except BaseException:
                await session.aclose()
                raise
            return cls(session)

        return Opening(open_it)

    @property
    def url(self) -> str:
        """Its location, without credentials."""
        return self._session.store.url

    @property
    def schema(self) -> CollectionSchema:
        """The newest schema that this handle has seen."""
        return self._session.head.seen.head.schema

    def writer(self, name: str = _FIRST_WRITER) -> CollectionWriter:
        """Return a writer of the shard ``name``. Makes no request; programs need not agree on anything else.

        With several writers, those of different names must publish the same updates for the same times.
        """
        return CollectionWriter(self._session, check_name(name, "the name of a writer"))

    async def reader(
        self,
        name: str | None = None,
        *,
        lease_seconds: float = LEASE_SECONDS,
        since: int | None = None,
    ) -> CollectionReader:
        """Register a leased reader, which holds what it may read for as long as it renews its lease.

        Args:
            name: Its name. A reader of this name continues where it was, and its old handle loses it.
                Default: a random one.
            lease_seconds: Length of the lease, renewed after a quarter of it. A program that stands still for
                longer loses its hold.
            since: First time it wants to read as of; SinceViolationError if it was compacted. Default: the
                earliest that is possible.
        """
        return await self._register(name, lease_seconds=check_lease(lease_seconds), since=since)

    async def critical(self, name: str, *, since: int | None = None) -> CollectionReader:
        """Register a critical reader, whose hold has no lease, or continue it.

        Its frontier holds compaction back until it is moved or released, for ever if its program never
        comes back; it keeps no old versions. Arguments as of :meth:`reader`.
        """
        return await self._register(name, lease_seconds=None, since=since)

    async def _register(
        self, name: str | None, *, lease_seconds: float | None, since: int | None
    ) -> CollectionReader:
        self._session.check_home()
        if since is not None:
            check_time(since, "since")
        chosen = (
            f"reader-{new_id()[:12]}" if name is None else check_name(name, "the name of a reader")
        )
        registration = await Registration.register(
            self._session, chosen, lease_seconds=lease_seconds, since=since
        )
        return CollectionReader(self._session, registration)

    @renamed(max_wait="max_wait_seconds")
    async def planned_scan(
        self,
        *,
        hold_seconds: float,
        as_of: int | None = None,
        after: int | None = None,
        max_wait_seconds: float | None = None,
    ) -> CollectionScan:
        """Return the objects that :meth:`CollectionReader.scan` yields, for other processes to read.

        They stay readable for ``hold_seconds``, or up to half as much longer: a reader ``shared-…`` is
        registered, which programs that plan with the same version share. Nobody releases it; it ends with its
        lease. It holds objects and no times: as of which times can be read does not depend on it.

        Args:
            hold_seconds: 1 second to 100 years.
            as_of: As of :meth:`CollectionReader.scan`; waits until all updates up to it are published.
            after: As there.
            max_wait_seconds: As there.

        Raises:
            SinceViolationError: Times after ``as_of``, or ``after``, were compacted with it.
            LimitExceededError: The collection has 100 readers already.
        """
        self._session.check_home()
        at = 0 if as_of is None else check_time(as_of, "as_of")
        first = at if after is None else max(check_after(after), 0)
        seconds = check_lease(hold_seconds)
        held = await Registration.share(self._session, hold_seconds=seconds, as_of=first)
        reader = CollectionReader(self._session, held)
        async with (
            reader,
            reader.scan(as_of=as_of, after=after, max_wait_seconds=max_wait_seconds) as scan,
        ):
            return scan

    async def evolve(self, columns: pa.Schema) -> CollectionSchema:
        """Add nullable columns or widen types, and return the new schema, in which older batches are read.

        InvalidSettingsError for any other difference: no column is ever dropped or narrowed.
        """
        self._session.check_home()
        return (
            await self._session.head.change(lambda head: transitions.evolve(head, columns))
        ).schema

    async def status(self) -> CollectionStatus:
        """Return what the collection consists of."""
        self._session.check_home()
        head = await self._session.head.load()
        pending = await self._session.pending.survey(head)
        parts = cover(pending, head.upper)
        return CollectionStatus(
            collection=head.collection,
            schema=head.schema,
            version=head.version.n,
            upper=parts[-1].limit if parts else head.upper,
            merged_upper=head.upper,
            since=head.since,
            gc_floor=head.gc_floor,
            epoch=head.epoch,
            holder=head.holder,
            batches=head.version.batches,
            pending_batches=len(pending),
            pending_rows=sum(batch.footer.rows for batch in pending),
            pending_bytes=sum(batch.size_bytes for batch in pending),
            readers=dict(head.readers),
        )

    @classmethod
    async def finish_deletion(
        cls,
        url: str,
        *,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> int:
        """Repeat :meth:`delete` for a collection that is deleted already; arguments as of :meth:`open`.

        CollectionNotFoundError if there never was one, InvalidSettingsError if it is not deleted.
        """
        async with cls(CollectionSession(url, store=store, retry=retry, clock=clock)) as collection:
            if not (await collection._session.head.read()).value.is_deleted:
                raise InvalidSettingsError(
                    "the collection is not deleted; open it, and call delete()"
                )
            return await collection.delete()

    async def delete(self, *, dry_run: bool = False) -> int:
        """Delete the collection for ever, and return how many objects were removed.

        ``dry_run`` only says how many there are now, also of a damaged or deleted collection.

        The head stays, marked, so that no other collection begins in its place, and so does one small
        object for each shard, where a late batch would be put. An append that was acknowledged before is
        gone with the collection; one that begins later fails with CollectionNotFoundError. Repeat it,
        or call :meth:`finish_deletion`, to remove objects that were put meanwhile. Objects of other programs
        under the same prefix stay.

        Damaged objects are removed like the others. Of a shard whose last one is damaged nobody knows the
        end, so it gets no mark: a writer that appends to it all the time notices after ten minutes at most.
        """
        self._session.check_home()
        head = (await self._session.head.read()).value
        if dry_run:
            return len(await self._doomed())
        while not head.is_deleted:
            try:
                head = await self._session.head.change(transitions.delete)
            except CollectionNotFoundError:
                head = (await self._session.head.read()).value
        for writer in await self._shards():
            try:
                await self._plug(writer, head)
            except (CorruptionError, FormatVersionError) as error:
                logger.warning(
                    "the shard %s has no end that can be read; it is deleted as it is: %s",
                    writer,
                    error,
                )
        return await self._remove_all()

    async def _shards(self) -> set[str]:
        """Return the names of the shards at whose end the mark of a deleted collection is missing."""
        names: set[str] = set()
        plugged: set[str] = set()
        async for listed in self._session.store.list(PENDING_FOLDER):
            name = parse_pending_key(listed.key)
            if name is not None:
                (plugged if listed.size_bytes == len(PLUG) else names).add(name[0])
        return names - plugged

    async def _plug(self, writer: str, head: Head) -> None:
        """Put the mark of a deleted collection where the shard's next batch would be."""
        session = self._session
        while True:
            spans = await session.pending.spans(head, writer=writer)
            end = max((span.upper for span in spans), default=head.purged)
            if end == MAX_TIME:
                return
            key = pending_key(writer, end)
            result = await cas.create(session.store, key, PLUG, retry=session.retry)
            result.decided(session.store.url, "the collection was deleted; delete it again")
            if result.outcome is cas.PutOutcome.COMMITTED or result.data == PLUG:
                return

    async def _doomed(self) -> list[str]:
        return [
            listed.key
            for folder in (PENDING_FOLDER, MERGED_FOLDER, VERSION_FOLDER, STAGING_FOLDER)
            async for listed in self._session.store.list(folder)
            if listed.size_bytes != len(PLUG) and is_collection_key(listed.key)
        ]

    async def _remove_all(self) -> int:
        doomed = await self._doomed()
        for start in range(0, len(doomed), _AT_ONCE):
            await remove(
                self._session.store, doomed[start : start + _AT_ONCE], rule=is_collection_key
            )
        return len(doomed)

    async def aclose(self) -> None:
        """Close all readers made from this handle, and the store. Idempotent."""
        await self._session.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _found(
    session: CollectionSession, wanted: CollectionSchema | None, *, create: bool
) -> None:
    """Load the head of the collection, created if asked for; raises what ``Collection.open`` does."""
    try:
        head = await session.head.load()
    except CollectionNotFoundError:
        if not create or wanted is None or await _was_deleted(session):
            raise
        async for listed in session.store.list(MANIFEST):
            raise InvalidSettingsError(
                f"there is a log at {session.store.url} ({listed.key}); give the collection its own prefix"
            ) from None
        await require_conditional_puts(session.store, is_new=True, retry=session.retry)
        head = await session.head.create(Head(collection=new_id(), schema=wanted))
    else:
        await require_conditional_puts(session.store, retry=session.retry)
    found = head.schema
    if wanted is None:
        return
    if (found.kind, found.key) != (wanted.kind, wanted.key):
        raise InvalidSettingsError(
            f"the collection has kind {found.kind!r} and key {found.key}, "
            f"not {wanted.kind!r} and {wanted.key}"
        )
    if not found.columns.equals(wanted.columns):
        raise InvalidSettingsError(
            "the collection has other columns; open it without a schema, and change them with evolve(): "
            f"it has {_shown(found.columns, wanted.columns)}, given were "
            f"{_shown(wanted.columns, found.columns)}"
        )


def _shown(columns: pa.Schema, others: pa.Schema) -> str:
    """Return the columns that others do not have, or not in that place."""
    fields = [
        f"{field.name} {field.type}{'' if field.nullable else ' not null'}"
        for place, field in enumerate(columns)
        if place >= len(others) or not field.equals(others.field(place))
    ]
    more = len(fields) - _MOST_SHOWN
    return ", ".join(fields[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "") or "no more"


async def _was_deleted(session: CollectionSession) -> bool:
    try:
        return (await session.head.read()).value.is_deleted
    except CollectionNotFoundError:
        return False
