"""Histories of clients of one log, and whether a log that is one after the other could have answered so.

A log is easier to check than a register: an append that succeeded says where in the order it was. So there
is nothing to search. Each append that was acknowledged is at its offset, in the order of real time; what was
refused is nowhere; what nobody knows is there once or not; conditions held where the record is; and a read
returned what was there at some moment between its call and its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["ok", "unknown", "refused"]


@dataclass(frozen=True)
class Append:
    """An append of one record."""

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


def problems(history: History, log: Mapping[int, bytes]) -> list[str]:
    """Return what is wrong with a history, given the log in the end; nothing if all is well."""
    found = [*_content(history, log), *_real_time(history)]
    found += [*_registers(history, log), *_reads(history, log)]
    return found


def _content(history: History, log: Mapping[int, bytes]) -> list[str]:
    found, counts = [], Counter(log.values())
    for append in history.appends:
        times = counts[append.value]
        if times > 1:
            found.append(f"{append.value!r} is there {times} times")
        if append.outcome == "refused" and times:
            found.append(f"{append.value!r} was refused and is there")
        if append.outcome == "ok":
            assert append.offset is not None
            if log.get(append.offset) != append.value:
                found.append(f"{append.value!r} is not at {append.offset}")
            if append.expect_offset not in (None, append.offset):
                found.append(f"{append.value!r} expected {append.expect_offset}")
        is_there = append.outcome == "unknown" and times and append.expect_offset is not None
        if is_there and log.get(append.expect_offset or 0) != append.value:
            found.append(f"{append.value!r} is not where it expected to be")
    return found


def _real_time(history: History) -> list[str]:
    """What ended before another began has the smaller offset."""
    done = [one for one in history.appends if one.offset is not None]
    by_end = sorted(done, key=lambda one: one.end)
    found, at, last = [], 0, 0
    for append in sorted(done, key=lambda one: one.begin):
        while at < len(by_end) and by_end[at].end < append.begin:
            last = max(last, by_end[at].offset or 0)
            at += 1
        if (append.offset or 0) <= last:
            found.append(f"{append.value!r} at {append.offset} began after {last} was acknowledged")
    return found


def _registers(history: History, log: Mapping[int, bytes]) -> list[str]:
    """In the order of the log, what each append expected is what the one before it set."""
    conditional = {one.value: one for one in history.appends if one.update is not None}
    found, now = [], ""
    for offset in sorted(log):
        append = conditional.get(log[offset])
        if append is None:
            continue
        if append.expect != now:
            found.append(f"{append.value!r} at {offset} expected {append.expect!r}, it was {now!r}")
        now = append.update or ""
    return found


def _reads(history: History, log: Mapping[int, bytes]) -> list[str]:
    found = []
    done = [one for one in history.appends if one.offset is not None]
    for read in history.reads:
        limit = read.start + len(read.values)
        if [log.get(read.start + at) for at in range(len(read.values))] != list(read.values):
            found.append(f"a read from {read.start} saw what is not there")
        before = max((one.offset or 0 for one in done if one.end < read.begin), default=0)
        if before >= max(limit, read.start):
            found.append(f"a read up to {limit} missed {before}, which was acknowledged before")
        late = [one for one in done if one.begin > read.end and (one.offset or 0) < limit]
        found += [f"a read saw {one.value!r} before it was appended" for one in late]
    return found
