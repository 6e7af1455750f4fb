"""The simulation of replicated logs: a seed is always the same history, and what is broken is found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

from tests.effort import EFFORT, first_seed, some
from tests.histories import Checker
from tests.sim.replicas.history import ReplicaHistory, simulate
from tests.sim.replicas.plan import draw
from tests.sim.replicas.rules import REPLICA_RULES
from tests.sim.rules import ViolationError
from walstore import Replication
from walstore.cluster.replication import healing, primary, takeover
from walstore.cluster.replication.promise import Promise
from walstore.cluster.replication.replica import Replica
from walstore.topology import session

pytestmark = pytest.mark.timeout(400)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 60])
def test_histories(first: int) -> None:
    """A small share of what ``make sim`` runs."""
    first += first_seed("replicated histories")
    for seed in range(first, first + some(60)):
        simulate(seed)


def test_some_histories() -> None:
    first = first_seed("some replicated histories")
    for seed in range(first, first + 4):
        simulate(seed)


def test_a_seed_is_always_the_same_history() -> None:
    traces = []
    for _ in range(2):
        history = ReplicaHistory(draw(5))
        history.run()
        traces.append(history.trace)
    assert len(traces[0]) > 20
    assert traces[0] == traces[1]


def assert_found(
    seeds: Iterable[int], rules: Collection[str] = frozenset(REPLICA_RULES), **plan: Any
) -> None:
    """Assert that one of the seeds breaks a rule, the first one that does one of these."""
    found = next(filter(None, (_broken(seed, plan) for seed in seeds)), "nothing was found")
    assert found in rules


def _broken(seed: int, plan: Mapping[str, Any]) -> str | None:
    try:
        simulate(seed, **plan)
    except ViolationError as violation:
        return violation.rule
    return None


def _first_reached(values: list[int], _: int) -> int:
    return values[0]


def _does_not_sync(replica: Replica) -> Any:
    return replica.end.place


def _nothing(*_: Any, **__: Any) -> None:
    pass


async def _goes_on_alone(*_: Any, **__: Any) -> None:
    pass


_FAULTS: dict[str, Any] = {
    "copies": 3,
    "quorum": 2,
    "spares": 0,
    "resizes": 0.0,
    "rounds": 16,
    "producers": 3,
    "segment_bytes": 65536,
    "acts": ("power", "power", "kill", "cut off", "usurp", "promote"),
    "slowness": 0.002,
    "breaks": 0.0,
    "rate": 0.0,
    "checkpoint_writes": 1024,
}
"""A plan in which machines and primaries fail often."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (primary, "quorum_value", _first_reached),  # nobody but the primary has it
        (Replica, "sync", _does_not_sync),  # what it said is durable is not
        (Promise, "check_same", _nothing),  # an old primary goes on
        (takeover, "_adopt", _goes_on_alone),  # what the best copy has is not fetched
        (primary.Primary, "check_current", _goes_on_alone),  # it says what was, not what is
    ],
)
def test_a_defect_is_found(
    owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert_found(range(60), **_FAULTS)


@pytest.mark.slow
def test_calls_have_an_order(check_history: Checker) -> None:
    """Appends, refusals and reads of all programs, as another checker sees them, too."""
    first = first_seed("calls of replicated logs")
    for seed in range(first, first + some(20)):
        history = simulate(seed, **_FAULTS)
        assert check_history(history.calls.history(), history.log) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (primary, "quorum_value", _first_reached),
        (primary.Primary, "check_current", _goes_on_alone),
    ],
)
def test_calls_without_an_order_are_found(
    owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the calls alone."""
    monkeypatch.setattr(owner, name, broken)
    ignored = tuple(REPLICA_RULES.keys() - {"in-order"})
    assert_found(range(60), rules={"in-order"}, **_FAULTS, ignored=ignored)


_DAMAGED: dict[str, Any] = {
    **_FAULTS,
    "acts": (
        *("flip", "flip", "spoil", "lose a segment", "lose a segment"),
        *("kill", "power", "promote", "usurp", "cut off"),
    ),
    "grows": False,
    "scrub_seconds": 3.0,
}
"""A plan in which files of copies are damaged often."""


@pytest.mark.slow
def test_copies_whose_files_are_damaged() -> None:
    first = first_seed("copies whose files are damaged")
    for seed in range(first, first + some(20)):
        simulate(seed, **_DAMAGED)


_GAPS: dict[str, Any] = {
    **_DAMAGED,
    "acts": ("gaps", "gaps", "gaps", "flip", "kill", "power", "promote", "usurp", "cut off"),
}
"""A plan in which segments inside of copies are damaged or removed often while their machines are down."""


@pytest.mark.slow
def test_copies_that_lack_segments() -> None:
    """Another copy has each of them, so in the end no machine is kept from leading by one."""
    first = first_seed("copies that lack segments")
    made = 0
    for seed in range(first, first + some(20)):
        history = simulate(seed, **_GAPS)
        made += history.happened["gaps made"]
        refused = [text for *_, text in history.trace if text.startswith("cannot lead")]
        assert not [text for text in refused if ".wal" in text]
    assert made


def _is_between(replica: Replica, start: int) -> bool:
    return replica.end.first <= start < replica.end.place.segment


async def _does_not_help(*_: Any, **__: Any) -> bool:
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken", "rules"),
    [
        # Its oldest segments do not come again: it cannot lead, or is not as the others in the end.
        (Replica, "_is_lost", _is_between, {"heals", "whole"}),
        (healing.Healer, "heal", _does_not_help, {"whole"}),
    ],
)
def test_a_defect_of_repairs_is_found(
    owner: Any, name: str, broken: Any, rules: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert_found(range(40), rules=rules, **_DAMAGED)


@pytest.mark.slow
def test_a_lease_that_is_thought_to_last_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a primary that is cut off from the store, too: it sees nothing of the next claim."""
    monkeypatch.setattr(session, "_CERTAIN", 10.0)
    plan = {**_FAULTS, "acts": ("cut off", "usurp"), "has_topology": True}
    assert_found(range(60), **plan)


_LISTS: dict[str, Any] = {
    "copies": 3,
    "quorum": 2,
    "spares": 1,
    "resizes": 0.0,
    "rounds": 24,
    "acts": ("exchange", "exchange", "old list", "kill", "power", "cut off", "usurp"),
    "slowness": 0.002,
    "breaks": 0.0,
    "rate": 0.0,
}
"""A plan in which the list of copies changes often."""


@pytest.mark.slow
@pytest.mark.parametrize("ignored", ["generation", "joined"])
def test_a_defect_of_lists_is_found(ignored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy takes programs with old lists, or still counts after it was out of the list."""
    obey = Replica.obey

    def careless(replica: Replica, *arguments: Any, **options: Any) -> Any:
        harmless = {"generation": 1 << 40, "joined": 0}[ignored]
        return obey(replica, *arguments, **{**options, ignored: harmless})

    monkeypatch.setattr(Replica, "obey", careless)
    assert_found(range(40), **_LISTS)


@pytest.mark.slow
def test_lists_that_change_often() -> None:
    first = first_seed("lists of copies")
    for seed in range(first, first + 4):
        simulate(seed, **_LISTS)


_GROWING: dict[str, Any] = {
    **_LISTS,
    "copies": 1,
    "quorum": 1,
    "spares": 2,
    "grows": True,
    "acts": (
        *("exchange", "exchange", "exchange", "old list", "kill", "power"),
        *("cut off", "usurp", "promote", "replace"),
    ),
    "producers": 3,
}
"""A plan in which a log has one to three copies."""


def test_logs_of_one_to_three_copies() -> None:
    first = first_seed("logs of one to three copies")
    for seed in range(first, first + some(8)):
        simulate(seed, **_GROWING)


def _any_of_two(promised: Any, settings: Any) -> bool:
    return settings.copies == 2 == len(promised) and any(one.is_whole for one in promised)


def _no_other_confirms(replication: Replication) -> int:
    return replication.copies - replication.needed_to_take_over + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (takeover, "_has_old_one", _any_of_two),  # it lacks what the copy given up had
        (Replication, "needed_to_confirm", property(_no_other_confirms)),  # it was given up
    ],
)
def test_a_defect_of_growing_is_found(
    owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any disk may be lost here, also one without which the log is not led any more."""
    if EFFORT < 1:
        pytest.skip("it may take minutes until a seed finds it: at full effort")
    monkeypatch.setattr(owner, name, broken)
    assert_found(range(200), **_GROWING, ignored=("heals",))


_ROLLBACKS: dict[str, Any] = {
    "copies": 3,
    "quorum": 2,
    "spares": 0,
    "resizes": 0.0,
    "rounds": 24,
    "segment_bytes": 65536,
    "acts": ("back up", "roll back", "roll back", "cut off", "kill", "power", "promote", "usurp"),
    "slowness": 0.002,
    "breaks": 0.0,
    "rate": 0.0,
    "has_topology": True,
}
"""A plan in which directories of copies are put back from older states."""

_ONE_ROLLBACK: dict[str, Any] = {
    **_ROLLBACKS,
    "acts": ("back up", "roll back", "cut off", "cut off", "usurp"),
    "has_topology": False,
    "ignored": (
        "acknowledged",
        "seen",
        "current",
        "once",
        "not-written",
        "one-epoch",
        "heals",
        "equal",
    ),
}
"""The same without a store that knows: what was acknowledged may be led no more, but is not cut."""


@pytest.mark.slow
@pytest.mark.parametrize("plan", [_ROLLBACKS, _ONE_ROLLBACK], ids=["marks", "floors"])
def test_copies_that_are_put_back(plan: dict[str, Any]) -> None:
    first = first_seed("copies that are put back")
    for seed in range(first, first + some(20)):
        simulate(seed, **plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "owner", "name", "first"),
    [
        (_ROLLBACKS, takeover, "_is_put_back", 26),
        (_ONE_ROLLBACK, Replica, "_check_floor", 62),
    ],
    ids=["votes", "no floor"],
)
def test_a_defect_of_copies_that_are_put_back_is_found(
    plan: dict[str, Any], owner: Any, name: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first seed finds it; another one does when histories have changed."""
    if EFFORT < 1:
        pytest.skip("it may take minutes until a seed finds it: at full effort")
    monkeypatch.setattr(owner, name, _nothing)
    assert_found(range(first, first + 100), **plan)
