"""Histories of clients of one log, and whether a log that is one after the other could have answered so.

A log is easier to check than a register: an append that succeeded says where in the order it was. So there
is nothing to search. Each append that was acknowledged is at its offset; what was refused is nowhere; what
nobody knows is there once or not; nothing else is there; conditions held where the record is; a read returned
what was there at some moment between its call and its answer; and all that is in the order of real time.

Values differ from each other, and the log is there from its first record on. ``tests/porcupine`` asks another
checker the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

Outcome = Literal["ok", "unknown", "refused"]


@dataclass(frozen=True)
class Append:
    """An append of one record. An ``unknown`` one may happen after its end, too."""

    value: bytes
    begin: float
    end: float
    outcome: Outcome
    offset: int | None = None
    """Which it got, if it succeeded."""
    expect_offset: int | None = None
    expect: str | None = None
    """What a register had to be, and ``update`` what it is then."""
    update: str | None = None


@dataclass(frozen=True)
class Read:
    """All records from an offset on, as one reader saw them."""

    start: int
    values: Sequence[bytes]
    begin: float
    end: float


@dataclass
class History:
    """What the clients did, in any order."""

    appends: list[Append] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)


Checker = Callable[[History, Mapping[int, bytes]], list[str]]
"""Returns what is wrong with a history, given the log in the end."""


def problems(history: History, log: Mapping[int, bytes]) -> list[str]:
    """Return what is wrong with a history, given the log in the end; nothing if all is well."""
    found = [*_content(history, log), *_registers(history, log)]
    return [*found, *_reads(history, log), *_real_time(history, log)]


def _content(history: History, log: Mapping[int, bytes]) -> Iterator[str]:
    if sorted(log) != list(range(1, len(log) + 1)):
        yield "offsets are missing"
    counts, appended = Counter(log.values()), {one.value for one in history.appends}
    for value in counts.keys() - appended:
        yield f"{value!r} is there, and nobody appended it"
    for append in history.appends:
        times = counts[append.value]
        if times > 1:
            yield f"{append.value!r} is there {times} times"
        if append.outcome == "refused" and times:
            yield f"{append.value!r} was refused and is there"
        if append.outcome == "ok":
            assert append.offset is not None
            if log.get(append.offset) != append.value:
                yield f"{append.value!r} is not at {append.offset}"
            if append.expect_offset not in (None, append.offset):
                yield f"{append.value!r} expected {append.expect_offset}"
        is_there = append.outcome == "unknown" and times and append.expect_offset is not None
        if is_there and log.get(append.expect_offset or 0) != append.value:
            yield f"{append.value!r} is not where it expected to be"


def _registers(history: History, log: Mapping[int, bytes]) -> Iterator[str]:
    """In the order of the log, what each append expected is what the one before it set."""
    conditional = {one.value: one for one in history.appends if one.update is not None}
    now = ""
    for offset in sorted(log):
        append = conditional.get(log[offset])
        if append is None:
            continue
        if (append.expect or "") != now:
            yield f"{append.value!r} at {offset} expected {append.expect!r}, it was {now!r}"
        now = append.update or ""


def _reads(history: History, log: Mapping[int, bytes]) -> Iterator[str]:
    for read in history.reads:
        if [log.get(read.start + at) for at in range(len(read.values))] != list(read.values):
            yield f"a read from {read.start} saw what is not there"


class _Placed(NamedTuple):
    """A call and its place in the order: an append at its offset, a read behind the last one that it saw."""

    what: str
    begin: float
    end: float
    least: float
    most: float


def _placed(history: History, log: Mapping[int, bytes]) -> Iterator[_Placed]:
    offsets = {value: offset for offset, value in log.items()}
    for one in history.appends:
        place = one.offset if one.outcome == "ok" else offsets.get(one.value)
        if place is not None and one.outcome != "refused":
            end = one.end if one.outcome == "ok" else inf
            yield _Placed(f"{one.value!r} at {place}", one.begin, end, place, place)
    for read in history.reads:
        place = read.start + len(read.values) - 0.5
        # One that saw nothing was somewhere before its start.
        least = place if read.values else -inf
        yield _Placed(f"a read up to {place + 0.5:.0f}", read.begin, read.end, least, place)


def _real_time(history: History, log: Mapping[int, bytes]) -> Iterator[str]:
    """What ended before another began is before it in the order."""
    placed = [*_placed(history, log)]
    by_end = sorted(placed, key=lambda one: one.end)
    at, last = 0, _Placed("the beginning", -inf, -inf, -inf, -inf)
    for one in sorted(placed, key=lambda one: one.begin):
        while at < len(by_end) and by_end[at].end < one.begin:
            last = max(last, by_end[at], key=lambda ended: ended.least)
            at += 1
        if one.most < last.least:
            yield f"{one.what} began after {last.what} had ended"
