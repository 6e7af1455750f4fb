"""Where micro-batches of changes end."""

from __future__ import annotations

import pytest

from walstore.spark.options import Budget
from walstore.spark.streaming.admission import StoredTimes, end_of

STORED = [
    StoredTimes(0, 10, 100, 1000),
    StoredTimes(10, 20, 0, 300),
    StoredTimes(20, 21, 50, 500),
    StoredTimes(21, 30, 9, 90),
]


@pytest.mark.parametrize(
    ("start", "end", "budget", "found"),
    [
        (0, 30, Budget(), 30),
        (0, 30, Budget(rows=1000), 30),
        (0, 30, Budget(rows=100), 20),
        (0, 30, Budget(rows=50), 5),
        (0, 30, Budget(rows=1), 1),
        (5, 30, Budget(rows=50), 20),
        (5, 30, Budget(rows=100), 21),
        (20, 30, Budget(rows=1), 21),
        (0, 30, Budget(size_bytes=1000), 10),
        (0, 30, Budget(size_bytes=1150), 15),
        (0, 30, Budget(rows=100, size_bytes=500), 5),
        (0, 4, Budget(rows=100), 4),
    ],
)
def test_the_end(start: int, end: int, budget: Budget, found: int) -> None:
    assert end_of(STORED, start, end, budget) == found
    assert end_of(reversed(STORED), start, end, budget) == found


def test_every_budget_goes_on() -> None:
    """From the start to the end, whatever the limit is."""
    for rows in (1, 3, 7, 60, 1000):
        at, steps = 0, 0
        while at < 30:
            later = end_of(STORED, at, 30, Budget(rows=rows))
            assert at < later <= 30
            at, steps = later, steps + 1
        assert steps <= 30
