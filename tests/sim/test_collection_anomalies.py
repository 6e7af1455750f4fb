"""The checker of transactions on lists itself: each anomaly is found, and what is right passes."""

from __future__ import annotations

import math
from random import Random

import pytest

from tests.effort import first_seed
from tests.sim.collections.anomalies import (
    Anomaly,
    Append,
    Edge,
    Read,
    Status,
    Transaction,
    components,
    find_anomalies,
)


def did(
    name: str,
    *steps: tuple[str, int, object],
    at: tuple[float, float] = (0.0, 100.0),
    status: Status = "ok",
    is_stale: bool = False,
) -> Transaction:
    """Return a transaction; a step is ``("a", key, element)`` or ``("r", key, "123")``."""
    known: list[Append | Read] = []
    for what, key, value in steps:
        if what == "a":
            assert isinstance(value, int)
            known.append(Append(key, value))
        else:
            known.append(Read(key, tuple(int(digit) for digit in str(value))))
    ended = math.inf if status == "unknown" else at[1]
    return Transaction(name, at[0], ended, status, is_stale, known)


def names(*history: Transaction) -> list[str]:
    return [anomaly.name for anomaly in find_anomalies(history)]


def test_one_after_the_other_is_right() -> None:
    history = [
        did("A", ("r", 1, ""), ("a", 1, 1), ("r", 1, "1"), at=(0, 1)),
        did("B", ("r", 1, "1"), ("a", 1, 2), ("a", 2, 5), ("r", 2, "5"), at=(2, 3)),
        did("C", ("r", 2, "5"), ("r", 1, "12"), at=(4, 5)),
    ]
    assert find_anomalies(history) == []


def test_nothing_is_right() -> None:
    assert find_anomalies([]) == []


def test_internal() -> None:
    assert names(did("A", ("r", 1, ""), ("r", 1, "5")), did("B", ("a", 1, 5)))[0] == "internal"
    assert "internal" in names(did("A", ("a", 1, 5), ("r", 1, "")))
    assert "internal" in names(did("A", ("r", 1, ""), ("a", 1, 5), ("r", 1, "")))


def test_g1a_what_was_taken_back_is_read() -> None:
    assert names(did("A", ("a", 1, 1), status="failed"), did("B", ("r", 1, "1"))) == ["G1a"]


def test_g1b_the_middle_of_a_transaction_is_read() -> None:
    history = (
        did("A", ("a", 1, 1), ("a", 1, 2)),
        did("B", ("r", 1, "1")),
        did("C", ("r", 1, "12")),
    )
    assert "G1b" in names(*history)
    assert "G1b" not in names(history[0], history[2])


def test_invented_and_duplicate() -> None:
    assert names(did("A", ("r", 1, "7"))) == ["invented"]
    assert names(did("A", ("a", 2, 7)), did("B", ("r", 1, "7")))[0] == "invented"
    assert "duplicate" in names(did("A", ("a", 1, 7)), did("B", ("r", 1, "77")))


def test_incompatible_orders() -> None:
    writes = did("A", ("a", 1, 1)), did("B", ("a", 1, 2))
    assert "incompatible-order" in names(*writes, did("C", ("r", 1, "12")), did("D", ("r", 1, "2")))


def test_g0() -> None:
    history = (
        did("A", ("a", 1, 1), ("a", 2, 1 + 2)),
        did("B", ("a", 1, 2), ("a", 2, 4)),
        did("C", ("r", 1, "12")),
        did("D", ("r", 2, "43")),
    )
    assert "G0" in names(*history)


def test_g1c() -> None:
    history = (did("A", ("a", 1, 1), ("r", 2, "2")), did("B", ("a", 2, 2), ("r", 1, "1")))
    assert names(*history) == ["G1c"]


def test_g_single() -> None:
    """One sees the other's second effect, and not the first."""
    history = (
        did("A", ("a", 1, 1), ("a", 2, 2)),
        did("B", ("r", 1, ""), ("r", 2, "2")),
        did("C", ("r", 1, "1")),
    )
    assert names(*history) == ["G-single"]


def test_g2_write_skew() -> None:
    history = (
        did("A", ("r", 1, ""), ("a", 2, 2)),
        did("B", ("r", 2, ""), ("a", 1, 1)),
        did("C", ("r", 1, "1"), ("r", 2, "2")),
    )
    assert names(*history) == ["G2"]


def test_lost_update() -> None:
    history = (
        did("A", ("r", 1, ""), ("a", 1, 1)),
        did("B", ("r", 1, ""), ("a", 1, 2)),
        did("C", ("r", 1, "1")),
    )
    assert "lost-update" in names(*history)


def test_lost_append() -> None:
    history = did("A", ("a", 1, 1), at=(0, 1)), did("B", ("r", 1, ""), at=(2, 3))
    assert names(*history) == ["lost-append"]
    assert names(did("A", ("a", 1, 1), at=(0, 2.5)), history[1]) == [], "they overlap"


def test_real_time() -> None:
    """Serializable, but not in an order in which they can have taken place."""
    writes = did("A", ("a", 1, 1), at=(0, 1)), did("C", ("r", 1, "1"), at=(4, 5))
    late = did("B", ("r", 1, ""), at=(2, 3))
    assert names(*writes, late) == ["G-single-realtime"]
    late.is_stale = True
    assert names(*writes, late) == []
    stale = did("D", ("r", 1, "1"), at=(0.2, 0.3), is_stale=True)
    early = did("A", ("a", 1, 1), at=(1, 2))
    assert names(early, stale) == ["G1c-realtime"], "nobody reads what is written later"


def test_real_time_goes_through_others() -> None:
    """Edges that others imply are left out, and the order is still the same."""
    history = [did(f"T{n}", ("a", 2, n), at=(2 * n, 2 * n + 1)) for n in range(1, 9)]
    history.append(did("A", ("a", 1, 9), at=(0, 1)))
    history.append(did("Z", ("r", 1, ""), at=(20, 21)))
    history.append(did("end", ("r", 1, "9"), at=(22, 23)))
    assert names(*history) == ["G-single-realtime"]


def test_an_unknown_outcome_is_what_others_saw() -> None:
    unknown = did("A", ("r", 1, ""), ("a", 1, 1), status="unknown")
    assert names(unknown, did("B", ("r", 1, ""), at=(200, 201))) == []
    assert names(unknown, did("B", ("r", 1, "1"), at=(200, 201))) == []
    twice = did("B", ("r", 1, ""), ("a", 1, 2)), did("C", ("r", 1, "12"), at=(200, 201))
    assert "lost-update" in names(unknown, *twice), "it happened, so what it read counts"


def test_components() -> None:
    a, b, c, d = (Transaction(name) for name in "abcd")
    pairs = [(a, b), (b, c), (c, a), (c, d)]
    graph = {
        one: [Edge(one, two, "ww", "") for o, two in pairs if o is one] for one in (a, b, c, d)
    }
    found = components(graph)
    assert found[a] == found[b] == found[c] != found[d]


def serial(random: Random) -> list[Transaction]:
    """Return a history of transactions that took effect one by one, and whose times overlap."""
    lists: dict[int, tuple[int, ...]] = {}
    history = []
    for number in range(40):
        steps: list[Append | Read] = []
        status = random.choices(["ok", "failed", "unknown"], [8, 1, 1])[0]
        changed = dict(lists)
        for _ in range(random.randint(1, 4)):
            key = random.randrange(3)
            if random.random() < 0.5:
                element = 10 * number + len(steps) + 1
                steps.append(Append(key, element))
                changed[key] = (*changed.get(key, ()), element)
            else:
                steps.append(Read(key, changed.get(key, ())))
        if status == "ok" or (status == "unknown" and random.random() < 0.5):
            lists = changed
        ended = math.inf if status == "unknown" else number + random.random() * 3
        began = number - random.random() * 3
        history.append(Transaction(f"T{number}", began, ended, status, False, steps))  # type: ignore[arg-type]
    history.append(
        Transaction("end", 99, 100, "ok", False, [Read(key, lists[key]) for key in lists])
    )
    random.shuffle(history)
    return history


@pytest.mark.parametrize("seed", range(30))
def test_serial_histories_pass_and_damaged_ones_do_not(seed: int) -> None:
    random = Random(seed + first_seed("serial histories"))
    history = serial(random)
    assert find_anomalies(history) == []
    victims = [
        (one, at)
        for one in history
        for at, step in enumerate(one.steps)
        if one.status == "ok" and isinstance(step, Read) and step.found
    ]
    one, at = random.choice(victims)
    step = one.steps[at]
    assert isinstance(step, Read)
    one.steps[at] = Read(step.key, (*step.found[:-1], 999))
    assert any(isinstance(anomaly, Anomaly) for anomaly in find_anomalies(history))
