"""Promises: what a program was promised so far, by its reports, and whether a log keeps it. Pure.

Reports, in the order in which they were written:

  * ``["op", id, sizes, more]``: about to append records of these sizes as one; ``more`` may have ``key``,
    ``stream``, ``fill`` (base64), ``register`` (set to the id), ``producer`` (its name and the number);
  * ``["refused", id]``: not written, and never will be;
  * ``["ok", id, offset]``: durable; ``["accepted", id, offset]``: not yet; ``["durable", limit]``: all below;
  * ``["opened", head, limit]`` and ``["shown", [[offset, id, place], …]]``: what an opening found;
  * ``["trim?", before]``, ``["trim", head]``; ``["cursor?", name, offset]``, ``["cursor", name, offset]``;
  * ``["stream?", name, [is_open, metadata]]``, ``["stream", name]``; ``["uploaded", limit]``.

Every record below an acknowledged one is durable, too: a log is a prefix of what was accepted.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = tuple[int, bytes, bytes | None, str | None]
"""Offset, value, key and stream of a record."""


class BrokenPromiseError(AssertionError):
    """What was found is not what had been promised."""


def require(condition: object, message: str) -> None:
    """Raise BrokenPromiseError unless something holds."""
    if not condition:
        raise BrokenPromiseError(message)


def value_of(op: int, at: int, size: int, fill: bytes = b"") -> bytes:
    """Return the value of a record of an operation; with ``fill`` that follows its name."""
    name = b"%d/%d " % (op, at)
    missing = max(0, size - len(name))
    if op % 4 == 0 and not fill:
        return name + random.Random(op).randbytes(missing)  # which no compression makes smaller
    filler = fill or b"%d." % op
    return name + (filler * (missing // len(filler) + 1))[:missing]


def parse_value(value: bytes) -> tuple[int, int] | None:
    """Return the operation and the place that a value names; None if it names none."""
    op, _, place = value.split(b" ", 1)[0].partition(b"/")
    return (int(op), int(place)) if op.isdigit() and place.isdigit() else None


@dataclass(slots=True)
class Intent:
    """Records that enter the log together, once."""

    id: int
    sizes: list[int]
    key: str | None = None
    stream: str | None = None
    fill: str = ""
    register: str | None = None
    producer: tuple[str, int] | None = None

    def value(self, at: int) -> bytes:
        """Return the value of one of its records."""
        return value_of(self.id, at, self.sizes[at], base64.b64decode(self.fill))


@dataclass(slots=True)
class Attempts:
    """Values of one thing in the order in which they were attempted."""

    attempted: list[Any] = field(default_factory=list)
    acknowledged: int = -1
    """Place of the newest that was promised to stay, or be followed by a later one."""

    def acknowledge(self, value: Any) -> None:
        """Note that a value was set."""
        self.acknowledged = max(self.acknowledged, self.place(value))

    def place(self, value: Any) -> int:
        """Return the newest place of a value; -1 if it was never attempted."""
        at = len(self.attempted) - 1
        while at >= 0 and self.attempted[at] != value:
            at -= 1
        return at

    def check(self, value: Any, what: str) -> int:
        """Require a value that was attempted, and is not older than what was acknowledged."""
        at = self.place(value)
        require(value is None or at >= 0, f"{what} is {value!r}, which nobody ever set")
        require(at >= self.acknowledged, f"{what} went back to {value!r}")
        return at


@dataclass(slots=True)
class FoundLog:
    """What an opened log contains."""

    head: int
    limit: int
    records: Sequence[Row]
    registers: Mapping[str, str] | None = None
    streams: Mapping[str, list[Any]] | None = None
    cursors: Mapping[str, int] | None = None
    sequences: Mapping[str, int] | None = None
    """Newest sequence number of each producer."""
    oldest: int = 1
    """First offset that can be read, also from a tier."""


class Promises:
    """All that was reported about one log."""

    def __init__(self) -> None:
        self.ops: dict[int, Intent] = {}
        self.refused: set[int] = set()
        """Operations that are in no log."""
        self.at: dict[int, tuple[int, int]] = {}
        """Operation and place of the records whose offset was reported."""
        self.limit = 1
        """Everything below is durable."""
        self.head, self.highest_head = 1, 1
        self.registers: dict[str, Attempts] = {}
        self.streams: dict[str, Attempts] = {}
        self.cursors: dict[str, Attempts] = {}
        self.sequences: dict[str, dict[int, tuple[int, int | None]]] = {}
        """Of each producer: the operation under a number, and its offset if it was acknowledged."""
        self.uploaded = 1
        """Everything below is in the tier."""
        self.was_opened = False
        self.reports = 0

    # -- hearing -----------------------------------------------------------------------------

    def hear(self, report: list[Any]) -> None:
        """Take note of a report."""
        self.reports += 1
        kind, *what = report
        getattr(self, f"_hear_{kind.replace('?', '_intent')}")(*what)

    def _hear_op(self, id_: int, sizes: list[int], more: dict[str, Any]) -> None:
        producer = more.pop("producer", None)
        op = self.ops[id_] = Intent(
            id_, sizes, producer=tuple(producer) if producer else None, **more
        )
        if op.register is not None:
            self.registers.setdefault(op.register, Attempts()).attempted.append(str(id_))
        if op.producer is not None:
            self.sequences.setdefault(op.producer[0], {})[op.producer[1]] = (id_, None)

    def _hear_refused(self, id_: int) -> None:
        self.refused.add(id_)

    def _hear_ok(self, id_: int, start: int) -> None:
        op = self.ops[id_]
        self.refused.discard(id_)  # it was asked for again under its number
        self._hear_accepted(id_, start)
        if op.sizes:
            self._hear_durable(start + len(op.sizes))
        if op.register is not None:
            self.registers[op.register].acknowledge(str(id_))
        if op.producer is not None:
            self.sequences[op.producer[0]][op.producer[1]] = (id_, start)

    def _hear_accepted(self, id_: int, start: int) -> None:
        for place in range(len(self.ops[id_].sizes)):
            self._place(start + place, id_, place)

    def _place(self, offset: int, id_: int, place: int) -> None:
        known = self.at.setdefault(offset, (id_, place))
        require(
            known == (id_, place), f"offset {offset} was given twice: {known} and {(id_, place)}"
        )

    def _hear_durable(self, limit: int) -> None:
        self.limit = max(self.limit, limit)
        self.was_opened = True

    def _hear_opened(self, head: int, limit: int) -> None:
        require(limit >= self.limit, f"opening found a log up to {limit}, not {self.limit}")
        # What was accepted and not durable may be gone; its offsets go to others then.
        self.at = {offset: known for offset, known in self.at.items() if offset < limit}
        self._hear_durable(limit)
        self.head = max(self.head, head)

    def _hear_shown(self, names: list[list[int]]) -> None:
        for offset, id_, place in names:
            require(id_ in self.ops, f"offset {offset} holds a record that nobody appended")
            self._place(offset, id_, place)
            op = self.ops[id_]
            if op.register is not None:
                self.registers[op.register].acknowledge(str(id_))

    def _hear_uploaded(self, limit: int) -> None:
        self.uploaded = max(self.uploaded, limit)

    def _hear_trim_intent(self, before: int) -> None:
        self.highest_head = max(self.highest_head, before)

    def _hear_trim(self, head: int) -> None:
        self.head = max(self.head, head)

    def _hear_cursor_intent(self, name: str, offset: int) -> None:
        self.cursors.setdefault(name, Attempts()).attempted.append(offset)

    def _hear_cursor(self, name: str, offset: int) -> None:
        self.cursors[name].acknowledge(offset)

    def _hear_stream_intent(self, name: str, what: list[Any]) -> None:
        self.streams.setdefault(name, Attempts()).attempted.append(what)

    def _hear_stream(self, name: str) -> None:
        history = self.streams[name]
        history.acknowledge(history.attempted[-1])

    # -- judging -----------------------------------------------------------------------------

    def check(self, found: FoundLog, *, retains_all: bool = True) -> None:
        """Require that a log opened for writing keeps every promise."""
        require(found.limit >= self.limit, f"the log ends at {found.limit}, promised: {self.limit}")
        require(found.head >= self.head, f"the head went back from {self.head} to {found.head}")
        if retains_all:
            require(found.head <= self.highest_head, f"nobody asked to trim up to {found.head}")
        present = self.check_records(found)
        for name, history in self.registers.items():
            self._check_register(name, history, found, present)
        for name, history in self.streams.items():
            assert found.streams is not None
            history.check(found.streams.get(name), f"stream {name!r}")
        for name, history in self.cursors.items():
            assert found.cursors is not None
            if history.acknowledged >= 0:
                require(name in found.cursors, f"cursor {name!r} is gone")
                position = found.cursors[name]
                require(position >= history.attempted[history.acknowledged], "a cursor went back")
                require(position >= found.oldest, "retention passed a cursor")
        self._check_sequences(found, present)

    def check_prefix(self, found: FoundLog) -> None:
        """Require that what a reader sees without the lock is a prefix of the log, in whole groups."""
        require(found.head <= max(self.highest_head, self.head), f"the head is {found.head}")
        self.check_records(found)

    def check_records(self, found: FoundLog, *, is_whole: bool = True) -> set[int]:
        """Require exact records without gap, duplicate or half a group; return whose are there.

        Not whole: the last group may go on elsewhere.
        """
        offsets = [record[0] for record in found.records]
        require(
            offsets == list(range(found.head, found.limit)),
            f"[{found.head}, {found.limit}) holds {offsets[:1]}…{offsets[-1:]}, {len(offsets)}",
        )
        present: set[int] = set()
        rest: tuple[int, int] | None = None  # operation and place that must come next
        for offset, value, key, stream in found.records:
            op, place = self._identify(offset, value)
            if rest is not None:
                require((op.id, place) == rest, f"offset {offset} breaks operation {rest[0]} off")
            elif place:
                require(offset == found.head, f"offset {offset} begins inside operation {op.id}")
            else:
                require(op.id not in present, f"operation {op.id} is in the log twice")
            require(op.id not in self.refused, f"operation {op.id} was refused, and is in the log")
            present.add(op.id)
            require(value == op.value(place), f"offset {offset} holds another value")
            require(stream == op.stream, f"offset {offset} has stream {stream!r}")
            require(
                key == (op.key.encode() if op.key else None), f"offset {offset} has key {key!r}"
            )
            known = self.at.get(offset)
            if known is not None and offset < self.limit:
                require(known == (op.id, place), f"offset {offset} holds {op.id}, not {known[0]}")
            rest = (op.id, place + 1) if place + 1 < len(op.sizes) else None
        require(rest is None or not is_whole, f"the log ends inside operation {rest and rest[0]}")
        return present

    def _identify(self, offset: int, value: bytes) -> tuple[Intent, int]:
        named = parse_value(value)
        if named is None:
            raise BrokenPromiseError(f"offset {offset} holds garbage: {value[:40]!r}")
        op = self.ops.get(named[0])
        if op is None or named[1] >= len(op.sizes):
            raise BrokenPromiseError(f"offset {offset} holds a record that nobody appended")
        return op, named[1]

    def _check_register(
        self, name: str, history: Attempts, found: FoundLog, present: set[int]
    ) -> None:
        assert found.registers is not None
        value = found.registers.get(name)
        value = value if value is None else value.rpartition(" ")[2]  # a fence's has a number, too
        reached = history.check(value, f"register {name!r}")
        for at, id_ in enumerate(map(int, history.attempted)):
            if self.ops[id_].sizes and at > reached:
                require(id_ not in present, f"operation {id_} is there without its register")
        if reached >= 0 and self.ops[int(history.attempted[reached])].sizes:
            id_ = int(history.attempted[reached])
            require(
                id_ in present or found.head > 1, f"register {name!r} is there without its records"
            )

    def _check_sequences(self, found: FoundLog, present: set[int]) -> None:
        assert found.sequences is not None
        for producer, numbers in self.sequences.items():
            newest = found.sequences.get(producer, 0)
            promised = max((n for n, (_, start) in numbers.items() if start is not None), default=0)
            require(newest >= promised, f"producer {producer!r} went back to {newest}")
            for number, (id_, _) in numbers.items():
                if number > newest:
                    require(id_ not in present, f"{producer!r} forgot its number {number}")
