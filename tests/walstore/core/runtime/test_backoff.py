"""Pauses between attempts."""

from __future__ import annotations

import pytest

from walstore.core.runtime.backoff import Backoff


def pauses(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_seconds() for _ in range(count)]


def test_pauses_double_up_to_the_longest_and_begin_again() -> None:
    backoff = Backoff(first_seconds=0.5, longest_seconds=3.0)
    assert pauses(backoff, 5) == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert pauses(backoff, 2) == [0.5, 1.0]


def test_another_growth() -> None:
    assert pauses(Backoff(first_seconds=1.0, longest_seconds=2.0, growth=1.5), 3) == [1.0, 1.5, 2.0]


@pytest.mark.parametrize("longest", [0.0, 1.0])
def test_no_pause_is_longer_than_the_longest(longest: float) -> None:
    assert pauses(Backoff(first_seconds=2.0, longest_seconds=longest), 2) == [longest] * 2


def test_jitter_does_not_add_up() -> None:
    factors = iter([0.5, 1.5, 1.0])
    backoff = Backoff(first_seconds=1.0, longest_seconds=3.0, jitter=lambda: next(factors))
    assert pauses(backoff, 3) == [0.5, 3.0, 3.0]


def test_the_pause_after_an_attempt_depends_on_its_number_alone() -> None:
    backoff = Backoff(first_seconds=1.0, longest_seconds=60.0)
    assert [backoff.after(attempt) for attempt in (3, 1, 10_000)] == [4.0, 1.0, 60.0]
    assert backoff.next_seconds() == 1.0
