"""How much Spark wants of a micro-batch. Spark 4.0 and 4.1 do not say and get all there is."""

from __future__ import annotations

from typing import NamedTuple

from walstore.errors import InvalidSettingsError
from walstore.spark.features import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from walstore.spark.streaming.stream_options import StreamOptions

__all__ = ["HAS_LIMITS", "Budget", "ReadLimit", "SupportsTriggerAvailableNow"]


class Budget(NamedTuple):
    """How much one micro-batch may take; None for all there is."""

    rows: int | None = None
    size_bytes: int | None = None


def check_limits(options: StreamOptions, *, has_limits: bool = HAS_LIMITS) -> None:
    """Raise InvalidSettingsError for limits where Spark does not say from where on a batch begins."""
    if not has_limits and (options.most_rows is not None or options.most_bytes is not None):
        raise InvalidSettingsError(
            "maxOffsetsPerTrigger and maxBytesPerTrigger need Spark 4.2 or newer; this one asks a source "
            "for all there is"
        )


def default_limit(options: StreamOptions) -> ReadLimit:
    """Return the limit that the options ask for, in Spark's words. It has none for rows and bytes at once."""
    if options.most_rows is not None:
        return ReadMaxRows(options.most_rows)
    if options.most_bytes is not None:
        return ReadMaxBytes(options.most_bytes)
    return ReadAllAvailable()


def budget_of(limit: ReadLimit | None, options: StreamOptions) -> Budget:
    """Return what a batch may take when Spark says ``limit``.

    ReadAllAvailable, and no limit at all, override the options. Else theirs hold as well.
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
