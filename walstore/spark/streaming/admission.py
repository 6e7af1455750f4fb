"""Admission: where a micro-batch of logs or of a collection ends. Pure.

Limits by rows or bytes are fair between logs: each gets the same share, and a log's unused share is given to
the others. Units that cannot be divided rotate with the position of the stream, so that no log starves.
Spark 4.0 and 4.1 pass no limit and get all there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from walstore import InvalidSettingsError
from walstore.spark.bounds import LogName, Offsets
from walstore.spark.features import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from walstore.spark.options import NO_LIMIT, Budget
from walstore.spark.partitions import Span

_ANY_ROWS: Final = 1 << 62
"""Stands for limits that Spark has no type for: of times, and of the least rows."""


def check_limits(most: Budget, options: str, *, has_limits: bool = HAS_LIMITS) -> None:
    """Raise InvalidSettingsError naming the ``options`` for limits if Spark passes no start of a batch."""
    if not has_limits and most != NO_LIMIT:
        raise InvalidSettingsError(
            f"{options} need Spark 4.2 or newer; this one asks a source for all there is"
        )


def default_limit(most: Budget) -> ReadLimit:
    """Return the limit of the options as Spark's type, which has one for rows or for bytes only."""
    if most.rows is not None:
        return ReadMaxRows(most.rows)
    if most.size_bytes is not None:
        return ReadMaxBytes(most.size_bytes)
    is_bounded = most.times is not None or most.least_rows is not None
    return ReadMaxRows(_ANY_ROWS) if is_bounded else ReadAllAvailable()


def budget_of(limit: ReadLimit | None, most: Budget) -> Budget:
    """Return what a batch may take if Spark passes ``limit``.

    ReadAllAvailable, and None, override the options. Otherwise the smaller limit applies.
    """
    if limit is None or isinstance(limit, ReadAllAvailable):
        return NO_LIMIT
    if isinstance(limit, ReadMaxRows) and limit.max_rows < _ANY_ROWS:
        return most._replace(rows=_least(most.rows, limit.max_rows))
    if isinstance(limit, ReadMaxBytes):
        return most._replace(size_bytes=_least(most.size_bytes, limit.max_bytes))
    return most


def _least(option: int | None, limit: int) -> int:
    return limit if option is None else min(option, limit)


def by_rows(start: Offsets, tail: Offsets, most_rows: int) -> dict[LogName, int]:
    """Return where a batch from ``start`` of at most ``most_rows`` ends, at most at ``tail``.

    Both name the same logs.
    """
    names = sorted(tail)
    wanted = [max(0, tail[name] - start[name]) for name in names]
    first = sum(start[name] for name in names)
    given = share(wanted, most_rows, first)
    return {name: start[name] + rows for name, rows in zip(names, given, strict=True)}


def by_bytes(
    start: Offsets, spans: Mapping[LogName, Sequence[Span]], most_bytes: int
) -> dict[LogName, int]:
    """Return where a batch of about ``most_bytes`` ends; ``spans`` cover what may be taken.

    It ends between spans if possible, so that no fragment is fetched twice, and takes at least one record,
    however large.
    """
    names = sorted(spans)
    wanted = [sum(span.size_bytes for span in spans[name]) for name in names]
    first = sum(start[name] for name in names)
    given = share(wanted, most_bytes, first)
    ends = {
        name: _end(start[name], spans[name], budget)
        for name, budget in zip(names, given, strict=True)
    }
    if all(ends[name] <= start[name] for name in names):
        waiting = [name for name in names if spans[name]]
        if waiting:
            chosen = waiting[first % len(waiting)]
            ends[chosen] = start[chosen] + 1
    return ends


def share(wanted: Sequence[int], total: int, first: int) -> list[int]:
    """Divide ``total`` fairly; no share is larger than its entry in ``wanted``.

    ``first`` rotates the order in which remaining single units are given out.
    """
    given = [0] * len(wanted)
    left = min(total, sum(wanted))
    while left:
        hungry = [at for at, want in enumerate(wanted) if given[at] < want]
        each = left // len(hungry)
        if not each:
            for step in range(left):
                given[hungry[(first + step) % len(hungry)]] += 1
            return given
        for at in hungry:
            more = min(each, wanted[at] - given[at])
            given[at] += more
            left -= more
    return given


def _end(start: int, spans: Iterable[Span], budget: int) -> int:
    """Return the offset up to which records fit, by the mean record size of each span."""
    end = start
    for span in spans:
        if span.size_bytes > budget:
            if end == start:
                return start + (span.limit - start) * budget // span.size_bytes
            return end
        end = span.limit
        budget -= span.size_bytes
    return end


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
