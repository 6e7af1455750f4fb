"""The simulation of the cloud itself: a seed is always the same history, and what is broken is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.effort import first_seed, some
from tests.sim.cloud.history import CloudHistory, simulate
from tests.sim.cloud.ledger import CLOUD_RULES, CloudViolationError, Ledger
from tests.sim.cloud.plan import draw
from tests.sim.rules import ViolationError
from tests.sim.shrink import shrink
from uploader.care.admin import seal as sealing_module
from uploader.care.gc import apply, planner
from uploader.format.cloud_cursor import CloudCursor
from uploader.root import garbage_file
from walstore.errors import StorageUnavailableError


@pytest.mark.parametrize("first", [0, pytest.param(6, marks=pytest.mark.slow)])
def test_histories(first: int) -> None:
    """A small share of what ``make sim`` runs; even seeds have the layout ``swap``, odd ones ``chain``."""
    count = some(150, least=2) if first else 6
    first += first_seed("cloud histories")
    for seed in range(first, first + count):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [910500011])
def test_histories_that_once_broke_a_rule(seed: int) -> None:
    """An append was acknowledged whose place another writer had, because the one after it was adopted."""
    simulate(seed)


@pytest.mark.parametrize("seed", [4, 9, 10])
def test_a_seed_is_always_the_same_history(seed: int) -> None:
    traces = []
    for _ in range(2):
        history = CloudHistory(draw(seed))
        history.run()
        traces.append(history.trace)
    assert len(traces[0]) > 50
    assert traces[0] == traces[1]


def broken(rules: set[str], seeds: range, **changes: object) -> None:
    """Check that some history breaks one of these rules."""
    found = set()
    for seed in seeds:
        try:
            simulate(seed, **changes)
        except ViolationError as violation:
            found.add(violation.rule)
            if violation.rule in rules:
                return
    pytest.fail(f"none of {rules} was broken, but {found}")


# -- what is broken on purpose -------------------------------------------------------------------

FINE = {
    "ships": False,
    "writers": 2,
    "actors": 2,
    "calls": 4,
    "lives": 1,
    "ends": ("clean",),
    "faults": {},
    "outages": 0,
}


def test_a_store_that_ignores_conditions_is_found() -> None:
    broken({"one-history", "offsets"}, range(6, 9), lies=True, others=("read",), **FINE)


@pytest.mark.slow
def test_a_collector_that_takes_what_is_held_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def highest(cursors: Sequence[CloudCursor], now_us: int) -> CloudCursor | None:
        return max(cursors, key=lambda cursor: cursor.position, default=None)

    for module in (planner, apply, garbage_file):
        monkeypatch.setattr(module, "lowest_cursor", highest)
    others = ("consume", "pin", "collect", "collect")
    plan = {**FINE, "lives": 2, "small": True, "interval_seconds": 600.0}
    broken({"held"}, range(4, 12, 2), others=others, **plan)


@pytest.mark.slow
def test_a_seal_that_seals_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(found: object) -> None:
        pass

    monkeypatch.setattr(sealing_module, "_seal_swapped", nothing)
    broken({"sealed"}, range(2, 20, 2), others=("seal",), **FINE)


# -- the ledger ----------------------------------------------------------------------------------


def written(*counts: int) -> Ledger:
    """Return a ledger with an acknowledged append of so many records each."""
    ledger, start = Ledger("sim://log"), 1
    for number, count in enumerate(counts, 1):
        ledger.acknowledged(ledger.submit(number, [20] * count), start)
        start += count
    return ledger


def rule_of(call: Callable[..., object], *args: object) -> str | None:
    """Return the rule that a call finds broken."""
    try:
        call(*args)
    except CloudViolationError as violation:
        return violation.rule
    return None


def test_a_right_history_breaks_no_rule() -> None:
    ledger = written(1, 2)
    assert rule_of(ledger.read_all, 1, 4, dict(ledger.truth)) is None
    assert rule_of(ledger.looked, 1, 4, ledger.floor()) is None


def test_lost_doubled_and_invented_records_are_found() -> None:
    ledger = written(1, 2)
    value = ledger.truth[1]
    assert rule_of(ledger.looked, 1, 3, ledger.floor()) == "goes-on"
    assert rule_of(ledger.read_all, 1, 4, {1: value}) == "readers"
    assert rule_of(ledger.saw, 2, value) in {"one-history", "acknowledged"}
    assert rule_of(ledger.saw, 4, value) == "acknowledged"
    assert rule_of(ledger.saw, 4, b"9.0.what") == "invented"


def test_half_a_group_and_what_was_not_written_is_found() -> None:
    ledger = written(1)
    group = ledger.submit(2, [20, 20])
    ledger.saw(2, group.value(0))
    assert rule_of(ledger.read_all, 1, 3, dict(ledger.truth)) == "whole"
    refused = ledger.submit(3, [20])
    ledger.failed(refused, StorageUnavailableError("no", outcome="not_written"))
    assert rule_of(ledger.saw, 4, refused.value(0)) == "not-written"
    unknown = ledger.submit(4, [20])
    ledger.saw(4, unknown.value(0))
    assert rule_of(ledger.failed, unknown, StorageUnavailableError("no")) == "not-written"


def test_appends_in_the_wrong_place_are_found() -> None:
    ledger = written(2)
    assert rule_of(ledger.acknowledged, ledger.submit(2, [20]), 2) == "offsets"
    assert rule_of(ledger.acknowledged, ledger.submit(3, [20], 4), 3) == "offsets"
    ledger.sealed(3)
    assert rule_of(ledger.acknowledged, ledger.submit(4, [20]), 3) == "sealed"
    ledger.is_destroyed = True
    assert rule_of(ledger.acknowledged, ledger.submit(5, [20]), 3) == "destroyed"


def test_what_cursors_hold_is_checked() -> None:
    ledger = written(1, 1, 1)
    assert rule_of(ledger.check_head, 2) == "held"
    ledger.asks("a", 3)
    assert rule_of(ledger.check_head, 3) is None
    ledger.is_at("a", 2)
    assert rule_of(ledger.check_head, 3) == "held"
    assert rule_of(ledger.found_cursor, "a", 1) == "cursors"
    assert rule_of(ledger.found_cursor, "a", None) == "cursors"


def test_a_fork_has_what_its_source_had() -> None:
    source = written(1, 1)
    fork = Ledger("sim://fork", parent=source, parent_limit=3)
    assert rule_of(fork.saw, 1, source.truth[1]) is None
    assert rule_of(fork.saw, 2, source.truth[1]) is not None


def test_every_rule_has_a_sentence() -> None:
    assert all(rule == rule.lower() and sentence for rule, sentence in CLOUD_RULES.items())


def test_a_history_is_made_shorter() -> None:
    plan = draw(2)
    found = shrink(plan, lambda smaller: "append" if "append" in smaller.acts else None)
    assert (found.acts, found.others, found.writers, found.faults) == (("append",), (), 1, {})
