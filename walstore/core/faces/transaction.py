"""Transaction: records of any total size that enter the log together or not at all.

Until the commit they have no offset and are invisible, and other appends continue. Where they are meanwhile
is for the log: in memory and in a file (``spilled_records.py``), or at the server (``sent_records.py``).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from walstore.core.batches.append_request import make_record, make_rows
from walstore.core.batches.batch_builder import RECORD_OVERHEAD_BYTES, AppendRequest
from walstore.core.batches.conditions import AppendConditions, check_registers
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.owned import Owned, checks_itself
from walstore.errors import RecordTooLargeError, WalClosedError, WalError


class TransactionRecords:
    """The records of one transaction until it ends. Used by one task at a time, that of the transaction."""

    max_record_bytes: int
    """Largest record."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """About what they, or what is known of them, take in memory here."""

    @abstractmethod
    def check_owner(self) -> None:
        """As of :class:`walstore.core.runtime.owned.Owned`."""

    @abstractmethod
    def check_caller(self) -> None:
        """The same, cheap enough to be called for each record."""

    @abstractmethod
    def begin(self) -> None:
        """Raise what the log raises that takes no more appends."""

    def timestamp(self, timestamp_us: int | datetime) -> int | datetime:
        """Check a caller's timestamp, as far as that can be done here."""
        return timestamp_us

    @abstractmethod
    def add(self, request: AppendRequest) -> bool:
        """Keep records; whether they are so many now that :meth:`write_out` is to come."""

    @abstractmethod
    async def write_out(self) -> None:
        """Move the records out of memory. After an error, or cancelled, the transaction cannot commit."""

    @abstractmethod
    async def finish(self) -> None:
        """Do what comes before the commit; as :meth:`write_out`."""

    @abstractmethod
    async def commit(self) -> None:
        """Append them under their conditions, and set the span of those once they are accepted."""

    def failure_of(self, error: BaseException) -> WalError:
        """Return what later uses of the transaction raise after its commit raised ``error``."""
        return WalClosedError("the transaction was rolled back")

    @abstractmethod
    async def end(self, *, is_committed: bool) -> None:
        """Drop what is kept of them; called once."""


class Transaction(Owned):
    """An append being built; see :meth:`walstore.Wal.transaction`. One task at a time, on the event
    loop of the log: from another thread or event loop all methods raise WrongLoopError and change
    nothing.

    Use it with ``async with``. If the block raises or is cancelled, everything is rolled back, and so it is
    if the connection to a served log is lost before the commit. If the commit itself is cancelled, it may
    still have happened: then ``span`` is set. That of a served log waits for its answer. Cancelled again, or
    if the connection is lost meanwhile, nobody knows; with a producer, the transaction may be made again
    with the same number.
    """

    def __init__(self, records: TransactionRecords, conditions: AppendConditions) -> None:
        """Not for callers; see :meth:`walstore.Wal.transaction`."""
        self._records = records
        self._conditions = conditions
        self._count = 0
        self._is_open = False
        self._is_committing = False
        self._failure: WalError | None = None
        self._has_failed = False  # as opposed to rolled back by its user

    @property
    def span(self) -> range | None:
        """Offsets of the records once they are committed; None before, and if nobody knows.

        Without records: an empty range at the log's tail at the commit. For a producer's repeated
        transaction: the original offsets.
        """
        return self._conditions.span

    @property
    def is_duplicate(self) -> bool:
        """Whether the producer had committed it before."""
        return self._conditions.is_duplicate

    @checks_itself
    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
    ) -> int:
        """Add a record and return its place in the transaction, counted from 0.

        Its offset will be ``span.start`` plus that. Raises what :meth:`walstore.Wal.append` raises for
        bad arguments and records that are too large, which leaves the transaction as it was, and
        DiskFullError or StorageUnavailableError if it does not fit the disk, which rolls it back. So does
        any error of a server, which may come with a later record, or at the commit: LimitExceededError if
        it has no room for more open transactions, see ``request_bytes`` of
        :class:`walstore.serve.ServeSettings`.
        """
        records = self._records
        records.check_caller()
        if not self._is_open:
            raise self._refusal()
        times = None if timestamp_us is None else records.timestamp(timestamp_us)
        request = make_record(value, key, stream, headers, times)
        return await self._add(request, request.size_bytes - RECORD_OVERHEAD_BYTES)

    async def append_rows(self, values: Sequence[bytes], headers: Sequence[bytes | None]) -> None:
        """Not for callers: as :meth:`append` of each value, with its own headers as ``pack_headers`` made
        them, or none. With an error for one of them none is added."""
        if not self._is_open:
            raise self._refusal()
        request = make_rows(values, headers)
        await self._add(request, max(map(_size_of, values, headers)))

    def set_registers(self, update: Mapping[str, str | None]) -> None:
        """Also set these registers at the commit, or remove them with None; the last value counts.

        They are copied. TypeError or ValueError for invalid registers, RuntimeError after the commit. A
        transaction that is rolled back sets none.
        """
        self.check_owner()
        if self._is_committing or self.span is not None:
            raise self._refusal()
        added = check_registers(update, "update")
        self._conditions.update = {**(self._conditions.update or {}), **(added or {})} or None

    async def rollback(self) -> None:
        """Drop everything now; leaving the block then does nothing. Twice is allowed.

        RuntimeError, and nothing happens, once the end of the block has begun to commit.
        """
        if self._is_committing:
            raise self._refusal()
        await self._drop()

    async def _drop(self) -> None:
        if not (self._is_open or self._is_committing):
            return
        self._is_open = self._is_committing = False
        self._failure = self._failure or WalClosedError("the transaction was rolled back")
        await self._records.end(is_committed=False)

    async def __aenter__(self) -> Self:
        is_used = self._is_open or self._is_committing or self._count > 0
        if is_used or self._failure is not None or self.span is not None:
            raise RuntimeError("a transaction can be entered once; make another")
        self._records.begin()
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_open:
            if error is None and self._has_failed:
                assert self._failure is not None
                # Otherwise code that caught it inside would believe it committed.
                raise copy_error(self._failure)
            return
        if error is not None:
            await self._drop()
            return
        self._is_open, self._is_committing = False, True  # nothing is added any more
        try:
            await self._out(self._records.finish())
            await self._records.commit()
        except BaseException as failed:
            if self.span is None and self._failure is None:
                self._failure = self._records.failure_of(failed)
            raise
        finally:
            if self._is_committing:
                self._is_committing = False
                await self._records.end(is_committed=self.span is not None)

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._records.check_owner()

    @property
    def held_bytes(self) -> int:
        """Not for callers: about what its records, or what is known of its file, take in memory."""
        return self._records.held_bytes

    async def write_out(self) -> None:
        """Not for callers: move its records to the file now, so that it takes little memory.

        As :meth:`append` raises when a transaction does not fit the disk, which rolls it back.
        """
        await self._out(self._records.write_out())

    # -- inside ------------------------------------------------------------------------------

    async def _add(self, request: AppendRequest, largest_bytes: int) -> int:
        """Add records, the largest of which has so many bytes; return the place of the first."""
        if largest_bytes > self._records.max_record_bytes:
            raise too_large(largest_bytes, self._records.max_record_bytes)
        place = self._count
        is_full = self._records.add(request)
        self._count = place + request.count
        if is_full:
            await self._out(self._records.write_out())
        return place

    async def _out(self, writing: Awaitable[None]) -> None:
        """Await what moves records. If it fails, or is cancelled, some may be missing there: roll back.

        Every later use raises why, including leaving the block.
        """
        try:
            await writing
        except BaseException as error:
            self._has_failed = True
            self._failure = copy_error(error) if isinstance(error, WalError) else _unfinished(error)
            await self._drop()
            raise

    def _refusal(self) -> Exception:
        """Return why a transaction that is not open takes nothing."""
        if self._is_committing:
            return RuntimeError("the transaction is being committed; make another")
        if self.span is not None:
            return RuntimeError(f"the transaction is committed, as {self.span}; make another")
        if self._failure is not None:
            return copy_error(self._failure)
        return RuntimeError("use a transaction inside its own 'async with' block")


def too_large(size_bytes: int, limit_bytes: int) -> RecordTooLargeError:
    """Return the error for a record that no append takes."""
    return RecordTooLargeError(
        f"the record has {size_bytes} bytes; max_record_bytes is {limit_bytes}",
        size_bytes=size_bytes,
        limit_bytes=limit_bytes,
    )


def _unfinished(error: BaseException) -> WalClosedError:
    what = "was cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
    return WalClosedError(f"adding to the transaction {what}, so it was rolled back")


def _size_of(value: bytes, headers: bytes | None) -> int:
    return len(value) + len(headers or b"")
