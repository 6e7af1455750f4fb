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


def test_nothing_changes_before_the_one_that_claims_it_has_taken_over() -> None:
    spec = LogSpec(2, copies=("a",), generation=5)
    assert plan({"x": spec}, {"x": Leader("a", "", 0)}, members("a", "b"), set()) == []
    (change,) = plan({"x": spec}, {"x": Leader("a", "", 1)}, members("a", "b"), set())
    assert change.spec.copies == ("a", "b")
    two = LogSpec(1, copies=("a", "b"), generation=5)
    assert plan({"x": two}, {"x": Leader("a", "", 0, ("b",))}, members("a"), set()) == []


HALF = LogSpec(2, copies=("a", "b"), generation=5, joined={"a": 2, "b": 5})


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_second_copy_that_has_caught_up_becomes_an_equal_first(replicas: int) -> None:
    spec, there = HALF._replace(replicas=replicas, preferred="b"), members("a", "b", "c")
    (change,) = plan({"x": spec}, {"x": leader(spec)}, there, set())
    assert change.spec == spec._replace(generation=6)
    # It was not led with that list yet.
    before = leader(spec)._replace(generation=5)
    assert plan({"x": change.spec}, {"x": before}, there, {("x", "b")}) == []
    found = plan({"x": change.spec}, {"x": before._replace(generation=6)}, there, set())
    assert [len(one.spec.copies) for one in found] == [replicas] * (replicas != 2)


def test_beside_a_new_copy_the_other_one_stays() -> None:
    there, lost = members("b", "c"), {("x", "a")}
    for replicas in (1, 2, 3):
        spec = HALF._replace(replicas=replicas)
        by_new = Leader("b", "", 1, ("a",), (), {}, 5)
        assert plan({"x": spec}, {"x": by_new}, there, lost) == []
    by_old, lost = Leader("a", "", 1, ("b",), (), {}, 5), {("x", "b")}
    (change,) = plan({"x": HALF}, {"x": by_old}, members("a", "c"), lost)
    assert (change.spec.copies, change.spec.joined) == (("a", "c"), {"a": 2, "c": 6})
    (change,) = plan({"x": HALF._replace(replicas=1)}, {"x": by_old}, members("a", "c"), set())
    assert change.spec.copies == ("a",)


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
            spec = spec._replace(replicas=chance.randint(1, 6))
        found = plan({"x": spec}, {"x": leader(spec, *absent)}, there, lost)
        if not found:
            continue
        new = found[0].spec
        gone, added = set(spec.copies) - set(new.copies), set(new.copies) - set(spec.copies)
        if spec.new_of_two is not None and not {*absent} - {spec.copies[0]}:
            assert not gone | added  # the same two, as equals
        else:
            assert max(len(gone), len(added)) == 1
            assert len(new.copies) > len(spec.copies) or gone
            assert spec.new_of_two is None or gone == {spec.new_of_two}
        assert added or spec.copies[0] in new.copies  # which leads it
        assert new.generation == spec.generation + 1
        spec = new.check()
