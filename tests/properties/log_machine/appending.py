"""Appends of every kind and transactions: committed, refused, cancelled, side by side."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.interrupted import Interrupted, finish
from tests.properties.log_machine.running import Running
from tests.properties.log_machine.strategies import (
    BEHIND,
    BODIES,
    EXPECTED,
    ITEMS,
    LEVELS,
    OPTIONS,
    UPDATES,
    VALUES,
)
from tests.properties.log_model import Item, Op
from walstore import WouldBlock
from walstore.errors import (
    ExpectationError,
    OffsetMismatchError,
    RegisterMismatchError,
    StreamClosedError,
    WalError,
)


class Appending(Running):
    """Appends of every kind and transactions: committed, refused, cancelled, side by side."""

    @rule(item=ITEMS, level=LEVELS)
    def append(self, item: Item, level: str | None) -> None:
        value, options = item
        if self.model.is_closed(options.get("stream")):
            with pytest.raises(StreamClosedError):
                self.run(self.wal.append(value, **options))
            return
        offset = self.run(self.wal.append(value, **options, durability=level))
        assert offset == self._accept(Op([item])).start
        self._acknowledge(level)

    @rule(values=st.lists(VALUES, max_size=6))
    def append_nowait(self, values: list[bytes]) -> None:
        async def work() -> None:
            for value in values:
                try:
                    offset = self.wal.append_nowait(value)
                except WouldBlock:
                    assert self.wal.statistics().waiting_records > 0
                    break
                assert offset == self._accept(Op([(value, {})])).start

        self.run(work())

    @rule(
        values=st.lists(VALUES, min_size=1, max_size=4),
        options=OPTIONS,
        update=UPDATES,
        level=LEVELS,
        expect=EXPECTED,
        behind=BEHIND,
    )
    def append_many(self, values, options, update, level, expect, behind) -> None:
        conditions, error = self._conditions(expect, behind)
        if self.model.is_closed(options.get("stream")):
            error = StreamClosedError if error is None else WalError
        call = self.wal.append_many(
            values, **options, update=update, durability=level, **conditions
        )
        op = Op([(value, options) for value in values], update)
        self._expect(call, op, level, error)

    @rule(
        body=BODIES,
        update=UPDATES,
        level=LEVELS,
        end=st.integers(0, 3),
        expect=EXPECTED,
        behind=BEHIND,
    )
    def transaction(self, body, update, level, end, expect, behind) -> None:
        conditions, error = self._conditions(expect, behind)
        if any(self.model.is_closed(options.get("stream")) for _, options in body):
            error = StreamClosedError if error is None else WalError
        if end == 0:
            error = ZeroDivisionError

        async def work() -> range:
            async with self.wal.transaction(
                update=update, durability=level, **conditions
            ) as transaction:
                for at, (value, options) in enumerate(body):
                    assert await transaction.append(value, **options) == at
                if end == 0:
                    raise ZeroDivisionError
            return transaction.span

        self._expect(work(), Op(body, update), level, error)

    @rule(body=BODIES, update=UPDATES, nth=st.integers(1, 25), late=st.booleans())
    def cancelled_transaction(self, body, update, nth: int, late: bool) -> None:
        items = [item for item in body if not self.model.is_closed(item[1].get("stream"))]

        async def work() -> None:
            transaction = self.wal.transaction(update=update)

            async def fill() -> None:
                async with transaction:
                    for value, options in items:
                        await transaction.append(value, **options)

            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.create_task(finish(Interrupted(fill(), nth, late=late)))
            if transaction.span is not None:
                assert transaction.span == self._accept(Op(items, update))

        self.run(work())

    @rule(bodies=st.lists(st.tuples(BODIES, LEVELS), min_size=2, max_size=4))
    def at_the_same_time(self, bodies) -> None:
        """Transactions, groups and single records of several tasks; the offsets say in which order."""
        spans: list[tuple[range, list[Item]]] = []

        async def transact(items: list[Item], level: str | None) -> None:
            async with self.wal.transaction(durability=level) as transaction:
                for value, options in items:
                    await transaction.append(value, **options)
            spans.append((transaction.span, items))

        async def append(value: bytes, level: str | None) -> None:
            offset = await self.wal.append(value, durability=level)
            spans.append((range(offset, offset + 1), [(value, {})]))

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                for n, (body, level) in enumerate(bodies):
                    items = [(value, {}) for value, _ in body]
                    group.create_task(transact(items, level))
                    group.create_task(append(b"single %d" % n, level))
                    group.create_task(self.wal.flush())

        self.run(work())
        for span, items in sorted(spans, key=lambda found: (found[0].start, found[0].stop)):
            assert self._accept(Op(items)) == span
        if all((level or self.settings.durability) == "disk" for _, level in bodies):
            self._acknowledge()

    def _conditions(self, expect, behind) -> tuple[dict[str, Any], type[Exception] | None]:
        """Return conditions for an append and what must be raised because of them."""
        conditions: dict[str, Any] = {}
        error: type[Exception] | None = None
        if expect is not None:
            conditions["expect"] = expect
            if not self.model.matches(expect):
                error = RegisterMismatchError
        if behind is not None:
            conditions["expect_offset"] = self.model.tail - behind
            if behind:
                error = OffsetMismatchError  # looked at first
        return conditions, error

    def _expect(self, call, op: Op, level: str | None, error: type[Exception] | None) -> None:
        if error is None:
            assert self.run(call) == self._accept(op)
            self._acknowledge(level)
            return
        with pytest.raises(error) as caught:
            self.run(call)
        if isinstance(caught.value, ExpectationError):
            assert caught.value.outcome == "not_written"
            self._acknowledge()  # what it was compared with is durable
        if isinstance(caught.value, RegisterMismatchError):
            assert caught.value.actual == self.model.registers
