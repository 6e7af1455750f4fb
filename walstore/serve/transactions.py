"""ServedTransactions: the open transactions of one client. All are rolled back when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from walstore.errors import LimitExceededError, WalClosedError
from walstore.log.transaction import Transaction
from walstore.log.wal import Wal
from walstore.wire.message import ProtocolViolationError
from walstore.wire.records import NO_OPTIONS, unpack_options, unpack_values
from walstore.wire.registers import unpack_expected


class _Open:
    """One transaction; its requests are done one after the other."""

    __slots__ = ("transaction", "turn")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.turn = asyncio.Lock()


class ServedTransactions:
    """Transactions by the numbers that the client gave them."""

    def __init__(self, wal: Wal, most: int) -> None:
        """Allow ``most`` at a time."""
        self._wal = wal
        self._most = most
        self._open: dict[int, _Open] = {}
        self.calls: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "begin": self._begin,
            "add": self._add,
            "commit": self._commit,
            "rollback": self._rollback,
        }
        """The calls on transactions, by name."""

    async def rollback_all(self) -> None:
        """Roll back everything that is open."""
        left = list(self._open.values())
        self._open.clear()
        for one in left:
            async with one.turn:
                await one.transaction.rollback()

    async def _begin(
        self, payload: memoryview, number: int, durability: Any, conditions: Any
    ) -> None:
        match conditions:
            case [expect_offset, expect, update, producer, sequence, *repeated]:
                pass
            case _:
                raise ProtocolViolationError("conditions that are none")
        _check_number(number)
        if number in self._open:
            raise ProtocolViolationError(f"a second transaction {number}")
        if len(self._open) >= self._most:
            raise LimitExceededError(
                f"this client has {self._most} open transactions; end some", limit=self._most
            )
        if producer is not None:
            made = self._wal.producer(producer).transaction(
                sequence=sequence, repeated=repeated == [True], durability=durability
            )
        else:
            made = self._wal.transaction(
                expect_offset=expect_offset,
                expect=unpack_expected(expect),
                update=update,
                durability=durability,
            )
        one = self._open[number] = _Open(made)
        async with one.turn:
            try:
                await made.__aenter__()
            except BaseException:
                self._open.pop(number, None)
                raise

    async def _add(self, payload: memoryview, number: int, sizes: Any, options: Any) -> None:
        """Add records; any error rolls the transaction back."""
        one = self._find(number)
        async with one.turn:
            values = unpack_values(sizes, payload)
            rows = None if options is None else list(unpack_options(options, len(values)))
            try:
                for at, value in enumerate(values):
                    await one.transaction.append(value, *(NO_OPTIONS if rows is None else rows[at]))
            except BaseException:
                self._open.pop(number, None)
                await one.transaction.rollback()
                raise

    async def _commit(self, payload: memoryview, number: int, update: Any) -> list[Any]:
        """Set registers and commit. Returns the offsets, if they were there before, and the registers."""
        one = self._find(number)
        async with one.turn:
            self._open.pop(number, None)
            try:
                if update:
                    one.transaction.set_registers(update)
            except BaseException:
                await one.transaction.rollback()
                raise
            await one.transaction.__aexit__(None, None, None)
        span = one.transaction.span
        assert span is not None
        return [span.start, span.stop, one.transaction.is_duplicate, dict(self._wal.registers)]

    async def _rollback(self, payload: memoryview, number: int) -> None:
        _check_number(number)
        one = self._open.pop(number, None)
        if one is not None:
            async with one.turn:
                await one.transaction.rollback()

    def _find(self, number: int) -> _Open:
        _check_number(number)
        found = self._open.get(number)
        if found is None:
            raise WalClosedError("the transaction was rolled back")
        return found


def _check_number(number: object) -> None:
    if type(number) is not int:
        raise ProtocolViolationError("a number of a transaction that is none")
