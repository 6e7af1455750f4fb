"""Latencies: the last latencies of one kind of request, and their quantiles. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque


class Latencies:
    """A window over the last ``window`` samples. Adding a sample and a lookup cost microseconds."""

    def __init__(self, window: int) -> None:
        """Begin without samples."""
        self._window = window
        self._by_age: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._by_age)

    def add(self, seconds: float) -> None:
        """Add a sample; the oldest one goes once the window is full."""
        if len(self._by_age) == self._window:
            del self._sorted[bisect_left(self._sorted, self._by_age.popleft())]
        self._by_age.append(seconds)
        insort(self._sorted, seconds)

    def quantile(self, fraction: float) -> float:
        """Return the smallest sample that at least this fraction of the samples does not exceed."""
        return self._sorted[max(math.ceil(fraction * len(self._sorted)), 1) - 1]
