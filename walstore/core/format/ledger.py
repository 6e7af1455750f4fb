"""Ledger: the state of a log apart from its records. Pure: no I/O, no asyncio.

Registers, the windows of idempotent producers, streams, and the trimmed head. It changes only by
:class:`Marks`, which are stored in the frames of the log (docs/format.md, "Marks") together with their
records, so both survive or neither. Every segment begins with the whole ledger, so the ledger never
depends on a segment that retention may delete.

A log has two ledgers that apply the same marks in the same order: the channel's, against which appends
are checked when they are accepted, and the tail's, which is the state in the frames.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import msgpack

from walstore.core.format.packed import (
    MOST_SEQUENCE,
    MalformedError,
    Packed,
    require,
    require_number,
)

_REGISTERS: Final = "r"
_PRODUCERS: Final = "p"
_STREAMS: Final = "s"
_HEAD: Final = "h"
_WHOLE: Final = "w"
"""Present in marks that replace the ledger instead of changing it."""
_TEXT_HEADER_BYTES: Final = 5
_RUN_BYTES: Final = 1 + 4 * 9
_STREAM_BYTES: Final = 1 + 1 + 3 + 9
"""Maximum bytes of msgpack for the headers of texts, and for the numbers of a run or a stream."""


class ProducerRun(NamedTuple):
    """Consecutive appends of one producer, equal in size and with adjacent records."""

    sequence: int
    """Sequence number of the first."""
    start: int
    """Offset of the first record."""
    records: int
    """Records of each append; 0 for an append without records."""
    repeat: int
    """Number of appends."""


class StreamInfo(NamedTuple):
    """The state of one of a log's streams."""

    is_open: bool
    """Whether appends to it are accepted."""
    metadata: Mapping[str, str]
    """As passed when it was opened; empty if the first append opened it."""
    opened_at: int
    """Tail of the log when it was opened: no record of the stream is below."""


@dataclass(slots=True)
class Marks:
    """Changes of the ledger made by the appends of one batch, in order."""

    registers: dict[str, str | None] = field(default_factory=dict)
    """New values; None removes a register."""
    producers: list[tuple[str, ProducerRun]] = field(default_factory=list)
    streams: dict[str, StreamInfo] = field(default_factory=dict)
    head: int = 0
    """New head, if it is higher than the previous one."""
    is_whole: bool = False
    """Whether this is the whole ledger rather than a change."""

    def merge(self, later: Marks) -> None:
        """Add later changes to these."""
        self.registers.update(later.registers)
        self.streams.update(later.streams)
        self.head = max(self.head, later.head)
        for name, run in later.producers:
            if self.producers and self.producers[-1][0] == name:
                joined = _join(self.producers[-1][1], run)
                if joined is not None:
                    self.producers[-1] = (name, joined)
                    continue
            self.producers.append((name, run))

    def encode(self) -> bytes:
        """Return the marks as the msgpack map of docs/format.md."""
        fields: dict[str, Any] = {}
        if self.registers:
            fields[_REGISTERS] = self.registers
        if self.producers:
            fields[_PRODUCERS] = [[name, *run] for name, run in self.producers]
        if self.streams:
            fields[_STREAMS] = {
                name: [info.is_open, dict(info.metadata), info.opened_at]
                for name, info in self.streams.items()
            }
        if self.head:
            fields[_HEAD] = self.head
        if self.is_whole:
            fields[_WHOLE] = True
        packed: bytes = msgpack.packb(fields)
        return packed

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Marks:
        """Parse :meth:`encode`.

        ValueError naming a field of a newer version; MalformedError for what no version writes.
        """
        packed = Packed(data, "marks", longest_row=len(ProducerRun._fields) + 1)
        marks = cls()
        for name in packed.fields():
            if name == _REGISTERS:
                marks.registers = _registers(packed.value())
            elif name == _PRODUCERS:
                marks.producers = [_run(row) for row in packed.rows()]
            elif name == _STREAMS:
                marks.streams = _streams(packed.value())
            elif name == _HEAD:
                marks.head = require_number(packed.value(), "the head in marks")
            elif name == _WHOLE:
                marks.is_whole = require(packed.value(), bool, "the whole of marks")
            else:
                raise ValueError(f"mark {name!r}")
        packed.end()
        return marks


def _registers(found: object) -> dict[str, str | None]:
    registers = require(found, dict, "registers")
    for name, value in registers.items():
        require(name, str, "a register's name")
        if value is not None:
            require(value, str, "a register's value")
    return registers


def _run(row: object) -> tuple[str, ProducerRun]:
    fields = require(row, list, "a producer's run")
    if len(fields) != len(ProducerRun._fields) + 1:
        raise MalformedError(f"a producer's run of {len(fields)} fields")
    sequence, start, records, repeat = fields[1:]
    run = ProducerRun(
        require_number(sequence, "a sequence number", least=1, most=MOST_SEQUENCE),
        require_number(start, "a producer's offset"),
        require_number(records, "a producer's records"),
        require_number(repeat, "a producer's appends", least=1),
    )
    require_number(run.sequence + run.repeat - 1, "a sequence number", most=MOST_SEQUENCE)
    require_number(run.start + run.records * run.repeat, "a producer's offset")
    return require(fields[0], str, "a producer's name"), run


def _streams(found: object) -> dict[str, StreamInfo]:
    streams = {}
    for name, row in require(found, dict, "streams").items():
        fields = require(row, list, "a stream")
        if len(fields) != len(StreamInfo._fields):
            raise MalformedError(f"a stream of {len(fields)} fields")
        metadata = require(fields[1], dict, "a stream's metadata")
        for key, value in metadata.items():
            require(key, str, "a key of a stream's metadata")
            require(value, str, "a stream's metadata")
        streams[require(name, str, "a stream's name")] = StreamInfo(
            require(fields[0], bool, "whether a stream is open"),
            metadata,
            require_number(fields[2], "a stream's offset"),
        )
    return streams


class ProducerWindow:
    """The last appends of one producer: the offsets by sequence number."""

    __slots__ = ("last", "runs")

    def __init__(self) -> None:
        self.last = 0
        """Sequence number of the newest append; 0 before the first."""
        self.runs: deque[ProducerRun] = deque()

    @property
    def first(self) -> int:
        """Oldest remembered sequence number."""
        return self.runs[0].sequence if self.runs else self.last + 1

    def add(self, run: ProducerRun, size: int) -> None:
        """Remember appends, and forget those more than ``size`` behind.

        A number that does not follow the last one starts a new window: earlier appends are forgotten.
        """
        if run.sequence != self.last + 1:
            self.runs.clear()
        joined = _join(self.runs[-1], run) if self.runs else None
        if joined is not None:
            self.runs[-1] = joined
        else:
            self.runs.append(run)
        self.last = run.sequence + run.repeat - 1
        excess = self.last - size + 1 - self.first
        while excess > 0:
            oldest = self.runs.popleft()
            cut = min(excess, oldest.repeat)
            if cut < oldest.repeat:
                self.runs.appendleft(
                    ProducerRun(
                        oldest.sequence + cut,
                        oldest.start + cut * oldest.records,
                        oldest.records,
                        oldest.repeat - cut,
                    )
                )
            excess -= cut

    def growth(self, run: ProducerRun, size: int) -> int:
        """Return by how much :meth:`add` would change the number of runs; negative for fewer."""
        is_joined = bool(self.runs) and _join(self.runs[-1], run) is not None
        grown = 0 if is_joined else 1
        excess = run.sequence + run.repeat - size - self.first
        for oldest in islice(self.runs, len(self.runs) - is_joined):
            excess -= oldest.repeat
            if excess < 0:
                break
            grown -= 1
        return grown

    def find(self, sequence: int) -> range | None:
        """Return the offsets of an append, or None if it is not remembered."""
        for run in self.runs:
            behind = sequence - run.sequence
            if 0 <= behind < run.repeat:
                start = run.start + behind * run.records
                return range(start, start + run.records)
        return None


class Ledger:
    """Registers, producers, streams and trimmed head of one log."""

    __slots__ = (
        "_max_producers",
        "_window",
        "head",
        "producers",
        "registers",
        "size_bytes",
        "streams",
    )

    def __init__(self, *, window: int = 64, max_producers: int = 1024) -> None:
        """Make an empty one that remembers ``window`` appends of each of ``max_producers``."""
        self._window = window
        self._max_producers = max_producers
        self.registers: dict[str, str] = {}
        self.producers: OrderedDict[str, ProducerWindow] = OrderedDict()
        """Ordered by last append."""
        self.streams: dict[str, StreamInfo] = {}
        self.head = 0
        """Head set by trimming; 0 if never."""
        self.size_bytes = 0
        """Encoded size of registers, producers and streams, or a little more."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no content."""
        return not (self.registers or self.producers or self.streams or self.head)

    @property
    def may_have_forgotten(self) -> bool:
        """Whether a producer that is not there may have been: it remembers as many as it can."""
        return len(self.producers) >= self._max_producers

    def growth(self, marks: Marks) -> int:
        """Return by how many bytes the changes of one append would grow the ledger; possibly negative."""
        grown = self._texts_growth(marks)
        for name, run in marks.producers:
            found = self.producers.get(name)
            if found is not None:
                grown += found.growth(run, self._window) * _run_bytes(name)
                continue
            grown += _run_bytes(name)
            if len(self.producers) >= self._max_producers:
                oldest, forgotten = next(iter(self.producers.items()))
                grown -= len(forgotten.runs) * _run_bytes(oldest)
        return grown

    def apply(self, marks: Marks) -> None:
        """Apply changes."""
        if marks.is_whole:
            self.registers.clear()
            self.producers.clear()
            self.streams.clear()
            self.head = self.size_bytes = 0
        self.size_bytes += self._texts_growth(marks)
        for name, value in marks.registers.items():
            if value is None:
                self.registers.pop(name, None)
            else:
                self.registers[name] = value
        for name, run in marks.producers:
            found = self.producers.get(name)
            if found is None:
                found = self.producers[name] = ProducerWindow()
                if len(self.producers) > self._max_producers:
                    oldest, forgotten = self.producers.popitem(last=False)
                    self.size_bytes -= len(forgotten.runs) * _run_bytes(oldest)
            runs = len(found.runs)
            found.add(run, self._window)
            self.size_bytes += (len(found.runs) - runs) * _run_bytes(name)
            self.producers.move_to_end(name)
        self.streams.update(marks.streams)
        self.head = max(self.head, marks.head)

    def whole(self) -> Marks:
        """Return marks that make any ledger equal to this one."""
        return Marks(
            registers=dict(self.registers),
            producers=[(name, run) for name, found in self.producers.items() for run in found.runs],
            streams=dict(self.streams),
            head=self.head,
            is_whole=True,
        )

    def copy(self) -> Ledger:
        """Return an independent copy."""
        twin = Ledger(window=self._window, max_producers=self._max_producers)
        twin.apply(self.whole())
        return twin

    def _texts_growth(self, marks: Marks) -> int:
        """Return by how much new registers and streams are larger than those they replace."""
        grown = 0
        for name, value in marks.registers.items():
            grown += _register_bytes(name, value) - _register_bytes(name, self.registers.get(name))
        for name, info in marks.streams.items():
            grown += _stream_bytes(name, info) - _stream_bytes(name, self.streams.get(name))
        return grown


def _text_bytes(text: str) -> int:
    return len(text.encode()) + _TEXT_HEADER_BYTES


def _run_bytes(producer: str) -> int:
    return _text_bytes(producer) + _RUN_BYTES


def _register_bytes(name: str, value: str | None) -> int:
    return 0 if value is None else _text_bytes(name) + _text_bytes(value)


def _stream_bytes(name: str, info: StreamInfo | None) -> int:
    if info is None:
        return 0
    metadata = sum(map(_text_bytes, (*info.metadata.keys(), *info.metadata.values())))
    return _text_bytes(name) + metadata + _STREAM_BYTES


def _join(before: ProducerRun, after: ProducerRun) -> ProducerRun | None:
    """Return two runs as one if the second continues the first."""
    follows = (
        before.sequence + before.repeat == after.sequence
        and before.records == after.records
        and before.start + before.records * before.repeat == after.start
    )
    if not follows:
        return None
    return ProducerRun(before.sequence, before.start, before.records, before.repeat + after.repeat)
