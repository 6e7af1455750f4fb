"""Materializer: keeps a collection up to date with a log. The time of an update is its record's offset.

So the collection itself says how far it is, each record counts once whatever fails, and two materializers of
one log do not harm each other: their batches are compare-and-append.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from uploader.root.stored_document import run_aside
from uploader.versioned.collection import Collection
from uploader.versioned.collection_writer import CollectionWriter
from uploader.versioned.envelope import ENVELOPES, Envelope, to_updates
from uploader.versioned.schema import CollectionSchema
from walstore.core.batches.batch import Batch
from walstore.core.faces.readable_log import ReadableLog
from walstore.core.offset_range import OffsetRange
from walstore.core.read.reader import Reader
from walstore.core.runtime.old_names import renamed
from walstore.core.validation.fields import check_fields, described, seconds, size, whole
from walstore.errors import InvalidSettingsError, OutcomeUnknownError, UpperMismatchError

WRITER: Final = "log"
"""The shard of a materializer, unless its caller names another."""


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializerSettings:
    """How records become batches."""

    batch_records: int = whole(100_000, "A batch has at most so many records.", low=1)

    batch_bytes: int = size(16 << 20, "A batch is made of about so many bytes of records.", low=1)

    wait_seconds: float = seconds(1.0, "How long a step waits for records, unless its caller says.")

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialized:
    """What one step did."""

    lower: int
    """The first offset of the batch."""
    upper: int
    """The offset after its last; equal to ``lower`` if there was nothing."""
    records: int
    """Records that this step wrote to the collection; 0 if another materializer was faster."""


class Materializer:
    """Reads a log from where the collection ends, and appends what its records say. One task at a time."""

    def __init__(
        self,
        log: ReadableLog,
        collection: Collection,
        *,
        envelope: Envelope,
        writer: str = WRITER,
        commit: Callable[[int], Awaitable[object]] | None = None,
        settings: MaterializerSettings | None = None,
    ) -> None:
        """Neither the log nor the collection is closed by it.

        Args:
            log: An open log.
            collection: An open collection.
            envelope: What a record says: ``append`` a row, ``upsert`` a row for a key, ``debezium`` a change.
            writer: The shard, which belongs to this log alone.
            commit: Called with the offset of the next record that is needed, after the collection has all
                before it: the ``commit`` of a cursor that keeps the log from removing records. If it fails,
                the next step calls it again before it reads.
            settings: How records become batches.

        InvalidSettingsError if the envelope does not fit the collection's kind.
        """
        kinds = ENVELOPES.get(envelope, ())
        if collection.schema.kind not in kinds:
            raise InvalidSettingsError(
                f"the envelope must be one of {', '.join(ENVELOPES)}"
                if not kinds
                else f"the envelope {envelope!r} needs a collection of kind {' or '.join(kinds)}"
            )
        self._log = log
        self._collection = collection
        self._envelope: Envelope = envelope
        self._writer: CollectionWriter = collection.writer(writer)
        self._commit = commit
        self._settings = settings or MaterializerSettings()
        self._reader: Reader | None = None
        self._lower = 0
        self._batch: _PendingAppend | None = None
        self._due: int | None = None  # what commit() is to be called with

    async def begin(self) -> int:
        """Compare the end of the collection with the log, and return the first offset that will be read.

        A step does that by itself; this is for callers that want to know before. Errors as of :meth:`step`.
        """
        self._batch = None  # if it is not there, it is read again
        self._lower, self._reader = await self._open()
        return self._reader.position

    @renamed(max_wait="max_wait_seconds")
    async def step(self, *, max_wait_seconds: float | None = None) -> Materialized:
        """Append the next batch, and return what it was; empty if no record came for ``max_wait_seconds``.

        Default: as the settings say. Empty, too, when another materializer of this log appended the batch,
        and at once when the log is sealed and has no further record. Cancellation, and any error, loses
        nothing: call again.

        Raises:
            InvalidSettingsError: A record does not fit; nothing of its batch was appended.
            OffsetTrimmedError: The log no longer has the next record.
            OffsetNotWrittenError: The log ends before the collection does: it is another log.
            OutcomeUnknownError: The store did not say whether the batch was appended; call again.
        """
        return await self._step(
            self._settings.wait_seconds if max_wait_seconds is None else max_wait_seconds
        )

    async def run(self) -> None:
        """Step until the log ends: when it is sealed, and else never. Errors as of :meth:`step`.

        Cancellation ends it and loses nothing.
        """
        await self._run(None)

    async def catch_up(self) -> int:
        """Look for the end of the log, step until it is there, and return how many records were written."""
        await self._log.refresh()
        return await self._run(0.0)

    async def _run(self, max_wait_seconds: float | None) -> int:
        total = 0
        while True:
            done = await self._step(max_wait_seconds)
            total += done.records
            # Without a reader, another materializer was faster, and there may be more.
            if done.upper == done.lower and self._reader is not None:
                return total

    async def _step(self, max_wait_seconds: float | None) -> Materialized:
        """Do a step; with ``max_wait_seconds`` None it waits as long as records may come."""
        await self._commit_due()
        if self._batch is None:
            self._batch = await self._read(max_wait_seconds)
        lower, upper, records, table = self._batch
        if not records:
            self._batch = None
            return Materialized(lower=lower, upper=lower, records=0)
        try:
            await self._writer.append(table, lower=lower, upper=upper)
        except UpperMismatchError as error:
            # Another materializer was faster.
            self._batch = self._reader = None
            return Materialized(lower=lower, upper=max(lower, error.actual), records=0)
        except InvalidSettingsError:
            self._batch = self._reader = None  # The columns may be others by the next call.
            raise
        except OutcomeUnknownError as error:
            if not error.retriable:
                self._batch = self._reader = None
            raise
        self._batch, self._lower, self._due = None, upper, upper
        await self._commit_due()
        return Materialized(lower=lower, upper=upper, records=records)

    async def _commit_due(self) -> None:
        """Move the cursor to where the collection ends: after a failure it is late, never early."""
        if self._commit is not None and self._due:
            await self._commit(self._due)
        self._due = None

    async def _read(self, max_wait_seconds: float | None) -> _PendingAppend:
        settings = self._settings
        if self._reader is None:
            self._lower, self._reader = await self._open()
        position = self._reader.position
        batch = await self._reader.fetch(
            max_records=settings.batch_records,
            max_bytes=settings.batch_bytes,
            max_wait_seconds=max_wait_seconds,
        )
        if not len(batch):
            return _PendingAppend(self._lower, self._lower, 0, None)
        try:
            table = await self._converted(batch)
        except BaseException:
            self._reader.seek(position)
            raise
        return _PendingAppend(self._lower, batch.limit, len(batch), table)

    async def _converted(self, batch: Batch) -> pa.Table:
        """Return what the records say, in the newest schema that this needs."""
        schema = self._collection.schema
        convert = partial(_convert, batch, self._envelope)
        try:
            return await run_aside(partial(convert, schema), size_bytes=batch.nbytes)
        except InvalidSettingsError:
            # Another program may have added columns meanwhile; this reads the head.
            await self._writer.upper()
            newest = self._collection.schema
            if newest.id == schema.id:
                raise
            return await run_aside(partial(convert, newest), size_bytes=batch.nbytes)

    async def _open(self) -> tuple[int, Reader]:
        """Return where the collection ends, and a reader there; errors as of :meth:`step`.

        A new collection begins with the first record that the log still has.
        """
        upper, log = await self._writer.upper(), self._log
        if upper > log.limit:
            # Another materializer may have seen more of it.
            await self._log.refresh()
        offsets = OffsetRange(log.head, log.limit)
        offsets.check_tail(
            upper,
            "the collection has more than the log: it was made from another log, or from one that lost "
            "records since",
        )
        if upper:  # else it is new
            offsets.check_head(upper)
        self._due = upper
        await self._commit_due()
        return upper, log.follow(max(upper, offsets.head))


class _PendingAppend(NamedTuple):
    """A batch that is not known to be in the collection."""

    lower: int
    upper: int
    records: int
    table: pa.Table | None


def _convert(batch: Batch, envelope: Envelope, schema: CollectionSchema) -> pa.Table:
    return to_updates(batch, envelope, schema)
