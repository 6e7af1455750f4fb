"""Plans for fragments that a crash left unpublished."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.uploader.documents import fragment
from uploader.root.orphan_recovery import FragmentSlot, Orphan, plan


def orphan(seq_no: int, start: int, limit: int) -> Orphan:
    return Orphan(fragment(seq_no, start, limit), timestamp_us=seq_no)


def shape(slots: list[FragmentSlot]) -> list[tuple[int, int, int, bool]]:
    return [(slot.seq_no, slot.start, slot.limit, slot.orphan is not None) for slot in slots]


def test_nothing_was_left() -> None:
    assert plan(5, 100, []) == []


def test_orphans_that_continue_the_log_are_taken_as_they_are() -> None:
    orphans = [orphan(5, 100, 110), orphan(6, 110, 130)]
    slots = plan(5, 100, orphans)
    assert shape(slots) == [(5, 100, 110, True), (6, 110, 130, True)]
    assert [slot.orphan for slot in slots] == orphans


def test_a_hole_is_filled_to_fit() -> None:
    slots = plan(5, 100, [orphan(6, 117, 130)])
    assert shape(slots) == [(5, 100, 117, False), (6, 117, 130, True)]


def test_records_are_spread_over_several_holes() -> None:
    slots = plan(1, 1, [orphan(4, 12, 13), orphan(6, 15, 16)])
    assert shape(slots) == [
        (1, 1, 4, False),
        (2, 4, 8, False),
        (3, 8, 12, False),
        (4, 12, 13, True),
        (5, 13, 15, False),
        (6, 15, 16, True),
    ]


def test_as_many_holes_as_records() -> None:
    slots = plan(1, 1, [orphan(4, 4, 9)])
    assert shape(slots) == [(1, 1, 2, False), (2, 2, 3, False), (3, 3, 4, False), (4, 4, 9, True)]


@pytest.mark.parametrize(
    "misfit",
    [
        orphan(6, 105, 120),  # overlaps the one before
        orphan(6, 100, 110),
        orphan(6, 111, 120),  # leaves records out without a number for them
        orphan(8, 111, 120),  # two numbers for one record
        orphan(7, 110, 120),  # a number without records
        orphan(4, 110, 120),  # a number that is taken
    ],
)
def test_what_cannot_follow_is_left_out(misfit: Orphan) -> None:
    """A put that came late may overlap what was cut without it; what fits behind it still counts."""
    slots = plan(5, 100, [orphan(5, 100, 110), misfit, orphan(9, 140, 150)])
    expected = plan(5, 100, [orphan(5, 100, 110), orphan(9, 140, 150)])
    assert slots == expected
    for before, after in pairwise(slots):
        assert (before.limit, before.seq_no + 1) == (after.start, after.seq_no)
