"""Narrows a read by Spark's filters: logs, offsets, times and streams. Pure.

Only comparisons that reduce what is read are used. Spark evaluates all filters again, so they affect the work
but not the result. Filters are recognised by class name, since Spark 4.0 has no such classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from walstore.records import to_timestamp_us
from walstore.spark.plan import Log, ReadInterval

_TEXTS: Final = {"topic": "topics", "stream": "streams"}
_NUMBERS: Final = {"offset": "offsets", "timestamp": "times_us", "partition": "partitions"}


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers in ``[low, limit)``."""

    low: int = 0
    limit: int | None = None
    """None for no limit."""

    def both(self, other: Range) -> Range:
        """Return the intersection."""
        limits = [limit for limit in (self.limit, other.limit) if limit is not None]
        return Range(max(self.low, other.low), min(limits, default=None))

    def __contains__(self, value: int) -> bool:
        return self.low <= value and (self.limit is None or value < self.limit)


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What must be read. Everything, unless filters exclude some."""

    topics: frozenset[str] | None = None
    """Names of logs; None for all."""
    partitions: Range = Range()
    offsets: Range = Range()
    times_us: Range = Range()
    streams: frozenset[str] | None = None
    """Streams; None for all records, also those without a stream."""

    def admits(self, topic: str, partition: int) -> bool:
        """Return whether a log may have matching rows."""
        is_topic = self.topics is None or topic in self.topics
        return is_topic and self.streams != frozenset() and partition in self.partitions

    def interval(self, log: Log, interval: ReadInterval) -> ReadInterval:
        """Return the part of a log's interval that must be read; may look up times in the log."""
        start = max(interval.start, self.offsets.low)
        limit = _least(interval.limit, self.offsets.limit)
        if start < limit and self.times_us.low:
            found = log.offset_at(self.times_us.low)
            start = max(start, log.limit if found is None else found)
        if start < limit and self.times_us.limit is not None:
            limit = _least(limit, log.offset_at(max(0, self.times_us.limit)))
        return replace(interval, start=min(start, limit), limit=limit)


def narrow(filters: Iterable[Any]) -> Narrowed:
    """Return what must be read if every row of the result passes all of the filters.

    Filters that are not recognised exclude nothing.
    """
    found: dict[str, Any] = {}
    for item in filters:
        attribute: tuple[str, ...] = getattr(item, "attribute", ())
        column = attribute[0] if len(attribute) == 1 else None
        if column in _TEXTS:
            texts, name = _texts(item), _TEXTS[column]
            if texts is not None:
                found[name] = texts & found.get(name, texts)
        elif column in _NUMBERS:
            range_, name = _range(item), _NUMBERS[column]
            if range_ is not None:
                found[name] = range_.both(found.get(name, range_))
    return Narrowed(**found)


def _texts(item: Any) -> frozenset[str] | None:
    value: Any = getattr(item, "value", ())
    match type(item).__name__:
        case "EqualTo" | "EqualNullSafe":
            return frozenset([value]) if isinstance(value, str) else None
        case "In":
            # Null equals nothing.
            texts = [text for text in value if text is not None]
            return frozenset(texts) if all(isinstance(text, str) for text in texts) else None
    return None


def _range(item: Any) -> Range | None:
    kind = type(item).__name__
    value: Any = getattr(item, "value", ())
    if kind == "In":
        numbers = [_number(each) for each in value if each is not None]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return None
        return Range(min(known), max(known) + 1) if known else Range(0, 0)
    number = _number(value)
    if number is None:
        return None
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return Range(number, number + 1)
        case "GreaterThan":
            return Range(number + 1)
        case "GreaterThanOrEqual":
            return Range(number)
        case "LessThan":
            return Range(0, number)
        case "LessThanOrEqual":
            return Range(0, number + 1)
    return None


def _number(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return to_timestamp_us(value)
    return None


def _least(limit: int, other: int | None) -> int:
    return limit if other is None else min(limit, other)
