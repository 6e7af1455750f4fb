"""CollectionLanding: the sidecar's work without Spark: a versioned collection kept up to date with a log.

The order of steps is the sidecar's: a cursor retains the log from where the collection will begin, a batch is
appended to the collection, and then the cursor moves behind it. The collection itself says how far it is, so
there is no checkpoint, and a batch that is repeated after a kill changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, cast

from uploader import CloudCursors, CloudLog, Collection, Materializer, MaterializerSettings
from uploader.versioned.envelope import Envelope
from uploader.versioned.materializer import WRITER
from walstore import InvalidSettingsError, OffsetTrimmedError, ReadonlyWal
from walstore.core.ports import Clock
from walstore.spark.bounds import LogName
from walstore.spark.sidecar.landing import (
    RETRY_SECONDS,
    Landed,
    Landing,
    Started,
    Summary,
    check_not_beyond,
)
from walstore.spark.streaming.log_cursor import LogCursor

_ATTEMPTS: Final = 10


class CollectionLanding:
    """One run. For one task of the event loop that opened the log and the collection; closes neither."""

    def __init__(
        self,
        log: ReadonlyWal | CloudLog,
        collection: Collection,
        *,
        name: LogName,
        envelope: Envelope,
        cursor: str | None,
        warn: Callable[[str], None],
        clock: Clock,
        is_once: bool,
        trigger_seconds: float,
        max_records: int,
    ) -> None:
        """Do no I/O yet.

        Args:
            log: A log directory, open for reading, or a stored log.
            collection: An open collection.
            name: Names the log in reports.
            envelope: What a record says; InvalidSettingsError if it does not fit the collection's kind.
            cursor: Name of the cursor that retains the log; None: nothing does.
            warn: Called when the cursor did not move, which is retried.
            clock: Waits between batches.
            is_once: Whether to end when all is there that the log had at the start.
            trigger_seconds: How often a batch begins, unless ``is_once``.
            max_records: Most records of a batch.
        """
        self._log = log
        self._collection = collection
        self._name = name
        self._cursor_name = cursor
        self._clock = clock
        self._landing = Landing(warn, clock)
        self._is_once = is_once
        self._trigger_seconds = trigger_seconds
        self._materializer = Materializer(
            log,
            collection,
            envelope=envelope,
            commit=None if cursor is None else self._advance,
            settings=MaterializerSettings(batch_records=max_records),
        )
        self._cursor = None if cursor is None else _open_cursor(log, cursor)
        self._held: dict[LogName, int] = {}  # where the cursor stands
        self._position = 0

    async def start(self) -> Started:
        """Retain the log from where the collection ends, and say where that is. Call it once, first.

        Raises InvalidSettingsError if the cursor is beyond what the collection has, or if something else was
        written to the collection; OffsetTrimmedError for records that were removed before they were there,
        OffsetNotWrittenError for a log that ends before the collection does, and the store's errors.
        """
        found = None if self._cursor is None else await self._cursor.load()
        is_resumed = await self._is_resumed()
        self._position = await self._materializer.begin()
        has = f"the collection has only what comes before {self._position}"
        check_not_beyond(self._cursor_name or "", self._name, found, self._position, has)
        if self._cursor is not None and not self._held:
            await self._hold()
        return Started(
            positions={self._name: self._position},
            is_resumed=is_resumed,
            cursor=self._cursor_name or "",
            checkpoint=self._collection.url,
        )

    async def landings(self) -> AsyncIterator[Landed]:
        """Append batches and yield a report of each; ends with a sealed log, or if told so at the start.

        Cancellation, and any error, loses nothing: another run continues. Errors as of
        :meth:`uploader.Materializer.step`.
        """
        limit, landing = self._log.limit if self._is_once else None, self._landing
        while limit is None or self._position < limit:
            if limit is None and not landing.is_late:
                await self._log.wait_limit(self._position + 1)
            began = self._clock.monotonic()
            done = await self._materializer.step(max_wait_seconds=RETRY_SECONDS)
            self._position = done.upper
            if landing.is_retry_due:
                await self._advance(self._position)
            if done.records:
                landing.land(landing.batch + 1, {self._name: self._position}, done.records)
                landing.tails = {self._name: self._log.limit}
                seconds = self._clock.monotonic() - began
                yield landing.report(done.records, self._held, seconds)
                left = began + self._trigger_seconds - self._clock.monotonic()
                if limit is None and left > 0:
                    await self._clock.sleep(left)
            elif self._has_ended():
                return

    def summary(self, *, is_stopped: bool) -> Summary:
        """Return the result of the run."""
        self._landing.positions = {self._name: self._position}
        return self._landing.summary(self._held, is_stopped=is_stopped)

    # -- inside ------------------------------------------------------------------------------

    def _has_ended(self) -> bool:
        log = self._log
        return log.is_sealed and self._position >= log.limit

    async def _is_resumed(self) -> bool:
        """Return whether an earlier run has appended; InvalidSettingsError if only somebody else has."""
        shard = self._collection.writer(WRITER)
        if await shard.upper():
            return True
        upper = (await self._collection.status()).upper
        if not upper:
            return False
        if not await shard.upper():  # another run may have begun meanwhile
            raise InvalidSettingsError(
                f"the collection has updates before {upper} which are not of a log; a log needs a collection "
                "of its own"
            )
        return True

    async def _hold(self) -> None:
        """Create the cursor where the collection begins: at the head of the log, which may move meanwhile."""
        assert self._cursor is not None
        for attempt in range(_ATTEMPTS):
            try:
                self._held = {self._name: await self._cursor.create(self._position)}
                return
            except OffsetTrimmedError:
                if attempt == _ATTEMPTS - 1:
                    raise
            await self._log.refresh()
            self._position = await self._materializer.begin()

    async def _advance(self, position: int) -> None:
        """Move the cursor to what the collection has. A failure is reported, and retried later."""
        assert self._cursor is not None
        with self._landing.moving():
            await self._cursor.advance(position)
            self._held = {self._name: position}


def _open_cursor(log: ReadonlyWal | CloudLog, name: str) -> LogCursor:
    """Return a cursor where the records are read: in a directory, not in the tier that it ships to."""
    stored = log.cursors
    if isinstance(stored, CloudCursors):
        return LogCursor.of_store(stored, name)
    return LogCursor.of_directory(cast(ReadonlyWal, log), None, name)
