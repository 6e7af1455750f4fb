"""Appender: the appends of one client, in the order in which they arrived.

Records without a condition are accepted at once while the log has room, a whole message in one go; then only
their durability is awaited. Anything else waits its turn: nothing of a client overtakes what it sent before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from walstore.core.batches.conditions import AppendConditions
from walstore.errors import WalError, WouldBlock
from walstore.log.wal import Wal
from walstore.net.wire.errors import pack_error
from walstore.net.wire.message import Message, ProtocolViolationError
from walstore.net.wire.records import NO_OPTIONS, take_values, unpack_header, unpack_options
from walstore.net.wire.registers import short_registers
from walstore.records import Durability

_Columns = tuple[list[bytes], list[tuple[Any, ...]] | None]
"""The values of records, and their options if one has any."""


class Appender:
    """Accepts the appends of one connection."""

    def __init__(self, wal: Wal, on_accepted: Callable[[int], None], again: int = 0) -> None:
        """Append to ``wal``; requests with numbers up to ``again`` may have been sent before.

        ``on_accepted`` is told the number of a request whose records the log holds.
        """
        self._wal = wal
        self._on_accepted = on_accepted
        self._again = again
        self._turn = asyncio.Lock()
        self.appended = 0
        """How many records the log accepted."""
        # How many requests have not been accepted yet; a later one may be accepted at once only at 0.
        self._waiting = 0

    def append(self, message: Message) -> Awaitable[list[Any]]:
        """Accept the records of an APPEND, and return what its answer is once they are safe.

        The answer: the first offset, how many there are, and None if they are consecutive and none failed;
        otherwise for each record its offset or its packed error.
        """
        match message.head:
            case [str() | None as durability, bytes(sizes), options]:
                values = take_values(sizes, message.payload)
            case _:
                raise ProtocolViolationError(
                    "an append that is none: its head is durability or nil, sizes, options or nil"
                )
        if not values:
            raise ValueError("an append of no records")
        rows = None if options is None else list(unpack_options(options, len(values)))
        level = self._wal.level(durability)  # type: ignore[arg-type]
        outcomes: list[int | WalError] = []
        if not self._waiting:
            done = self._accept(values, rows, outcomes)
            if done == len(values):
                return self._finish(message.id, outcomes, level)
        self._waiting += 1
        return self._append_later(message.id, [(values, rows)], outcomes, level)

    def _accept(
        self, values: list[bytes], rows: list[tuple[Any, ...]] | None, outcomes: list[Any]
    ) -> int:
        """Accept records as long as there is room; return how many have an outcome."""
        append = self._wal.append_nowait
        for at in range(len(outcomes), len(values)):
            try:
                outcomes.append(append(values[at], *(NO_OPTIONS if rows is None else rows[at])))
            except WouldBlock:
                break
            except (WalError, ValueError, TypeError) as error:
                outcomes.append(error)
        return len(outcomes)

    async def _append_later(
        self, number: int, asked: list[_Columns], outcomes: list[Any], level: Durability
    ) -> list[Any]:
        """Accept records in their turn. ``asked`` is emptied: it may be long until they are safe."""
        try:
            async with self._turn:
                await self._accept_all(*asked.pop(), outcomes)
        finally:
            self._waiting -= 1
        return await self._finish(number, outcomes, level)

    async def _accept_all(
        self, values: list[bytes], rows: list[tuple[Any, ...]] | None, outcomes: list[Any]
    ) -> None:
        while self._accept(values, rows, outcomes) < len(values):
            at = len(outcomes)
            key, stream, headers, time_us = NO_OPTIONS if rows is None else rows[at]
            try:
                offset = await self._wal.append(
                    values[at], key, stream, headers, time_us, Durability.MEMORY
                )
                outcomes.append(offset)
            except (WalError, ValueError, TypeError) as error:
                outcomes.append(error)

    def _finish(
        self, number: int, outcomes: list[Any], level: Durability
    ) -> Coroutine[Any, Any, list[Any]]:
        """Return what waits until the accepted records are safe, and returns the answer."""
        self._on_accepted(number)
        offsets = [outcome for outcome in outcomes if isinstance(outcome, int)]
        self.appended += len(offsets)
        last = offsets[-1] if offsets else None
        if len(offsets) < len(outcomes):
            return self._safe_each(outcomes, last, level)
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            return self._safe([offsets[0], len(offsets), None], last, level)
        return self._safe([0, len(offsets), offsets], last, level)

    async def _safe(self, answer: list[Any], last: int | None, level: Durability) -> list[Any]:
        """Return an answer once the records up to ``last`` are safe."""
        if last is not None and level is not Durability.MEMORY:
            await self._wal.wait_durable(last, level)
        return answer

    async def _safe_each(
        self, outcomes: list[Any], last: int | None, level: Durability
    ) -> list[Any]:
        """Return the outcome of each record once those up to ``last`` are safe, and what errors say holds."""
        await self._safe([], last, level)
        await self._wal.flush()  # no error may report a state that a crash undoes
        replaced: WalError | None = None
        try:
            await self._wal.refresh()  # nor one that is over
        except WalError as error:
            replaced = error
        each = []
        for one in outcomes:
            if isinstance(one, WalError) and replaced is not None:
                one = replaced
            each.append(one if isinstance(one, int) else pack_error(one))
        return [0, len(each), each]

    def append_group(
        self,
        message: Message,
        durability: Any,
        sizes: Any,
        options: Any,
        conditions: AppendConditions,
    ) -> Awaitable[list[Any]]:
        """Append a group under its conditions, in its turn; return its offsets and the registers, if short.

        Raises what :meth:`walstore.Wal.append_many` or :meth:`walstore.Producer.append_many` raises.
        """
        self._waiting += 1  # now, not when its task begins: what arrives meanwhile comes later
        asked = [(message, durability, sizes, options, conditions)]
        return self._append_group_later(message.id, asked)

    async def _append_group_later(
        self, number: int, asked: list[tuple[Message, Any, Any, Any, AppendConditions]]
    ) -> list[Any]:
        """Append a group in its turn. ``asked`` is emptied: it may be long until it is safe."""
        try:
            async with self._turn:
                level, span = await self._accept_group(*asked.pop())
        finally:
            self._waiting -= 1
        self._on_accepted(number)
        self.appended += len(span)
        if level is not Durability.MEMORY:
            await self._wal.wait_durable(span.stop - 1, level)
        return [span.start, span.stop, short_registers(self._wal.registers)]

    async def _accept_group(
        self,
        message: Message,
        durability: Any,
        sizes: Any,
        options: Any,
        conditions: AppendConditions,
    ) -> tuple[Durability, range]:
        values = take_values(sizes, message.payload)
        match options:
            case [key, stream, headers, timestamp_us]:
                pass
            case _:
                raise ProtocolViolationError(
                    "a group that is none: its options are key, stream, headers and time"
                )
        level = self._wal.level(durability)
        if conditions.sequence is not None and message.id <= self._again:
            conditions.is_repeated = True
        return level, await self._wal.appends.append_group(
            values,
            conditions,
            key=key,
            stream=stream,
            headers=unpack_header(headers),
            timestamp_us=timestamp_us,
            durability=Durability.MEMORY,
        )
