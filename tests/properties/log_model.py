"""The plain model of a log: what was done to it, in order, and what any first part of that leaves. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WINDOW = 4
MOST_PRODUCERS = 3

Item = tuple[bytes, dict[str, Any]]
"""A value and the options it was appended with."""


@dataclass(frozen=True)
class Op:
    """One accepted append: it is in the log as a whole or not at all."""

    items: Sequence[Item] = ()
    update: Mapping[str, str | None] = field(default_factory=dict)
    producer: str | None = None
    opened: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    closed: Sequence[str] = ()


class Model:
    """What the log holds if some operations are in it."""

    def __init__(self, ops: Sequence[Op] = ()) -> None:
        self.items: list[Item] = []
        self.registers: dict[str, str] = {}
        self.streams: dict[str, tuple[bool, dict[str, str], int]] = {}
        self.producers: OrderedDict[str, dict[int, range]] = OrderedDict()
        """Sequence numbers and where they went; the one that appended last is last."""
        for op in ops:
            self.apply(op)

    @property
    def tail(self) -> int:
        return len(self.items) + 1

    def apply(self, op: Op) -> range:
        """Do an operation and return its offsets."""
        span = range(self.tail, self.tail + len(op.items))
        for name in [options.get("stream") for _, options in op.items]:
            if name is not None:
                self.streams.setdefault(name, (True, {}, span.start))
        for name, metadata in op.opened.items():
            _, _, opened_at = self.streams.get(name, (True, {}, span.start))
            self.streams[name] = (True, dict(metadata), opened_at)
        for name in op.closed:
            self.streams[name] = (False, *self.streams[name][1:])
        self.items += op.items
        for name, value in op.update.items():
            if value is None:
                self.registers.pop(name, None)
            else:
                self.registers[name] = value
        if op.producer is not None:
            self._produce(op.producer, span)
        return span

    def _produce(self, name: str, span: range) -> None:
        number = self.last_sequence(name) + 1
        self.producers.setdefault(name, {})[number] = span
        self.producers[name].pop(number - WINDOW, None)
        self.producers.move_to_end(name)
        if len(self.producers) > MOST_PRODUCERS:
            self.producers.popitem(last=False)

    def last_sequence(self, name: str) -> int:
        return max(self.producers.get(name, {0: range(0)}))

    def is_closed(self, stream: str | None) -> bool:
        return stream in self.streams and not self.streams[stream][0]

    def matches(self, expect: Mapping[str, str | None]) -> bool:
        return all(self.registers.get(name) == value for name, value in expect.items())

    def next_token(self, owner: str, register: str) -> str:
        """Return the value that a fence gets now."""
        number = self.registers.get(register, "0").partition(" ")[0]
        return f"{int(number) + 1 if number.isdecimal() else 1} {owner}"
