"""The plan of retention: what goes, what is held and by whom, and when to look again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walstore import OffsetNotWrittenError
from walstore.core.format.segment import SegmentSummary
from walstore.log.retention_plan import (
    Pin,
    Reason,
    RetentionHold,
    RetentionPlan,
    lowest,
    plan_retention,
    plan_trim,
)

SECOND = 1_000_000
NOW = 1000 * SECOND
EMPTY = SegmentSummary(1000, 1000, 64, 0, 0)


def sealed_of(*ages: float, size: int = 100, count: int = 10) -> list[SegmentSummary]:
    """Return adjacent segments of ``count`` records, whose newest are that many seconds old."""
    return [
        SegmentSummary(1 + count * n, 1 + count * (n + 1), size, 0, NOW - int(age * SECOND))
        for n, age in enumerate(ages)
    ]


def active_behind(sealed: list[SegmentSummary], count: int = 0, age: float = 0) -> SegmentSummary:
    start = sealed[-1].limit if sealed else 1
    return SegmentSummary(start, start + count, 100, 0, NOW - int(age * SECOND))


def plan(
    sealed: list[SegmentSummary], active: SegmentSummary | None = None, **given: object
) -> RetentionPlan:
    options: dict[str, object] = {
        "head": 1,
        "now_us": NOW,
        "retention_seconds": None,
        "retention_bytes": None,
        "uploaded_limit": None,
    }
    return plan_retention(sealed, active=active or active_behind(sealed), **{**options, **given})


def why(found: RetentionPlan) -> list[tuple[int, Reason, RetentionHold | None]]:
    return [(decision.limit, decision.reason, decision.hold) for decision in found.decisions]


# -- what is wanted gone -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "retention_bytes", "head"),
    [
        ([], 0, 1),
        ([100, 100, 100], 300, 1),
        ([100, 100, 100], 299, 11),
        ([100, 100, 100], 150, 21),
        ([100, 100, 100], 0, 31),
        ([500, 1, 1], 10, 11),
        ([1, 1, 500], 10, 31),
    ],
)
def test_the_oldest_go_while_there_are_too_many_bytes(sizes, retention_bytes, head) -> None:
    """What is left fits the budget: the newest sealed segment goes too if it alone exceeds it."""
    sealed = [
        replace(summary, data_bytes=size)
        for summary, size in zip(sealed_of(*[0] * len(sizes)), sizes, strict=True)
    ]
    found = plan(sealed, retention_bytes=retention_bytes)
    assert found.head == head
    assert all(decision.reason is Reason.BYTES for decision in found.decisions)
    assert (found.seals_active, found.due_us) == (False, None)


@pytest.mark.parametrize(("seconds", "head"), [(30.1, 1), (30, 11), (20.5, 11), (10, 31), (1, 31)])
def test_a_segment_expires_with_its_newest_record(seconds, head) -> None:
    sealed = sealed_of(30, 20, 10)
    found = plan(sealed, retention_seconds=seconds)
    assert found.head == head
    assert all(decision.reason is Reason.AGE for decision in found.decisions)


def test_the_next_deadline_is_that_of_the_oldest_that_stays() -> None:
    sealed = sealed_of(30, 20, 10)
    assert plan(sealed, retention_seconds=40).due_us == NOW + 10 * SECOND
    assert plan(sealed, retention_seconds=25).due_us == NOW + 5 * SECOND
    assert plan(sealed, retention_seconds=5).due_us is None, "nothing is left to expire"
    active = active_behind(sealed, count=3, age=2)
    assert plan(sealed, active, retention_seconds=5).due_us == NOW + 3 * SECOND


def test_at_the_deadline_it_goes() -> None:
    sealed = sealed_of(30, 20)
    due_us = plan(sealed, retention_seconds=30.000_000_5).due_us
    assert plan(sealed, retention_seconds=30.000_000_5, now_us=due_us - 1).head == 1
    assert plan(sealed, retention_seconds=30.000_000_5, now_us=due_us).head == 11


@pytest.mark.parametrize("seconds", [None, float("inf")])
def test_without_an_age_limit_nothing_ages(seconds) -> None:
    found = plan(sealed_of(1e6, 1e5), active_behind([], 5, 1e5), retention_seconds=seconds)
    assert found == RetentionPlan(1, limit=6)


def test_each_has_the_reason_that_holds_for_it() -> None:
    sealed = sealed_of(50, 40, 30, 20, 10)
    found = plan(sealed, head=11, retention_seconds=40, retention_bytes=150)
    assert why(found) == [
        (11, Reason.TRIMMED, None),
        (21, Reason.AGE, None),
        (31, Reason.BYTES, None),
        (41, Reason.BYTES, None),
    ]
    assert found.head == 41


def test_a_head_inside_a_segment_does_not_free_it() -> None:
    found = plan(sealed_of(0, 0), head=15)
    assert found.head == 15
    assert why(found) == [(11, Reason.TRIMMED, None)]


# -- the active segment ------------------------------------------------------------------------------


def test_an_expired_active_segment_is_sealed_when_nothing_lies_before_it() -> None:
    sealed = sealed_of(30, 20)
    expired = active_behind(sealed, count=4, age=15)
    found = plan(sealed, expired, retention_seconds=15)
    assert (found.head, found.seals_active, found.due_us) == (21, True, None)
    younger = plan(sealed, expired, retention_seconds=16)
    assert (younger.seals_active, younger.due_us) == (False, NOW + SECOND)


def test_an_active_segment_without_records_is_left_alone() -> None:
    found = plan([], EMPTY, retention_seconds=1)
    assert (found.seals_active, found.due_us, found.limit) == (False, None, 1000)


def test_bytes_never_seal_the_active_segment() -> None:
    active = active_behind([], count=100)
    assert plan([], active, retention_bytes=0) == RetentionPlan(1, limit=101)


@pytest.mark.parametrize(
    ("given", "hold"),
    [
        ({"uploaded_limit": 20}, RetentionHold.NOT_UPLOADED),
        ({"pins": [Pin(24, "cursor c")]}, RetentionHold.PINNED),
    ],
)
def test_an_expired_active_segment_that_is_held_is_not_sealed(given, hold) -> None:
    sealed = sealed_of(30, 20)
    found = plan(sealed, active_behind(sealed, 4, 15), retention_seconds=15, **given)
    assert not found.seals_active
    assert found.held is not None
    assert found.held.hold is hold


# -- what is held ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uploaded_limit", "head"), [(1, 1), (10, 1), (11, 11), (30, 21), (31, 31), (1000, 31)]
)
def test_with_a_tier_only_what_is_uploaded_wholly_goes(uploaded_limit, head) -> None:
    for limits in ({"retention_bytes": 0}, {"retention_seconds": 1}):
        found = plan(sealed_of(30, 20, 10), uploaded_limit=uploaded_limit, **limits)
        assert found.head == head
        assert len(found.decisions) == 3
        assert all(
            (decision.hold is RetentionHold.NOT_UPLOADED) == (decision.limit > uploaded_limit)
            for decision in found.decisions
        )
        assert found.due_us is None, "the tier will tell"


@pytest.mark.parametrize(
    ("pinned", "head"), [(1, 1), (10, 1), (11, 11), (12, 11), (31, 31), (99, 31)]
)
def test_nothing_goes_that_a_pin_needs(pinned, head) -> None:
    pins = [Pin(500, "cursor far"), Pin(pinned, "cursor near"), Pin(400, "a reader")]
    found = plan(sealed_of(30, 20, 10), retention_bytes=0, retention_seconds=1, pins=pins)
    assert found.head == head
    if head < 31:
        assert found.held is not None
        assert (found.held.start, found.held.holder) == (head, "cursor near")


def test_a_pin_below_the_head_holds_all_there_is() -> None:
    found = plan(sealed_of(30, 20), head=11, retention_seconds=1, pins=[Pin(5, "cursor lost")])
    assert why(found) == [(11, Reason.TRIMMED, None), (21, Reason.AGE, RetentionHold.PINNED)]
    assert found.head == 11


def test_a_pin_that_expired_holds_nothing_and_one_that_will_sets_the_deadline() -> None:
    sealed = sealed_of(30, 20, 10)
    pins = [Pin(5, "cursor gone", NOW), Pin(15, "cursor lent", NOW + 7), Pin(17, "cursor firm")]
    found = plan(sealed, retention_seconds=15, pins=pins)
    assert found.held is not None
    assert (found.head, found.held.holder, found.due_us) == (11, "cursor lent", NOW + 7)
    later = plan(sealed, retention_seconds=15, pins=pins, now_us=NOW + 7)
    assert later.held is not None
    assert (later.held.holder, later.due_us) == ("cursor firm", None)


def test_a_decision_says_in_words_what_and_why() -> None:
    found = plan(sealed_of(30, 20), retention_seconds=1, pins=[Pin(12, "cursor billing")])
    assert [str(decision) for decision in found.decisions] == [
        "segment [1, 11) of 100 bytes is deleted: age",
        "segment [11, 21) of 100 bytes should be deleted (age) but is kept: pinned by cursor billing",
    ]
    held = plan(sealed_of(30), retention_bytes=0, uploaded_limit=1).held
    assert (
        str(held)
        == "segment [1, 11) of 100 bytes should be deleted (bytes) but is kept: not uploaded"
    )


ages = st.lists(st.integers(0, 100), max_size=8).map(lambda found: sorted(found, reverse=True))
pin_lists = st.lists(
    st.builds(Pin, st.integers(0, 100), st.just("p"), st.none() | st.integers(NOW - 5, NOW + 5)),
    max_size=3,
)


@given(
    ages,
    st.integers(1, 60),
    st.integers(0, 12),
    st.integers(0, 100),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(0, 800),
    st.none() | st.integers(0, 100),
    pin_lists,
)
def test_a_plan_takes_no_more_than_it_may_and_no_less_than_it_must(
    sealed_ages, head, active_count, active_age, seconds, budget, uploaded_limit, pins
) -> None:
    sealed = sealed_of(*sealed_ages)
    active = active_behind(sealed, active_count, min([active_age, *sealed_ages]))
    head = min(head, active.limit)
    found = plan(
        sealed,
        active,
        head=head,
        retention_seconds=seconds,
        retention_bytes=budget,
        uploaded_limit=uploaded_limit,
        pins=pins,
    )
    needed = [pin.offset for pin in pins if pin.expires_us is None or pin.expires_us > NOW]
    if uploaded_limit is not None:
        needed.append(uploaded_limit)
    allowed = max(head, min([active.start, *needed]))
    assert head <= found.head <= allowed
    stays = [summary for summary in sealed if summary.limit > found.head]
    gone = [summary for summary in sealed if summary.limit <= found.head]
    for summary in gone:
        has_expired = seconds is not None and NOW - summary.max_timestamp_us >= seconds * SECOND
        later_bytes = sum(other.data_bytes for other in sealed if other.start >= summary.start)
        is_over = budget is not None and later_bytes > budget
        assert has_expired or is_over or summary.limit <= head
    if stays and stays[0].limit <= allowed:  # it could go, so nothing wants it gone
        assert found.held is None
        assert budget is None or sum(summary.data_bytes for summary in stays) <= budget
        assert seconds is None or NOW - stays[0].max_timestamp_us < seconds * SECOND
    if found.seals_active:
        assert not stays
        assert all(active.limit <= offset for offset in needed)
    assert found.due_us is None or found.due_us > NOW


# -- trim --------------------------------------------------------------------------------------------


def trim(before: int, **given: object) -> int:
    options: dict[str, object] = {
        "head": 10,
        "durable_limit": 100,
        "now_us": NOW,
        "uploaded_limit": None,
    }
    return plan_trim(before, **{**options, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "given", "head"),
    [
        (50, {}, 50),
        (100, {}, 100),
        (10, {}, 10),
        (3, {}, 10),
        (-7, {}, 10),
        (50, {"pins": [Pin(40, "a"), Pin(45, "b")]}, 40),
        (50, {"pins": [Pin(60, "a")]}, 50),
        (50, {"pins": [Pin(5, "a")]}, 10),
        (50, {"pins": [Pin(40, "a", NOW)]}, 50),
        (50, {"pins": [Pin(40, "a", NOW + 1)]}, 40),
        (50, {"uploaded_limit": 30}, 30),
        (50, {"uploaded_limit": 30, "pins": [Pin(20, "a")]}, 20),
        (50, {"uploaded_limit": 5}, 10),
    ],
)
def test_trim_moves_the_head_exactly_or_as_far_as_it_may(before, given, head) -> None:
    assert trim(before, **given) == head


def test_trim_beyond_the_durable_limit_is_refused() -> None:
    with pytest.raises(OffsetNotWrittenError) as found:
        trim(101)
    assert (found.value.requested, found.value.head, found.value.tail) == (101, 10, 100)


@pytest.mark.parametrize("before", [None, "5", 5.0, True])
def test_trim_wants_an_offset(before) -> None:
    with pytest.raises(TypeError):
        trim(before)


def test_the_lowest_pin_counts() -> None:
    assert lowest([], NOW) is None
    assert lowest([Pin(7, "b", None), Pin(7, "a", NOW + 1), Pin(3, "c", NOW - 1)], NOW) == Pin(
        7, "b"
    )
