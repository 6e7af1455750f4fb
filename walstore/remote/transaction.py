"""RemoteTransaction: records of any total size that enter a served log together or not at all.

They travel in parts. The server keeps them as it keeps those of any transaction, and rolls back when the
connection is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from walstore.batches.append_request import make_record
from walstore.batches.batch_builder import RECORD_OVERHEAD_BYTES
from walstore.batches.conditions import check_registers
from walstore.errors import (
    OutcomeUnknownError,
    RecordTooLargeError,
    RegisterMismatchError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
)
from walstore.records import AnyDurability
from walstore.remote.client import Answer, Fate
from walstore.remote.outbox import options_of
from walstore.runtime.error_mapping import copy_error
from walstore.runtime.owned import Owned
from walstore.runtime.tasks import shield
from walstore.settings import parse_durability
from walstore.wire.message import Kind
from walstore.wire.records import NO_OPTIONS, RecordOptions, pack_options, pack_values

if TYPE_CHECKING:
    from walstore.remote.append_port import Conditions, RemoteLog

_T = TypeVar("_T")

_PART_BYTES: Final = 1 << 20
_numbers = count(1)


def _same(error: RegisterMismatchError) -> WalError:
    return error


class RemoteTransaction(Owned):
    """An append being built; as :class:`walstore.Transaction`. Made by :meth:`RemoteWal.transaction`.

    Use it with ``async with``. If the block raises or is cancelled, or the connection is lost before the
    commit, everything is rolled back. If the connection is lost during the commit, OutcomeUnknownError; with
    a producer, the transaction may be made again with the same number.

    A commit that is cancelled waits for its answer, so that ``span`` says whether the transaction is in the
    log. Cancelled again, or if the connection is lost meanwhile, nobody knows.
    """

    def __init__(
        self,
        log: RemoteLog,
        conditions: Conditions,
        durability: AnyDurability | None,
        *,
        refused: Callable[[RegisterMismatchError], WalError] = _same,
    ) -> None:
        """Not for callers; see :meth:`RemoteWal.transaction`."""
        self._log = log
        self._conditions = conditions
        self._level = None if durability is None else parse_durability(durability)
        self._refused = refused
        self._number = next(_numbers)
        self._update: dict[str, str | None] = {}
        self._values: list[bytes] = []
        self._rows: list[RecordOptions] = []
        self._size_bytes = 0
        self._count = 0
        self._is_open = False
        self._is_begun = False
        self._begun_at = log.client.reconnects
        self._failure: WalError | None = None
        self._has_failed = False
        self._span: range | None = None
        self._is_duplicate = False

    @property
    def span(self) -> range | None:
        """Offsets of the records once they are committed, as there; None before, and if nobody knows."""
        return self._span

    @property
    def is_duplicate(self) -> bool:
        """Whether the producer had committed it before."""
        return self._is_duplicate

    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
    ) -> int:
        """Add a record and return its place in the transaction, counted from 0.

        As :meth:`walstore.Transaction.append` raises. LimitExceededError if the server has no room for more
        open transactions: see ``request_bytes`` of :class:`walstore.serve.ServeSettings`. That, as any error
        of the server, rolls the transaction back; it may come with a later record, or at the commit.
        """
        self._log.client.check_home()
        self._check_open()
        record = make_record(value, key, stream, headers, timestamp_us)
        check_size(record.size_bytes - RECORD_OVERHEAD_BYTES, self._log.max_record_bytes)
        self._values.append(record.values[0])
        self._rows.append(options_of(record))
        self._size_bytes += record.size_bytes
        place = self._count
        self._count += 1
        if self._size_bytes >= _PART_BYTES:
            await self._send_part()
        return place

    def set_registers(self, update: Mapping[str, str | None]) -> None:
        """Also set these registers at the commit, or remove them with None; the last value counts."""
        self._log.client.check_home()
        if self._span is not None:
            raise RuntimeError(f"the transaction is committed, as {self._span}; make another")
        self._update.update(check_registers(update, "update") or {})

    async def rollback(self) -> None:
        """Drop everything now; leaving the block then does nothing. Twice is allowed."""
        if not self._is_open:
            return
        self._is_open = False
        self._failure = self._failure or WalClosedError("the transaction was rolled back")
        self._values.clear()
        self._rows.clear()
        if self._is_begun and not self._log.client.is_closing:
            try:
                await self._log.client.call("rollback", self._number, fate=Fate.DROPPED)
            except StorageUnavailableError:
                return  # the server rolls back what a lost connection leaves

    async def __aenter__(self) -> Self:
        self._log.client.check_home()
        if self._is_open or self._count or self._failure is not None or self._span is not None:
            raise RuntimeError("a transaction can be entered once; make another")
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
                raise copy_error(self._failure)
            return
        if error is not None:
            await self.rollback()
            return
        try:
            await self._commit()
        except BaseException as failed:
            if self._span is None and self._failure is None:
                self._failure = _failure_of(failed)
            raise
        finally:
            self._is_open = False

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self._log.client.check_owner()

    # -- inside ------------------------------------------------------------------------------

    async def _commit(self) -> None:
        self._log.outbox.flush()
        await self._begin()
        if self._values:
            await self._send_part()
        call = ["commit", [self._number, self._update]]
        request = self._log.client.send(Kind.CALL, call, fate=Fate.UNKNOWN, is_write=True)
        try:
            answer = await self._same_server(shield(request.future))
        except RegisterMismatchError as error:
            raise self._refused(error) from None
        except asyncio.CancelledError:
            self._failure = OutcomeUnknownError("the commit was cancelled before it was answered")
            await asyncio.wait((request.future,))
            if not request.future.cancelled():
                why = request.future.exception()
                self._failure = None if why is None else _failure_of(why)
                if why is None:
                    self._note_committed(request.future.result())
            raise
        self._note_committed(answer)

    def _note_committed(self, answer: Answer) -> None:
        start, limit, self._is_duplicate, registers = answer[0]
        self._span = range(start, limit)
        update = {**(self._conditions.update or {}), **self._update}
        self._log.mirror.hear_registers(registers, update)
        self._log.mirror.note_appended(limit, self._level)

    async def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            await self._part("begin", self._number, self._level, self._conditions.packed())
            self._begun_at = self._log.client.reconnects

    async def _send_part(self) -> None:
        await self._begin()
        values, self._values = self._values, []
        rows, self._rows = self._rows, []
        self._size_bytes = 0
        options: list[Any] | None = None
        if any(row != NO_OPTIONS for row in rows):
            options = pack_options(rows)
        await self._part("add", self._number, pack_values(values), options, payload=values)

    async def _part(self, *call: Any, payload: list[bytes] | None = None) -> None:
        """Make one call of the transaction; any failure, or cancelling it, rolls the whole back."""
        try:
            await self._same_server(
                self._log.client.call(*call, payload=payload or (), fate=Fate.DROPPED)
            )
        except BaseException as error:
            self._has_failed = True
            self._failure = (
                error
                if isinstance(error, WalError)
                else WalClosedError("adding to the transaction failed, so it was rolled back")
            )
            await self.rollback()
            raise

    async def _same_server(self, answer: Awaitable[_T]) -> _T:
        """Await an answer. A server that does not know the transaction is another than it was begun at."""
        client = self._log.client
        try:
            return await answer
        except WalClosedError as error:
            if client.is_closing or client.reconnects == self._begun_at:
                raise
            raise StorageUnavailableError(
                "the connection ended before the commit, and the transaction with it: it was rolled back, "
                "nothing was written; make it again"
            ) from error

    def _check_open(self) -> None:
        if self._span is not None:
            raise RuntimeError(f"the transaction is committed, as {self._span}; make another")
        if self._failure is not None:
            raise copy_error(self._failure)
        if not self._is_open:
            raise RuntimeError("use a transaction inside its own 'async with' block")


def _failure_of(error: BaseException) -> WalError:
    """Return what every use of a transaction raises after its commit failed."""
    if isinstance(error, OutcomeUnknownError):
        return error
    return WalClosedError("the transaction was not committed")


def check_size(size_bytes: int, limit_bytes: int) -> None:
    """Raise RecordTooLargeError for a record that no append takes."""
    if size_bytes > limit_bytes:
        raise RecordTooLargeError(
            f"the record has {size_bytes} bytes; max_record_bytes is {limit_bytes}",
            size_bytes=size_bytes,
            limit_bytes=limit_bytes,
        )
