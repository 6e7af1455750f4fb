"""ServedTransactions: the open transactions of one client. All are rolled back when it is gone.

What they hold counts among the requests of all clients, see :mod:`walstore.serve.transaction_room`. When
there is no room for more, the one that grew is written to its file, and takes little from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from sys import getsizeof
from typing import Any, Final

from walstore.core.batches.conditions import AppendConditions, RegisterChoice
from walstore.core.batches.cost import RECORD_COST_BYTES
from walstore.core.faces.transaction import Transaction
from walstore.errors import LimitExceededError, WalClosedError
from walstore.log.wal import Wal
from walstore.net.wire.message import ProtocolViolationError
from walstore.net.wire.records import NO_OPTIONS, take_values, unpack_options
from walstore.net.wire.registers import short_registers
from walstore.serve.transaction_room import TransactionRoom

_TRANSACTION_COST_BYTES: Final = 1 << 10
"""Of a transaction without records."""


class _Open:
    """One transaction; its requests are done one after the other."""

    __slots__ = ("begun_bytes", "held_bytes", "is_over", "number", "transaction", "turn")

    def __init__(self, number: int, transaction: Transaction, begun_bytes: int) -> None:
        self.number = number
        self.transaction = transaction
        self.turn = asyncio.Lock()
        self.begun_bytes = begun_bytes
        """What it takes beside its records."""
        self.held_bytes = 0
        """What is counted for it."""
        self.is_over = False


class ServedTransactions:
    """Transactions by the numbers that the client gave them."""

    def __init__(self, wal: Wal, most: int, room: TransactionRoom) -> None:
        """Allow ``most`` at a time; what they hold takes ``room``."""
        self._wal = wal
        self._most = most
        self._room = room
        self._held_bytes = 0
        self._open: dict[int, _Open] = {}
        self._is_closed = False
        self.appended = 0
        """How many records were committed."""

    async def rollback_all(self) -> None:
        """Roll back everything that is open, and begin nothing more."""
        self._is_closed = True
        for one in list(self._open.values()):
            async with one.turn:
                await self._end(one)

    async def begin(
        self, payload: memoryview, number: int, durability: Any, conditions: AppendConditions
    ) -> None:
        """Begin a transaction; any error leaves none."""
        _check_number(number)
        if self._is_closed:
            raise WalClosedError("the client is gone")
        if number in self._open:
            raise ProtocolViolationError(f"a second transaction {number}")
        if len(self._open) >= self._most:
            raise LimitExceededError(
                f"this client has {self._most} open transactions; end some", limit=self._most
            )
        made = Transaction(self._wal.appends.gather(conditions, durability), conditions)
        begun_bytes = _TRANSACTION_COST_BYTES
        begun_bytes += _cost_of(conditions.expect) + _cost_of(conditions.update)
        self._open[number] = _Open(number, made, begun_bytes)
        async with self._use(number) as one:
            if not self._count(one, begun_bytes):
                raise self._room.refusal()
            await made.__aenter__()

    async def add(self, payload: memoryview, number: int, sizes: Any, options: Any) -> None:
        """Add records; any error rolls the transaction back."""
        async with self._use(number) as one:
            values = take_values(sizes, payload)
            rows = None if options is None else list(unpack_options(options, len(values)))
            transaction = one.transaction
            for at, value in enumerate(values):
                await transaction.append(value, *(NO_OPTIONS if rows is None else rows[at]))
            if not self._count(one, one.begun_bytes + transaction.held_bytes):
                await transaction.write_out()
                if not self._count(one, one.begun_bytes + transaction.held_bytes):
                    raise self._room.refusal()

    async def commit(self, payload: memoryview, number: int, update: Any) -> list[Any]:
        """Set registers and commit. Returns the offsets, if they were there before, and the registers."""
        async with self._use(number) as one:
            if update:
                one.transaction.set_registers(update)
            await one.transaction.__aexit__(None, None, None)
            await self._end(one)
        span = one.transaction.span
        assert span is not None
        self.appended += 0 if one.transaction.is_duplicate else len(span)
        registers = short_registers(self._wal.registers)
        return [span.start, span.stop, one.transaction.is_duplicate, registers]

    async def rollback(self, payload: memoryview, number: int) -> None:
        """Roll a transaction back, if it is there."""
        _check_number(number)
        one = self._open.get(number)
        if one is not None:
            async with one.turn:
                await self._end(one)

    # -- inside ------------------------------------------------------------------------------

    @asynccontextmanager
    async def _use(self, number: int) -> AsyncIterator[_Open]:
        """Let a request have its turn with a transaction, and end that if it fails."""
        _check_number(number)
        one = self._open.get(number)
        if one is None:
            raise WalClosedError("the transaction was rolled back")
        async with one.turn:
            if one.is_over:  # by what had its turn before
                raise WalClosedError("the transaction was rolled back")
            try:
                yield one
            except BaseException:
                await self._end(one)
                raise

    async def _end(self, one: _Open) -> None:
        """Roll a transaction back unless it is committed, and give its room back. Twice is allowed."""
        if one.is_over:
            return
        one.is_over = True
        del self._open[one.number]
        try:
            await one.transaction.rollback()
        finally:
            self._count(one, 0)

    def _count(self, one: _Open, held_bytes: int) -> bool:
        """Let a transaction hold so much; False, and nothing changes, if there is no room."""
        after_bytes = self._held_bytes - one.held_bytes + held_bytes
        if not self._room.change(self._held_bytes, after_bytes):
            return False
        self._held_bytes, one.held_bytes = after_bytes, held_bytes
        return True


def _check_number(number: object) -> None:
    if type(number) is not int:
        raise ProtocolViolationError("a number of a transaction that is none")


def _cost_of(registers: Mapping[str, Any] | None) -> int:
    """Return about what checked registers and their values, or choices of values, take."""
    return sum(
        RECORD_COST_BYTES
        + getsizeof(name)
        + sum(map(getsizeof, value.values if isinstance(value, RegisterChoice) else (value,)))
        for name, value in (registers or {}).items()
    )
