"""Limits of a micro-batch: how much of each log it takes, by rows or by bytes. Pure.

Fair between logs: each gets the same share, and what one does not need goes to the others. Units that cannot
be divided rotate with the position of the stream, so that no log starves. Spark 4.0 and 4.1 pass no limit and
get all records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from walstore import InvalidSettingsError
from walstore.spark.bounds import LogName
from walstore.spark.features import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from walstore.spark.plan import Span
from walstore.spark.streaming.offsets import Offsets
from walstore.spark.streaming.stream_options import StreamOptions


class Budget(NamedTuple):
    """How much one micro-batch may take; None for no limit."""

    rows: int | None = None
    size_bytes: int | None = None


def check_limits(options: StreamOptions, *, has_limits: bool = HAS_LIMITS) -> None:
    """Raise InvalidSettingsError for limits if Spark does not pass the start of a batch."""
    if not has_limits and (options.most_rows is not None or options.most_bytes is not None):
        raise InvalidSettingsError(
            "maxOffsetsPerTrigger and maxBytesPerTrigger need Spark 4.2 or newer; this one asks a source "
            "for all there is"
        )


def default_limit(options: StreamOptions) -> ReadLimit:
    """Return the limit of the options as Spark's type, which cannot limit both rows and bytes."""
    if options.most_rows is not None:
        return ReadMaxRows(options.most_rows)
    if options.most_bytes is not None:
        return ReadMaxBytes(options.most_bytes)
    return ReadAllAvailable()


def budget_of(limit: ReadLimit | None, options: StreamOptions) -> Budget:
    """Return what a batch may take if Spark passes ``limit``.

    ReadAllAvailable, and None, override the options. Otherwise the smaller limit applies.
    """
    if limit is None or isinstance(limit, ReadAllAvailable):
        return Budget()
    rows, size_bytes = options.most_rows, options.most_bytes
    if isinstance(limit, ReadMaxRows):
        rows = _least(rows, limit.max_rows)
    elif isinstance(limit, ReadMaxBytes):
        size_bytes = _least(size_bytes, limit.max_bytes)
    return Budget(rows, size_bytes)


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
