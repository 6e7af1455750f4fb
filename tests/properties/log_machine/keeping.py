"""Rotation, retention, cursors, time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.properties.log_machine.running import Running
from tests.properties.log_machine.strategies import NAMES, PICK
from walstore.errors import OffsetNotWrittenError


class Keeping(Running):
    """Rotation, retention, cursors, time."""

    @rule()
    def flush(self) -> None:
        self.run(self._settle())
        assert self.wal.durable_limit == self.model.tail
        assert self.wal.registers == self.model.registers
        assert self.wal.statistics().waiting_records == 0
        assert self._is_remembered()

    @rule()
    def rotate(self) -> None:
        self.run(self.wal.rotate())
        while self.acked < len(self.ops) and any(op.items for op in self.ops[self.acked :]):
            self.acked += 1

    @rule(pick=PICK)
    def trim(self, pick: int) -> None:
        before = 1 + pick % self.wal.durable_limit
        expected = max(self.head, min([before, *self.cursors.values()]))
        assert self.run(self.wal.trim(before)) == expected
        self.head = expected
        with pytest.raises(OffsetNotWrittenError):
            self.run(self.wal.trim(self.model.tail + 1))

    @rule(name=NAMES, pick=PICK)
    def move_cursor(self, name: str, pick: int) -> None:
        cursor = self.run(self.wal.cursor(name))
        assert cursor.position == self.cursors.setdefault(name, self.head)
        to = self.head + pick % (self.wal.durable_limit - self.head + 1)
        self.run(cursor.rewind(to))
        self.cursors[name] = to

    @rule(name=NAMES)
    def delete_cursor(self, name: str) -> None:
        assert self.run(self.wal.delete_cursor(name)) == (name in self.cursors)
        self.cursors.pop(name, None)

    @rule(seconds=st.sampled_from([0.5, 2, 100]), wall=st.integers(-1000, 1000))
    def let_time_pass(self, seconds: float, wall: int) -> None:
        self.clock.shift_wall(wall)

        async def work() -> None:
            self.clock.advance(seconds)
            await asyncio.sleep(0)

        self.run(work())
