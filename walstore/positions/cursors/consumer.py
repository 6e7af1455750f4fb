"""Consumer: reads a log from a cursor and advances the cursor.

It knows which records are processed; its :class:`CursorKeeper` commits that position. Delivery is at
least once: records delivered and not committed are delivered again. It is exactly once if the output is
a log: then the position is a register of that log and changes together with the output, and the cursor
only follows it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from threading import get_ident
from types import TracebackType
from typing import Any, Generic, Protocol, Self

from walstore.core.batches.batch import Batch
from walstore.core.ports import Clock
from walstore.core.read.reader import MIB, Reader
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.owned import Owned, checks_itself
from walstore.core.validation.arguments import as_seconds
from walstore.errors import InvalidSettingsError, WalClosedError, WalError
from walstore.positions.cursor import CursorBackend
from walstore.positions.cursors.consumer_transaction import (
    ConsumerRegister,
    ConsumerTransaction,
    OutputLog,
    OutputT,
)
from walstore.positions.cursors.cursor_keeper import CursorKeeper
from walstore.positions.cursors.undone import (
    Handler,
    UndoneRecords,
    check_concurrency,
    run_handlers,
)
from walstore.records import AnyDurability, Record, Start

logger = logging.getLogger("walstore.cursors")


class ConsumerLog(Protocol):
    """What a consumer needs of the log it reads. Belongs to the event loop."""

    @property
    def log_id(self) -> str:
        """Identity of the log, in hex."""

    @property
    def reader(self) -> Callable[..., Reader]:
        """Makes a reader of durable records: ``reader(start, follow=…)``, optionally with ``stream=…``."""


class Consumer(Owned, Generic[OutputT]):
    """Reads records and keeps its place in a cursor. Made by :meth:`walstore.Wal.consumer`.

    Use it with ``async with``, and inside that ``async for``, :meth:`fetch` or :meth:`batches`; all
    move the same position. One task at a time.

    A record (or batch) counts as processed when the next one is requested, or when the block ends
    without an exception. Processed records are committed every ``auto_commit_seconds`` and at the end
    of the block; after an exception in the block the last record (or batch) is delivered again. With
    ``auto_commit_seconds=None`` only :meth:`commit` commits.

    With ``concurrency`` of more than 1, up to so many records are delivered that are not processed yet. A
    record is processed once :meth:`done` says so, or its handler in :meth:`run` returns. Committed is what
    lies before the first that is not, in whatever order they end.

    Once another handle has moved the cursor, the calls raise CursorMovedError; with an output,
    FencedError. After the block they raise WalClosedError, and the properties keep their values.
    Otherwise they raise what :class:`Reader` and :class:`walstore.Cursor` raise. All methods belong to
    the event loop of the log: from another thread or event loop they raise WrongLoopError.
    """

    def __init__(
        self,
        log: ConsumerLog,
        cursors: CursorBackend,
        name: str,
        *,
        clock: Clock,
        start: Start | str | int | datetime = Start.EARLIEST,
        auto_commit_seconds: float | None = 5.0,
        lease_seconds: float | None = None,
        stream: str | None = None,
        follow: bool = True,
        output: OutputLog[OutputT] | None = None,
        concurrency: int = 1,
    ) -> None:
        """See :meth:`walstore.Wal.consumer` for the options."""
        if auto_commit_seconds is not None:
            auto_commit_seconds = as_seconds(auto_commit_seconds, "auto_commit_seconds")
            if not auto_commit_seconds > 0:
                raise InvalidSettingsError(
                    f"auto_commit_seconds must be more than 0 or None, not {auto_commit_seconds!r}"
                )
        # Set once.
        self.name = name
        """Name of the consumer and of its cursor."""
        self._log = log
        self._cursors = cursors
        self._thread = get_ident()
        self.check_home = cursors.check_home
        """Not for callers: raises in a child process, another thread or another event loop."""
        self._clock = clock
        self._start = start
        self._auto_commit_seconds = auto_commit_seconds
        self._lease_seconds = lease_seconds
        self._options: dict[str, Any] = {"follow": follow}
        if stream is not None:
            self._options["stream"] = stream
        if output is not None and not callable(getattr(output, "transaction", None)):
            raise TypeError(
                f"output must be a log to write to, such as an open Wal, not {type(output).__name__}"
            )
        self._undone: UndoneRecords | None = None
        if check_concurrency(concurrency) > 1:
            if output is not None:
                raise InvalidSettingsError(
                    "a consumer with an output handles one record after the other: leave concurrency out"
                )
            self._undone = UndoneRecords(concurrency)
        self._output = output
        self._register = None if output is None else ConsumerRegister(output, log.log_id, name)
        # Set once the consumer is entered.
        self._keeper: CursorKeeper | None = None
        self._open_reader: Reader | None = None
        # Offset of the last record delivered that is not yet processed.
        self._held: int | None = None

    async def __aenter__(self) -> Self:
        if self._keeper is not None:
            raise RuntimeError("a consumer can be entered once; make another")
        cursor = await self._cursors.open(
            self.name, start=self._start, lease_seconds=self._lease_seconds
        )
        position = cursor.position
        if self._register is not None:
            await self._register.take(position)
            position = self._register.position
            if position < cursor.position:
                # The register is authoritative. Pin its position; this raises if it is trimmed already.
                await cursor.rewind(position)
        self._open_reader = self._log.reader(position, **self._options)
        self._keeper = CursorKeeper(
            cursor,
            clock=self._clock,
            auto_commit_seconds=self._auto_commit_seconds,
            register=self._register,
            processed=self._processed,
        )
        self._keeper.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        keeper = self._keeper
        assert keeper is not None
        try:
            await keeper.stop()
            if error is None:
                keeper.check()
                self._held = None
                if keeper.moves_alone:
                    await keeper.save()
            elif keeper.failure is None and keeper.moves_alone:
                try:
                    await keeper.save()
                except WalError as second:
                    logger.warning("consumer %s could not commit: %s", self.name, second)
        finally:
            keeper.end()

    # -- reading -----------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Offset of the next record to deliver."""
        return self._entered_reader.position

    @property
    def committed(self) -> int:
        """Offset at which another consumer with this name would begin now."""
        if self._register is not None:
            return self._register.durable_position
        return self._entered().cursor.position

    @property
    def lag(self) -> int:
        """How many records that are visible now have not been delivered, whatever their stream."""
        return self._entered_reader.lag

    @property
    def pending(self) -> int:
        """How many records were delivered and are not processed, whatever their stream."""
        position = self._entered_reader.position
        return self._undone.count if self._undone is not None else position - self._processed()

    def __aiter__(self) -> Self:
        return self

    @checks_itself
    async def __anext__(self) -> Record:
        if (
            get_ident() != self._thread
        ):  # checked per record; reading more also checks the event loop
            self.check_home()
        reader, keeper = self._open_reader, self._keeper
        if reader is None or keeper is None or keeper.failure is not None:
            reader, keeper = self._reader, self._entered()  # the first raises
        if self._undone is not None:
            return await self._next_undone(reader, self._undone)
        self._held = None
        record = await reader.__anext__()
        if keeper.failure is not None:  # meanwhile
            keeper.check()
        self._held = record.offset
        return record

    def batches(self) -> AsyncIterator[Batch]:
        """Iterate over batches as they are stored, the cheapest way to read many records."""
        self._check_sequential()
        return _ConsumerBatches(self._next_batch, self._reader.batches())

    @renamed(max_wait="max_wait_seconds")
    async def fetch(
        self,
        *,
        max_records: int = 500,
        max_bytes: int = MIB,
        max_wait_seconds: float | None = None,
    ) -> Batch:
        """Return the next records as one batch; see :meth:`Reader.fetch`."""
        self._check_sequential()
        reader = self._reader
        self._held = None
        batch = await reader.fetch(
            max_records=max_records, max_bytes=max_bytes, max_wait_seconds=max_wait_seconds
        )
        self._entered().check()
        self._held = batch.start
        return batch

    def seek(self, start: Start | str | int) -> None:
        """Continue at an offset, ``"earliest"`` or ``"latest"``; the next commit moves the cursor there,
        also backwards. For a time, seek to the result of the log's ``offset_at``. Records that are not
        processed yet are passed over. RuntimeError while :meth:`run` runs."""
        self.check_home()
        if self._undone is not None:
            self._check_not_run(self._undone)
        given: object = start
        if isinstance(given, datetime):
            raise TypeError("a consumer seeks to an offset: seek(await log.offset_at(moment))")
        self._reader.seek(start)
        self._held = None
        if self._undone is not None:
            self._undone.clear()
        self._entered().goes_back = True

    # -- several records at once -------------------------------------------------------------

    async def run(self, handler: Handler) -> None:
        """Call ``await handler(record)`` for each record, up to ``concurrency`` at once, in tasks.

        Handlers begin in the order of the records. Returns when the log ends and all are done, so never
        with ``follow=True``: cancel it, or let a handler raise. The first error of a handler is raised. Then,
        and on cancellation, the other handlers are cancelled and awaited, and the consumer returns to the
        first record that was not processed; those after it are delivered again, done or not.
        """
        reader = self._reader
        undone = self._undone or UndoneRecords(1)
        self._check_not_run(undone)
        self._undone, given = undone, self._undone
        undone.is_run = True
        try:
            await run_handlers(self, undone, handler)
        finally:
            undone.is_run = False
            if undone.first is not None:
                reader.seek(undone.first)
                undone.clear()
            self._undone, self._held = given, None

    def done(self, record: Record) -> None:
        """Say that a record is processed; for a consumer with ``concurrency`` that is read by ``async for``.

        Nothing happens if it was said before, or if the consumer has left the record by :meth:`seek`.
        """
        self.check_home()
        if self._undone is not None:
            self._undone.done(record.offset)

    # -- committing --------------------------------------------------------------------------

    async def commit(self, offset: int | None = None) -> None:
        """Commit ``offset`` as the next to be read; by default everything delivered counts as processed.

        With ``concurrency``, by default what lies before the first record that is not processed.

        Durable when it returns; raises as :meth:`walstore.Cursor.commit`. InvalidSettingsError for a consumer
        with an output: its transactions commit.
        """
        keeper = self._entered()
        keeper.check()
        if self._register is not None:
            raise InvalidSettingsError(
                "this consumer's position is committed with its output: use transaction()"
            )
        if offset is None:
            self._held = None
        await keeper.commit(offset)

    def transaction(
        self, *, durability: AnyDurability | None = None
    ) -> ConsumerTransaction[OutputT]:
        """Return a transaction of the output log that also commits everything delivered.

        ``async with consumer.transaction() as txn: await txn.append(...)``. Records may be read before
        the block and in it. Output and position become durable together: after a crash, a delivered
        record is either reflected in the output or delivered again.

        If the block raises or is cancelled, or the commit fails, the consumer returns to its last
        commit and delivers the records again. Raises FencedError if another consumer with this name
        took over; then nothing was written. ``durability`` as for :meth:`walstore.Wal.transaction`.
        InvalidSettingsError for a consumer without an output.
        """
        if self._output is None or self._register is None:
            raise InvalidSettingsError("transactions need a consumer made with output=")
        return ConsumerTransaction(self, self._output, self._register, durability)

    def check(self) -> int:
        """Not for callers: return the position; raises if the consumer cannot continue."""
        return self._reader.position

    def on_rollback(self) -> None:
        """Not for callers: a transaction was rolled back."""
        assert self._register is not None
        if self._open_reader is not None:
            self._open_reader.seek(self._register.position)
            self._held = None

    async def on_commit(self) -> None:
        """Not for callers: a transaction was accepted."""
        self._held = None
        if self._auto_commit_seconds is None:
            await self._entered().keep()

    def on_fence(self, error: WalError) -> None:
        """Not for callers: another consumer took over."""
        self._entered().failure = error

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self.check_home()

    def __repr__(self) -> str:
        where = "not open" if self._open_reader is None else f"at {self._open_reader.position}"
        return f"<Consumer {self.name!r} {where}>"

    # -- inside ------------------------------------------------------------------------------

    def _entered(self) -> CursorKeeper:
        if self._keeper is None:
            raise WalClosedError("the consumer is not open; use it within 'async with'")
        return self._keeper

    @property
    def _reader(self) -> Reader:
        self._entered().check()
        return self._entered_reader

    @property
    def _entered_reader(self) -> Reader:
        self._entered()
        assert self._open_reader is not None
        return self._open_reader

    def _processed(self) -> int:
        """Return the offset below which every record is processed."""
        assert self._open_reader is not None
        held = self._held if self._undone is None else self._undone.first
        return self._open_reader.position if held is None else held

    async def _next_undone(self, reader: Reader, undone: UndoneRecords) -> Record:
        await undone.wait_for_room()
        self._entered().check()
        record = await reader.__anext__()
        self._entered().check()
        undone.add(record.offset)
        return record

    def _check_sequential(self) -> None:
        if self._undone is not None:
            raise InvalidSettingsError(
                "a consumer with concurrency delivers single records: use async for, or run()"
            )

    @staticmethod
    def _check_not_run(undone: UndoneRecords) -> None:
        if undone.is_run:
            raise RuntimeError("the consumer runs a handler")

    async def _next_batch(self, batches: AsyncIterator[Batch]) -> Batch:
        self.check_home()
        self._entered().check()
        self._held = None
        batch = await anext(batches)
        self._entered().check()
        self._held = batch.start
        return batch


class _ConsumerBatches:
    """Iterates over a consumer's batches. Not a generator, so that abandoning it leaves nothing behind."""

    def __init__(
        self,
        next_batch: Callable[[AsyncIterator[Batch]], Awaitable[Batch]],
        batches: AsyncIterator[Batch],
    ) -> None:
        self._next_batch = next_batch
        self._source = batches

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await self._next_batch(self._source)
