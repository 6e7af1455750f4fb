"""Logs for threads, scripts and Flask: the calls of :class:`walstore.Wal`, each waiting for its result.

``with walstore.sync.open("data/orders") as log: log.append(b"v")``. The log lives on an event loop in a
thread of its own. Any thread may call it, and calls of several threads share commits, as tasks do. Not
for programs with an event loop: there a call raises WrongLoopError, since it would stop the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from asyncio import _get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack

from walstore.core.batches.batch import Batch
from walstore.core.faces.append_backend import AppendOptions
from walstore.core.faces.readable_log import ReadableLog, follow_or_warn
from walstore.core.faces.transaction import Transaction
from walstore.core.read.reader import Reader
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.owned import NotCopied
from walstore.core.runtime.resource import Opening
from walstore.core.runtime.statistics import GroupInfo, GroupStatistics, Statistics
from walstore.core.validation.arguments import as_int
from walstore.errors import WalClosedError, WalError, WrongLoopError
from walstore.log.log import Log
from walstore.log.wal import Wal
from walstore.net.remote.remote_wal import RemoteWal
from walstore.net.remote.remote_wal import connect as connect_remote
from walstore.positions.cursor import Cursor
from walstore.positions.cursor_state import CursorInfo
from walstore.positions.groups.group import Group, Job
from walstore.positions.groups.redrive import Redriven
from walstore.records import AnyDurability, Record, Start

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BlockingCursor",
    "BlockingGroup",
    "BlockingJob",
    "BlockingLog",
    "BlockingReader",
    "BlockingTransaction",
    "connect",
    "open",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LastCall = Callable[[], Coroutine[Any, Any, None]]
_LATE_SECONDS: Final = 5.0
"""How long calls may go on after the log was closed, which ends them; then they are cancelled."""


def _as(
    original: Callable[_P, object],
) -> Callable[[Callable[..., _T]], Callable[_P, _T]]:
    """Let a function have the arguments of another one, for type checkers and for the reference."""

    def decorate(call: Any) -> Any:
        found = inspect.signature(original)
        call.__signature__ = found.replace(return_annotation=call.__annotations__["return"])
        call.__wrapped__ = original
        return call

    return decorate


def _as_method(
    original: Callable[Concatenate[Any, _P], object],
) -> Callable[[Callable[..., _T]], Callable[Concatenate[Any, _P], _T]]:
    """As :func:`_as`, for methods."""
    return _as(original)


@_as(Wal.open)
def open(*arguments: Any, **options: Any) -> BlockingLog:  # noqa: A001 - as in shelve and gzip
    """Open the log in directory ``path``; options and errors are those of :meth:`walstore.Wal.open`.

    Use it with ``with``, or call :meth:`BlockingLog.close` at the end.
    """
    return BlockingLog(Wal.open(*arguments, **options))


@_as(connect_remote)
def connect(*arguments: Any, **options: Any) -> BlockingLog:
    """Connect to a served log; options and errors are those of :func:`walstore.connect`."""
    return BlockingLog(connect_remote(*arguments, **options))


class _LoopThread:
    """An event loop in a thread of its own. Every call ends, also one that comes while the loop ends.

    Calls are handed over under a lock, and so is the end. So the loop has begun all of them when it begins
    to end; it waits for them, and none comes later.
    """

    def __init__(self) -> None:
        _check_no_loop()
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._lock = (
            threading.RLock()
        )  # a signal may come while it is held, and its handler may call
        self._is_ending = False
        self._last: asyncio.Future[_LastCall] = self._loop.create_future()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="walstore sync", daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a coroutine and return its result. An exception of the caller's own, such as Ctrl-C,
        cancels it. WalClosedError once the end has begun."""
        if self._process != os.getpid():
            raise WalClosedError(
                f"opened in process {self._process}, of which this process is a fork; open it again here"
            )
        _check_no_loop()
        future = self._hand_over(_made(call))
        try:
            return future.result()
        except CancelledError:
            if not self._is_ending:
                raise
            text = "the log was closed before this call had ended"
            raise WalClosedError(text, outcome="unknown") from None
        except BaseException:
            future.cancel()
            raise

    def end(self, last: _LastCall) -> None:
        """Run a last coroutine, wait until all calls have ended, and end the thread.

        Only the first caller's coroutine is run. All return when the thread has ended, and raise what it
        raised; who is interrupted, as by Ctrl-C, only waits no longer. In a child process nothing happens.
        """
        if self._process != os.getpid():
            return
        _check_no_loop()
        with self._lock:
            self._is_ending = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._begin_to_end, last)
        self._ended.wait()
        self._thread.join()
        if self._error is not None:
            error = self._error
            raise copy_error(error) if isinstance(error, WalError) else error

    def _hand_over(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        with self._lock:
            if not self._is_ending:
                # RuntimeError: the handler of a signal that came just now has closed the log.
                with contextlib.suppress(RuntimeError):
                    return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise WalClosedError("the log is closed")

    # -- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:  # noqa: BLE001 - whoever closes gets it
            self._error = error
        finally:
            self._loop.close()
            self._ended.set()

    def _begin_to_end(self, last: _LastCall) -> None:
        if not self._last.done():
            self._last.set_result(last)

    async def _live(self) -> None:
        """Return when the last call and all others have ended."""
        last = await self._last
        try:
            await last()
        finally:
            for _ in range(2):  # those that are cancelled end, too
                calls = asyncio.all_tasks() - {asyncio.current_task()}
                if calls:
                    _, late = await asyncio.wait(calls, timeout=_LATE_SECONDS)
                    for call in late:
                        call.cancel()


class BlockingLog(NotCopied):
    """A log, opened here or at a server. Made by :func:`open` and :func:`connect`; any thread may use it."""

    def __init__(self, opening: Opening[Wal] | Opening[RemoteWal]) -> None:
        """Not for callers; see :func:`open`."""
        self._loop = _LoopThread()
        try:
            self._log: Log = self._loop.run(lambda: _opened(opening))
        except BaseException:
            self._loop.end(_nothing)
            raise

    @_as_method(Wal.append)
    def append(self, *arguments: Any, **options: Any) -> int:
        """Append one record and return its offset; as :meth:`walstore.Wal.append`."""
        return self._run(lambda: self._log.append(*arguments, **options))

    @_as_method(Wal.append_many)
    def append_many(self, values: Iterable[bytes], **options: Any) -> range:
        """Append records as one atomic group; as :meth:`walstore.Wal.append_many`."""
        kept = list(values)  # here: the caller's iterator may not be for another thread
        return self._run(lambda: self._log.append_many(kept, **options))

    def append_once(
        self,
        producer_id: str,
        sequence: int,
        values: Iterable[bytes],
        *,
        repeated: bool = False,
        **options: Unpack[AppendOptions],
    ) -> range:
        """Append a group once, with a number of yours; as :meth:`walstore.Producer.append_many`."""
        kept, number = list(values), as_int(sequence, "sequence")
        return self._run(
            lambda: self._log.producer(producer_id).append_many(
                kept, sequence=number, repeated=repeated, **options
            )
        )

    @_as_method(Wal.transaction)
    def transaction(self, **options: Any) -> BlockingTransaction:
        """Return a transaction for ``with``; as :meth:`walstore.Wal.transaction`."""
        return BlockingTransaction(self._loop, self._log.transaction(**options))

    @_as_method(Wal.reader)
    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        follow: bool | None = None,
        **options: Any,
    ) -> BlockingReader:
        """Return a reader of what is there, for ``for``; as :meth:`walstore.Wal.reader`."""
        if follow_or_warn(follow=follow):
            return self.follow(start, **options)
        return BlockingReader(
            self._loop, self._call(lambda: self._log.reader(start, follow=False, **options))
        )

    @_as_method(Wal.follow)
    def follow(
        self, start: Start | str | int | datetime = Start.EARLIEST, **options: Any
    ) -> BlockingReader:
        """Return a reader for ``for`` that waits for new records for ever; as :meth:`walstore.Wal.follow`."""
        return BlockingReader(self._loop, self._call(lambda: self._log.follow(start, **options)))

    @_as_method(ReadableLog.to_arrow)
    def to_arrow(self, *arguments: Any, **options: Any) -> pa.Table:
        """Return the records that are there as a ``pyarrow.Table``; as :meth:`walstore.Wal.to_arrow`."""
        return self._run(lambda: self._log.to_arrow(*arguments, **options))

    @_as_method(Wal.cursor)
    def cursor(self, name: str, **options: Any) -> BlockingCursor:
        """Return a handle on the named cursor; as :meth:`walstore.Wal.cursor`."""
        return BlockingCursor(self._loop, self._run(lambda: self._log.cursor(name, **options)))

    def cursors(self) -> list[CursorInfo]:
        """Return all cursors of the log by name."""
        return self._run(self._log.cursors)

    @renamed(is_ordered="ordered")
    @_as_method(Wal.group)
    def group(self, name: str, **options: Any) -> BlockingGroup:
        """Return a member of a group for ``with``; as :meth:`walstore.Wal.group`."""
        return BlockingGroup(self._loop, self._call(lambda: self._log.group(name, **options)))

    def groups(self) -> list[GroupInfo]:
        """Return all groups of the log; as :meth:`walstore.Wal.groups`."""
        return self._run(self._log.groups)

    def delete_group(self, name: str) -> bool:
        """Remove a group; as :meth:`walstore.Wal.delete_group`."""
        return self._run(lambda: self._log.delete_group(name))

    def redrive_group(
        self,
        name: str,
        *,
        offsets: Iterable[int] | None = None,
        limit: int | None = None,
        dead_letters: str | None = None,
    ) -> Redriven:
        """Make dead letters of a group jobs again; as :meth:`walstore.Wal.redrive_group`."""
        return self._run(
            lambda: self._log.redrive_group(
                name, offsets=offsets, limit=limit, dead_letters=dead_letters
            )
        )

    def flush(self) -> None:
        """Return when everything accepted before the call is on disk."""
        self._run(self._log.flush)

    def wait_durable(self, offset: int, durability: AnyDurability = "disk") -> None:
        """Return when the record at ``offset`` is as safe as ``durability`` says."""
        self._run(lambda: self._log.wait_durable(offset, durability))

    def trim(self, before: int) -> int:
        """Remove all records below ``before`` from disk and return the new head."""
        return self._run(lambda: self._log.trim(before))

    @property
    def head(self) -> int:
        """First retained offset."""
        return self._log.head

    @property
    def tail(self) -> int:
        """Next offset to be assigned; of a served log, as last heard."""
        return self._log.tail

    @property
    def durable_limit(self) -> int:
        """Every offset below it is on disk; of a served log, as last heard."""
        return self._log.durable_limit

    @property
    def registers(self) -> Mapping[str, str]:
        """The durable state of the registers; of a served log, as last heard."""
        return dict(self._log.registers)

    def statistics(self) -> Statistics:
        """Return a snapshot of the log's counters."""
        return self._run(self._log.statistics)

    def close(self) -> None:
        """Close the log, or the connection, as ``aclose()`` does. Twice is allowed, also at the same time.

        Calls of other threads that wait for something end with WalClosedError, and so do later ones.
        """
        self._loop.end(self._log.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as closing:
            if error is None:
                raise
            error.add_note(f"and closing failed: {closing!r}")

    def __repr__(self) -> str:
        return f"<BlockingLog {self._log!r}>"

    def _run(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        return self._loop.run(call)

    def _call(self, call: Callable[[], _T]) -> _T:
        """Make a call that does not wait, in the log's thread."""

        async def make() -> _T:
            return call()

        return self._loop.run(make)


class BlockingReader(NotCopied):
    """Reads records in offset order, each once. Made by :meth:`BlockingLog.reader`; one thread at a time.

    With ``with`` the place where it begins is found, and checked, at once, and what it has in memory is
    dropped at the end.
    """

    def __init__(self, loop: _LoopThread, reader: Reader) -> None:
        """Not for callers; see :meth:`BlockingLog.reader`."""
        self._loop = loop
        self._reader = reader
        self._kept: deque[Record] = deque()
        """Fetched together by a loop over records, and not delivered yet."""

    @renamed(max_wait="max_wait_seconds")
    @_as_method(Reader.fetch)
    def fetch(self, **options: Any) -> Batch:
        """Return the next records as one batch; as :meth:`walstore.Reader.fetch`."""
        if self._kept:
            self.seek(self.position)
        return self._loop.run(lambda: self._reader.fetch(**options))

    @_as_method(Reader.arrow_batches)
    def arrow_batches(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Iterate over the records as RecordBatches; as :meth:`walstore.Reader.arrow_batches`."""
        if self._kept:
            self.seek(self.position)

        async def begin() -> AsyncIterator[pa.RecordBatch]:
            return self._reader.arrow_batches(*arguments, **options)

        batches = self._loop.run(begin)

        async def next_batch() -> pa.RecordBatch | None:
            return await anext(batches, None)

        return iter(lambda: self._loop.run(next_batch), None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the records to whatever takes Arrow's C stream, as ``pyarrow.table``, Polars and DuckDB do.

        It reads while they take the records, on any of their threads, in the columns of
        ``walstore.arrow.SCHEMA``; of a reader that follows, for ever. Call it again for what comes later.
        WrongLoopError in an event loop, which it would stop.
        """
        batches = self.arrow_batches()
        from walstore.core.batches.arrow import stream_of

        return stream_of(batches).__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[Record]:
        """Yield records. A loop that is left may be followed by another one, which continues there."""
        while self._kept or self._fill():
            yield self._kept.popleft()

    def _fill(self) -> bool:
        """Fetch records for a loop; return whether there are some."""
        self._kept.extend(self.fetch())
        return bool(self._kept)

    @property
    def position(self) -> int:
        """Offset of the next record to be delivered."""
        return self._kept[0].offset if self._kept else self._reader.position

    def seek(self, start: Start | str | int | datetime) -> None:
        """Continue at another place; as :meth:`walstore.Reader.seek`."""

        async def seek() -> None:
            self._reader.seek(start)

        self._loop.run(seek)
        self._kept.clear()

    def __enter__(self) -> Self:
        self._loop.run(self._reader.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._kept.clear()
        self._loop.run(lambda: self._reader.__aexit__(None, None, None))


class BlockingCursor(NotCopied):
    """A named, durable position. Made by :meth:`BlockingLog.cursor`; as :class:`walstore.Cursor`."""

    def __init__(self, loop: _LoopThread, cursor: Cursor) -> None:
        """Not for callers; see :meth:`BlockingLog.cursor`."""
        self._loop = loop
        self._cursor = cursor

    @property
    def position(self) -> int:
        """Offset of the next record to read."""
        return self._cursor.position

    def commit(self, offset: int) -> None:
        """Move to ``offset``; durable when it returns."""
        self._loop.run(lambda: self._cursor.commit(offset))

    def rewind(self, offset: int) -> None:
        """Move to ``offset``, also backwards."""
        self._loop.run(lambda: self._cursor.rewind(offset))

    def refresh(self) -> int:
        """Read the cursor again, which others may have moved, and return its position."""
        return self._loop.run(self._cursor.refresh)


class BlockingTransaction(NotCopied):
    """Records that enter the log together or not at all. Made by :meth:`BlockingLog.transaction`.

    One thread at a time; once the end of the block has begun to commit, calls of others are refused.
    """

    def __init__(self, loop: _LoopThread, transaction: Transaction) -> None:
        """Not for callers; see :meth:`BlockingLog.transaction`."""
        self._loop = loop
        self._transaction = transaction

    @property
    def span(self) -> range | None:
        """Offsets of the records once they are committed; None before."""
        return self._transaction.span

    @_as_method(Transaction.append)
    def append(self, *arguments: Any, **options: Any) -> int:
        """Add a record and return its place in the transaction, counted from 0."""
        return self._loop.run(lambda: self._transaction.append(*arguments, **options))

    def rollback(self) -> None:
        """Drop everything now; leaving the block then does nothing."""
        self._loop.run(self._transaction.rollback)

    def __enter__(self) -> Self:
        self._loop.run(self._transaction.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.run(lambda: self._transaction.__aexit__(kind, error, trace))


class BlockingJob(NotCopied):
    """A record that one member of a group has for a time; as :class:`walstore.Job`."""

    def __init__(self, loop: _LoopThread, job: Job) -> None:
        """Not for callers; see :class:`BlockingGroup`."""
        self._loop = loop
        self._job = job
        self.record: Record = job.record
        """The record."""
        self.deliveries = job.deliveries
        """How often it has been delivered, this time included."""

    @property
    def value(self) -> bytes:
        """What was appended."""
        return self.record.value

    def ack(self) -> None:
        """Say that the work is done; durable when this returns."""
        self._loop.run(self._job.ack)

    @renamed(delay="delay_seconds")
    def nak(self, delay_seconds: float = 0.0, *, error: BaseException | str | None = None) -> None:
        """Give the job back: it comes again after ``delay_seconds``."""
        self._loop.run(lambda: self._job.nak(delay_seconds, error=error))

    def in_progress(self) -> None:
        """Begin the lease anew; LeaseExpiredError if it has ended."""
        self._loop.run(self._job.in_progress)

    def term(self, reason: BaseException | str | None = None) -> None:
        """Drop the job: it never comes again; with a reason it becomes a dead letter."""
        self._loop.run(lambda: self._job.term(reason))


class BlockingGroup(NotCopied):
    """A member of a group, for ``with``; ``for job in group`` waits for ever. As :class:`walstore.Group`."""

    def __init__(self, loop: _LoopThread, group: Group) -> None:
        """Not for callers; see :meth:`BlockingLog.group`."""
        self._loop = loop
        self._group = group

    @renamed(max_wait="max_wait_seconds")
    @_as_method(Group.fetch)
    def fetch(self, *arguments: Any, **options: Any) -> list[BlockingJob]:
        """Return up to ``max_jobs`` jobs; wait up to ``max_wait_seconds`` for the first."""
        jobs = self._loop.run(lambda: self._group.fetch(*arguments, **options))
        return [BlockingJob(self._loop, job) for job in jobs]

    def statistics(self) -> GroupStatistics:
        """Return how far the group is."""
        return self._loop.run(self._group.statistics)

    def __iter__(self) -> Iterator[BlockingJob]:
        while True:
            yield from self.fetch()

    def __enter__(self) -> Self:
        self._loop.run(self._group.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(lambda: self._group.__aexit__(None, None, None))


def _check_no_loop() -> None:
    if _get_running_loop() is not None:
        raise WrongLoopError("walstore.sync would stop this event loop; use walstore.Wal here")


async def _made(call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Make a coroutine where it runs: one that is made and never begun is complained about."""
    return await call()


async def _nothing() -> None:
    return


async def _opened(opening: Opening[Any]) -> Any:
    return await opening
