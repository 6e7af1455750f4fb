"""When a log is asked again."""

from __future__ import annotations

import pytest

from walstore.spark.streaming.poller import PollPace


def asked(
    pace: PollPace, seconds: float, *, step: float = 0.02, is_new: bool = False
) -> list[float]:
    """Offer a turn every 20 ms, as Spark does; return when the log was asked."""
    found = []
    for turn in range(int(seconds / step)):
        now = turn * step
        if pace.is_due(now):
            found.append(now)
            pace.answered(now, is_new=is_new)
    return found


def test_an_idle_log_is_asked_once_a_second():
    pace = PollPace(shortest_seconds=0.5, longest_seconds=1.0)
    times = asked(pace, 100)
    assert times[0] == 0
    assert len(times) <= 101


def test_a_busy_log_is_asked_more_often():
    pace = PollPace(shortest_seconds=0.5, longest_seconds=1.0)
    assert len(asked(pace, 100, is_new=True)) == pytest.approx(200, abs=10)


def test_news_end_the_long_pauses():
    pace = PollPace(shortest_seconds=0.5, longest_seconds=8.0)
    asked(pace, 60)
    pace.answered(60, is_new=True)
    assert not pace.is_due(60.49)
    assert pace.is_due(60.5)


def test_the_shortest_pause_may_be_the_longest():
    pace = PollPace(shortest_seconds=5, longest_seconds=1)
    assert asked(pace, 11, step=1) == [0, 5, 10]


def test_silence_is_measured_from_its_beginning():
    pace = PollPace(shortest_seconds=0.5, longest_seconds=1.0)
    assert pace.failed(10) == 0
    assert not pace.is_due(10.5)
    assert pace.failed(17) == 7
    pace.answered(18, is_new=False)
    assert pace.failed(30) == 0
