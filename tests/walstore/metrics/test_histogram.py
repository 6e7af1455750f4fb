"""Histograms count each sample once, in the first bucket that holds it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walstore.metrics.histogram import BYTES, RECORDS, SECONDS, Histogram


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1, 10))
    for sample in (0, 1, 1.5, 10, 11):
        histogram.observe(sample)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 23.5
    assert histogram.accumulated() == [("1.0", 2), ("10.0", 4), ("+Inf", 5)]


@given(st.lists(st.floats(0, 20)), st.lists(st.floats(0, 20)))
def test_merging_is_observing_both(first: list[float], second: list[float]) -> None:
    parts = [Histogram(SECONDS), Histogram(SECONDS)]
    whole = Histogram(SECONDS)
    for samples, part in zip((first, second), parts, strict=True):
        for sample in samples:
            part.observe(sample)
            whole.observe(sample)
    parts[0].merge([parts[1]])
    assert parts[0].counts == whole.counts
    assert parts[0].total == pytest.approx(whole.total)
    assert whole.accumulated()[-1] == ("+Inf", len(first) + len(second))


def test_a_copy_stays_as_it_is() -> None:
    histogram = Histogram(RECORDS)
    histogram.observe(3)
    copied = histogram.copy()
    histogram.observe(3)
    assert (sum(copied.counts), copied.total) == (1, 3)


@pytest.mark.parametrize("bounds", [SECONDS, RECORDS, BYTES])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    assert all(low < high for low, high in itertools.pairwise(bounds))


def test_durations_of_disks_are_told_apart() -> None:
    """Between 50 µs and 50 ms no bound is more than 2.5 times the one before."""
    inside = [bound for bound in SECONDS if 0.00005 <= bound <= 0.05]
    assert inside[0] == 0.00005
    assert inside[-1] == 0.05
    assert all(high / low <= 2.5001 for low, high in itertools.pairwise(inside))
