"""The checker of histories accepts what a log may answer, and finds what it may not."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tests.effort import first_seed
from tests.histories import Append, History, Read, problems

FIRST = first_seed("histories")


def good(seed: int) -> tuple[History, dict[int, bytes]]:
    """Return a history of clients side by side, as a log could have answered it."""
    chance, history, log, register = random.Random(seed), History(), {}, ""
    for number in range(200):
        value = b"%d" % number
        moment = number + chance.random()
        begin, end = moment - chance.random() * 5, moment + chance.random() * 5
        kind = chance.choice(["ok", "ok", "ok", "unknown", "refused", "read"])
        if kind == "read":
            start = chance.randint(1, max(log, default=0) + 1)
            seen = [log[at] for at in range(start, max(log, default=0) + 1)]
            history.reads.append(Read(start, seen, begin, end))
            continue
        offset = max(log, default=0) + 1
        append = Append(value, begin, end, kind)
        if chance.random() < 0.3:
            append = dataclasses.replace(append, expect=register, update=f"r{number}")
        elif chance.random() < 0.2:
            append = dataclasses.replace(append, expect_offset=offset)
        if kind == "ok" or (kind == "unknown" and chance.random() < 0.5):
            log[offset] = value
            register = append.update or register
        if kind == "ok":
            append = dataclasses.replace(append, offset=offset)
        history.appends.append(append)
    return history, log


@pytest.mark.parametrize("seed", range(20))
def test_what_a_log_may_answer(seed: int) -> None:
    assert problems(*good(FIRST + seed)) == []


OK = Append(b"a", 0, 1, "ok", 1)
LATER = Append(b"b", 2, 3, "ok", 2)
BAD: dict[str, tuple[History, dict[int, bytes], str]] = {
    "lost": (History([OK]), {}, "is not at 1"),
    "moved": (History([OK]), {2: b"a"}, "is not at 1"),
    "twice": (History([OK]), {1: b"a", 2: b"a"}, "is there 2 times"),
    "unknown, twice": (
        History([Append(b"a", 0, 1, "unknown")]),
        {1: b"a", 2: b"a"},
        "is there 2 times",
    ),
    "refused, and there": (History([Append(b"a", 0, 1, "refused")]), {1: b"a"}, "was refused"),
    "against real time": (
        History([dataclasses.replace(OK, offset=2), dataclasses.replace(LATER, offset=1)]),
        {1: b"b", 2: b"a"},
        "b'b' at 1 began after b'a' at 2 had ended",
    ),
    "two at one offset": (
        History([OK, dataclasses.replace(LATER, offset=1)]),
        {1: b"a"},
        "is not at 1",
    ),
    "not where it was expected": (
        History([dataclasses.replace(OK, expect_offset=5)]),
        {1: b"a"},
        "expected 5",
    ),
    "unknown, elsewhere": (
        History([Append(b"a", 0, 1, "unknown", expect_offset=5)]),
        {1: b"a"},
        "not where it expected",
    ),
    "two took one register": (
        History(
            [
                Append(b"a", 0, 1, "ok", 1, expect="", update="x"),
                Append(b"b", 0, 1, "ok", 2, expect="", update="y"),
            ]
        ),
        {1: b"a", 2: b"b"},
        "expected '', it was 'x'",
    ),
    "nobody's": (History([OK]), {1: b"a", 2: b"b"}, "nobody appended it"),
    "a hole": (History([OK]), {1: b"a", 3: b"c"}, "offsets are missing"),
    "unknown, before it began": (
        History([dataclasses.replace(OK, offset=2), Append(b"b", 2, 3, "unknown")]),
        {1: b"b", 2: b"a"},
        "b'b' at 1 began after b'a' at 2 had ended",
    ),
    "a stale read": (
        History([OK], [Read(1, [], 2, 3)]),
        {1: b"a"},
        "a read up to 1 began after b'a' at 1",
    ),
    "a read that is behind the one before it": (
        History([Append(b"a", 0, 9, "ok", 1)], [Read(1, [b"a"], 1, 2), Read(1, [], 3, 4)]),
        {1: b"a"},
        "a read up to 1 began after a read up to 2",
    ),
    "a read of what was cut": (History([], [Read(1, [b"a"], 0, 1)]), {1: b"b"}, "is not there"),
    "a read of the future": (
        History([LATER, OK], [Read(1, [b"a", b"b"], 0, 1)]),
        {1: b"a", 2: b"b"},
        "b'b' at 2 began after a read up to 3 had ended",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_log_may_not_answer(name: str) -> None:
    history, log, said = BAD[name]
    assert any(said in problem for problem in problems(history, log))


@pytest.mark.parametrize("seed", range(20))
def test_a_good_history_that_is_spoiled(seed: int) -> None:
    """One record less, two exchanged, or an append that was acknowledged elsewhere."""
    history, log = good(FIRST + seed)
    chance = random.Random(FIRST + seed)
    done = [one for one in history.appends if one.outcome == "ok"]
    lost = chance.choice(done)
    assert problems(history, {at: value for at, value in log.items() if value != lost.value})
    first, second = chance.sample(done, 2)
    assert first.offset is not None
    assert second.offset is not None
    exchanged = {**log, first.offset: second.value, second.offset: first.value}
    assert problems(history, exchanged)
