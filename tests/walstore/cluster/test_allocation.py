"""Which machines have the copies: one change at a time, and only while all others have caught up."""

from __future__ import annotations

import random

import pytest

from tests.effort import first_seed
from walstore.cluster.allocation import plan
from walstore.topology.documents import Leader, LogSpec, Member


def members(*names: str, zones: str = "") -> dict[str, Member]:
    found = zip(names, zones or [""] * len(names), strict=True)
    return {name: Member(name, "", zone) for name, zone in found}


def leader(spec: LogSpec, *absent: str) -> Leader:
    first, *others = spec.copies
    present = tuple(one for one in others if one not in absent)
    return Leader(first, "", 1, tuple(others), present)


SPEC = LogSpec(3, copies=("a", "b", "c"), generation=5, joined={"c": 3})


def test_a_new_log_has_all_its_machines_at_once() -> None:
    assert plan({"x": LogSpec(3)}, {}, members("a", "b"), set()) == []
    (change,) = plan({"x": LogSpec(3)}, {}, members("a", "b", "c", "d"), set())
    assert len(set(change.spec.copies)) == 3
    assert change.spec.generation == 2
    assert set(change.spec.joined.values()) == {2}


def test_machines_have_as_many_copies_and_lead_as_many_logs() -> None:
    names = "abcd"
    changes = plan({str(at): LogSpec(2) for at in range(40)}, {}, members(*names), set())
    copies = [one for change in changes for one in change.spec.copies]
    firsts = [change.spec.copies[0] for change in changes]
    assert {copies.count(name) for name in names} == {20}
    assert {firsts.count(name) for name in names} == {10}


def test_a_suspended_log_keeps_its_machines() -> None:
    there = members("b", "c", "d")
    suspended = SPEC._replace(suspended=True)
    for spec in (suspended, suspended._replace(replicas=2), LogSpec(3, suspended=True)):
        assert plan({"x": spec}, {}, there, {("x", "a")}) == []
        assert plan({"x": spec}, {"x": leader(SPEC, "a")}, there, {("x", "a")}) == []


def test_a_log_that_is_read_from_a_store_gets_no_machines() -> None:
    assert plan({"x": LogSpec(source="s3://b/x")}, {}, members("a", "b", "c"), set()) == []


def test_zones_come_first() -> None:
    found = plan({"x": LogSpec(2)}, {}, members("a", "b", "c", zones="112"), set())
    assert "c" in found[0].spec.copies


def test_a_lost_machine_is_replaced_once_all_others_have_caught_up() -> None:
    there = members("a", "b", "d")
    assert plan({"x": SPEC}, {"x": leader(SPEC, "b", "c")}, there, {("x", "c")}) == []
    assert plan({"x": SPEC}, {"x": leader(SPEC, "c")}, there, set()) == []
    assert plan({"x": SPEC}, {}, there, {("x", "c")}) == []
    (change,) = plan({"x": SPEC}, {"x": leader(SPEC, "c")}, there, {("x", "c")})
    assert (change.spec.copies, change.spec.generation) == (("a", "b", "d"), 6)
    assert change.spec.joined == {"a": 0, "b": 0, "d": 6}


def test_a_copy_that_is_absent_for_long_is_replaced_also_if_its_machine_is_there() -> None:
    there = members("a", "b", "c", "d")
    for absent in (["b", "c"], []):
        assert plan({"x": SPEC}, {"x": leader(SPEC, *absent)}, there, {("x", "c")}) == []
    assert plan({"x": SPEC}, {"x": leader(SPEC, "c")}, there, {("y", "c")}) == []
    assert plan({"x": SPEC}, {"x": leader(SPEC, "c")}, members("a", "b", "c"), {("x", "c")}) == []
    (change,) = plan({"x": SPEC}, {"x": leader(SPEC, "c")}, there, {("x", "c")})
    assert change.spec.copies == ("a", "b", "d")


def test_a_lost_machine_is_replaced_before_there_are_more_copies() -> None:
    spec = SPEC._replace(replicas=4)
    (change,) = plan({"x": spec}, {"x": leader(spec, "c")}, members("a", "b", "d"), {("x", "c")})
    assert change.spec.copies == ("a", "b", "d")


def test_more_copies_come_one_at_a_time() -> None:
    spec = SPEC._replace(replicas=5)
    there = members("a", "b", "c", "d", "e")
    assert plan({"x": spec}, {}, there, set()) == []
    assert plan({"x": spec}, {"x": leader(spec, "b")}, there, set()) == []
    (change,) = plan({"x": spec}, {"x": leader(spec)}, there, set())
    assert change.spec.copies == ("a", "b", "c", "d")
    # The leader has not opened it with the new list yet.
    assert plan({"x": change.spec}, {"x": leader(spec)}, there, set()) == []


def test_copies_too_many_are_given_up_one_at_a_time() -> None:
    spec = LogSpec(2, copies=("a", "b", "c", "d"))
    there = members("a", "b", "c", "d", zones="1123")
    assert plan({"x": spec}, {}, there, set()) == []
    assert plan({"x": spec}, {"x": leader(spec, "c")}, there, set()) == []
    (change,) = plan({"x": spec}, {"x": leader(spec)}, there, set())
    assert change.spec.copies == ("a", "c", "d")  # the leader stays, and each zone
    assert plan({"x": change.spec}, {"x": leader(spec)}, there, set()) == []
    busy = {"y": LogSpec(2, copies=("b", "c"), generation=3), "x": change.spec}
    (change,) = plan(busy, {"x": leader(change.spec)}, there, set())
    assert change.spec.copies == ("a", "d")  # c has more copies


def test_a_machine_that_is_away_is_given_up_first_and_alone() -> None:
    spec = LogSpec(2, copies=("a", "b", "c", "d"))
    there = members("a", "b", "c")
    (change,) = plan({"x": spec}, {"x": leader(spec, "d")}, there, set())
    assert change.spec.copies == ("a", "b", "c")
    assert plan({"x": spec}, {"x": leader(spec, "c", "d")}, there, set()) == []
    assert plan({"x": spec}, {"x": leader(spec, "c", "d")}, members("a", "b"), set()) == []


@pytest.mark.parametrize("seed", range(50))
def test_lists_in_a_row_differ_in_one_machine(seed: int) -> None:
    """Whatever is lost and comes back: a list and the next one share all machines but one."""
    chance, spec = (
        random.Random(seed + first_seed("allocation")),
        LogSpec(3, copies=("a", "b", "c")),
    )
    for _ in range(50):
        there = members(*chance.sample("abcdefg", chance.randint(2, 7)))
        lost = {("x", one) for one in chance.sample("abcdefg", 3)}
        absent = chance.sample(spec.copies, chance.randint(0, min(3, len(spec.copies))))
        if chance.random() < 0.1:
            spec = spec._replace(replicas=chance.randint(2, 6))
        found = plan({"x": spec}, {"x": leader(spec, *absent)}, there, lost)
        if not found:
            continue
        new = found[0].spec
        gone, added = set(spec.copies) - set(new.copies), set(new.copies) - set(spec.copies)
        assert max(len(gone), len(added)) == 1
        assert len(new.copies) > len(spec.copies) or gone
        assert added or spec.copies[0] in new.copies  # which leads it
        assert new.generation == spec.generation + 1
        spec = new.check()
