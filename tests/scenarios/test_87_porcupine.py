"""Porcupine and our checker agree on histories of a log, on right ones and on wrong ones.

What clients of clusters record goes through both in ``test_83_cluster.py`` and ``test_85_partitions.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.effort import first_seed
from tests.histories import History, problems
from tests.porcupine import checker
from tests.test_histories import BAD, good

pytestmark = pytest.mark.slow

HISTORIES: Final = 300

Log = dict[int, bytes]
Spoil = Callable[[History, Log, Random], tuple[History, Log]]


@pytest.fixture
def program(porcupine: Path | str) -> Path:
    """The program, without which these tests are skipped."""
    if isinstance(porcupine, str):
        pytest.skip(porcupine)
    return porcupine


def test_without_go_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(checker.CannotBuildError, match="there is no go"):
        checker.build(tmp_path)


@pytest.mark.usefixtures("program")
def test_without_the_module_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOPROXY", "off")
    with pytest.raises(checker.CannotBuildError, match="cannot be fetched"):
        checker.build(tmp_path)


@pytest.mark.parametrize("seed", range(10))
def test_what_a_log_may_answer(program: Path, seed: int) -> None:
    assert checker.verdict(program, *good(seed + first_seed("good histories"))) == "Ok"


@pytest.mark.parametrize("name", BAD)
def test_what_a_log_may_not_answer(program: Path, name: str) -> None:
    history, log, _ = BAD[name]
    assert checker.verdict(program, history, log) == "Illegal"


# -- histories that may be wrong, or not --------------------------------------------------------


def move_an_append(history: History, log: Log, chance: Random) -> tuple[History, Log]:
    """Let an append have been made earlier or later."""
    at, by = chance.randrange(len(history.appends)), chance.uniform(-12, 12)
    made = history.appends[at]
    moved = dataclasses.replace(made, begin=made.begin + by, end=made.end + by)
    appends = [*history.appends[:at], moved, *history.appends[at + 1 :]]
    return History(appends, history.reads), log


def move_a_read(history: History, log: Log, chance: Random) -> tuple[History, Log]:
    """Let a read have been made earlier or later."""
    at, by = chance.randrange(len(history.reads)), chance.uniform(-12, 12)
    made = history.reads[at]
    moved = dataclasses.replace(made, begin=made.begin + by, end=made.end + by)
    reads = [*history.reads[:at], moved, *history.reads[at + 1 :]]
    return History(history.appends, reads), log


def shorten_a_read(history: History, log: Log, chance: Random) -> tuple[History, Log]:
    """Let a read have seen less, or more of what came."""
    at, by = chance.randrange(len(history.reads)), chance.randint(-3, 3)
    made = history.reads[at]
    limit = max(made.start, made.start + len(made.values) + by)
    seen = [log[offset] for offset in range(made.start, limit) if offset in log]
    changed = dataclasses.replace(made, values=seen)
    reads = [*history.reads[:at], changed, *history.reads[at + 1 :]]
    return History(history.appends, reads), log


def change_an_outcome(history: History, log: Log, chance: Random) -> tuple[History, Log]:
    """Let a client have heard something else."""
    at = chance.randrange(len(history.appends))
    outcome = chance.choice(["unknown", "unknown", "refused"])
    changed = dataclasses.replace(history.appends[at], outcome=outcome, offset=None)
    appends = [*history.appends[:at], changed, *history.appends[at + 1 :]]
    return History(appends, history.reads), log


def change_a_condition(history: History, log: Log, chance: Random) -> tuple[History, Log]:
    """Let an append have expected another offset or register, or have set nothing."""
    at = chance.randrange(len(history.appends))
    made = history.appends[at]
    expect_offset = chance.choice([None, chance.randint(1, len(log))])
    update = chance.choice([None, "r0", made.update])
    changed = dataclasses.replace(made, expect_offset=expect_offset, update=update)
    appends = [*history.appends[:at], changed, *history.appends[at + 1 :]]
    return History(appends, history.reads), log


def exchange_two_records(history: History, log: Log, chance: Random) -> tuple[History, Log]:
    """Exchange neighbours, and what was acknowledged of them, but not what reads saw."""
    first = chance.randrange(1, len(log))
    other = {first: first + 1, first + 1: first}
    appends = [
        dataclasses.replace(one, offset=other.get(one.offset or 0, one.offset))
        for one in history.appends
    ]
    reads = [one for one in history.reads if one.start + len(one.values) <= first]
    return History(appends, reads), {
        other.get(offset, offset): value for offset, value in log.items()
    }


def lose_the_end(history: History, log: Log, chance: Random) -> tuple[History, Log]:
    """Cut the log off, and forget the reads."""
    limit = len(log) - chance.randint(0, 3)
    cut = {offset: value for offset, value in log.items() if offset <= limit}
    return History(history.appends, []), cut


SPOILS: Final[list[Spoil]] = [
    move_an_append,
    move_a_read,
    shorten_a_read,
    change_an_outcome,
    change_a_condition,
    exchange_two_records,
    lose_the_end,
]


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_both_say_the_same(program: Path, spoil: Spoil) -> None:
    """Of each way to change a history, some that a log may answer and some that it may not."""
    verdicts = []
    first = first_seed("spoiled histories")
    for seed in range(first, first + HISTORIES // len(SPOILS)):
        history, log = spoil(*good(seed), Random(seed))
        ours = problems(history, log)
        said = checker.verdict(program, history, log)
        assert said == ("Illegal" if ours else "Ok"), f"seed {seed}: {said}, and ours: {ours}"
        verdicts.append(said)
    assert set(verdicts) == {"Ok", "Illegal"}
