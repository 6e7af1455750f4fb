"""Admission: where a micro-batch of changes ends. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from walstore.spark.streaming.micro_batch import Budget


class StoredTimes(NamedTuple):
    """Updates of the times ``[start, limit)`` that are stored together."""

    start: int
    limit: int
    rows: int
    size_bytes: int


def end_of(stretches: Iterable[StoredTimes], start: int, end: int, budget: Budget) -> int:
    """Return where a micro-batch from ``start`` within the budget ends: after ``start``, at most at ``end``.

    Of a stretch in which updates are not counted by time, each time has the same share. One time is taken in
    any case, however many updates it has.
    """
    rows, size_bytes = 0.0, 0.0
    for one in sorted(stretches):
        first, limit = max(one.start, start), min(one.limit, end)
        if first >= limit:
            continue
        share = (limit - first) / (one.limit - one.start)
        fits = min(
            _part(budget.rows, rows, one.rows * share),
            _part(budget.size_bytes, size_bytes, one.size_bytes * share),
        )
        if fits < 1:
            return max(start + 1, first + int((limit - first) * fits))
        rows += one.rows * share
        size_bytes += one.size_bytes * share
    return end


def _part(limit: int | None, taken: float, more: float) -> float:
    """Return which part of ``more`` fits, at most all."""
    if limit is None or taken + more <= limit:
        return 1.0
    return max(0.0, (limit - taken) / more)
