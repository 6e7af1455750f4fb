"""The simulation of groups in a store: a seed is always the same history, and what is broken is found."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

import pytest

from tests.effort import first_seed, some
from tests.sim.groups.history import GroupHistory, simulate
from tests.sim.groups.plan import draw
from tests.sim.groups.truth import GROUP_RULES
from tests.sim.rules import ViolationError
from uploader.positions.groups.group_turn import GroupTurn, Sight
from uploader.positions.groups.known_group import KnownGroup
from walstore.positions.groups.job_table import JobTable


@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_histories(first: int) -> None:
    """A small share of what ``make sim`` runs."""
    count = some(200) if first else 20
    first += first_seed("histories of groups")
    for seed in range(first, first + count):
        simulate(seed)


def test_a_seed_is_always_the_same_history() -> None:
    traces = []
    for _ in range(2):
        history = GroupHistory(draw(3))
        history.run()
        traces.append(history.trace)
    assert len(traces[0]) > 50
    assert traces[0] == traces[1]


def found_by(rule: str, seeds: range) -> bool:
    """Whether some history breaks a rule."""
    assert rule in GROUP_RULES
    for seed in seeds:
        try:
            simulate(seed)
        except ViolationError as violation:
            if violation.rule == rule:
                return True
    return False


def _ends_early(self: Sight, row: Any) -> float:
    return self._seen[row.tag] + row.wait_ms / 1200


def _takes_any(self: JobTable[Any], job: Any) -> None:
    heappush(self._ready, (job.since, job.offset))


def _same_tags(self: KnownGroup) -> str:
    self._turns += 1
    return f"p-{self._turns}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken", "rule"),
    [
        (Sight, "due", _ends_early, "lease"),
        (JobTable, "_release", _takes_any, "order"),
        (Sight, "moment", lambda self, _: self._began, "delay"),
        (KnownGroup, "next_tag", _same_tags, "one-member"),
        (GroupTurn, "settle", lambda *_: None, "acknowledged"),
    ],
)
def test_a_defect_is_found(
    owner: type, name: str, broken: Callable[..., Any], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert found_by(rule, range(200))
