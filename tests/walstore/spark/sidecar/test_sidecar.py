"""What is made of Spark's progress, also of one that says little."""

from __future__ import annotations

import pytest

from walstore.spark.sidecar.sidecar import count_records, seconds_of, tails_of

A, B = ("orders", 0), ("orders", 1)


def test_records_between_offsets():
    assert count_records({A: 1, B: 10}, {A: 101, B: 10}) == 100
    assert count_records({A: 1}, {A: 1, B: 11}) == 10


@pytest.mark.parametrize("latest", ['{"orders": {"0": 7}}', {"orders": {"0": 7}}])
def test_how_far_the_log_reaches(latest):
    assert tails_of({"sources": [{"latestOffset": latest}]}, {}) == {A: 7}


@pytest.mark.parametrize("sources", [[], [{}], [{"latestOffset": None}], [{"latestOffset": "-"}]])
def test_a_source_that_does_not_say_how_far(sources):
    assert tails_of({"sources": sources}, {A: 5}) == {A: 5}


def test_the_time_of_a_batch():
    assert seconds_of({"durationMs": {"triggerExecution": 1500}}) == 1.5
    assert seconds_of({"durationMs": {}}) is None
    assert seconds_of(None) is None
