"""The batch reader: plans on the driver, reads on the executors. Blocking I/O.

Planning finds one or many logs, resolves their bounds and divides them into tasks. Several logs are opened
concurrently in threads, for a request or two each. Logs that filters exclude by topic or partition are not
opened.

Only comparisons that reduce what is read are used of Spark's filters. Spark evaluates all filters again, so
they affect the work but not the result. They are recognised by class name, since Spark 4.0 has no such
classes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from walstore import WalError
from walstore.records import to_timestamp_us
from walstore.spark.blocking import off_loop
from walstore.spark.features import HAS_FILTERS
from walstore.spark.logs import NamedLog, find_logs, open_log
from walstore.spark.options import ReadOptions
from walstore.spark.partitions import LogPartition
from walstore.spark.plan import ReadInterval, divide, resolve
from walstore.spark.planned_log import PlannedLog
from walstore.spark.rows import Projection
from walstore.spark.task import read_rows

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


logger = logging.getLogger("walstore.spark")

PARALLEL: Final = 8
"""Logs opened concurrently."""

_Read = tuple[PlannedLog, ReadInterval]


def plan_read(options: ReadOptions, narrowed: Narrowed) -> list[LogPartition]:
    """Return what each task reads, narrowed by filters; reads indexes and manifests, no records.

    Blocks, also inside a running event loop, as in a notebook. See :func:`walstore.spark.logs.find_logs` and
    :func:`walstore.spark.plan.resolve` for the errors.
    """
    return off_loop(partial(_plan, options, narrowed))


def check_location(options: ReadOptions) -> None:
    """Raise what planning would raise for a location that cannot be read, mostly LogNotFoundError.

    Opens a single log; of several it looks up only the names. Blocks, as :func:`plan_read`.
    """
    off_loop(partial(_check, options))


def _check(options: ReadOptions) -> None:
    named = find_logs(options.location, options.selection)
    if len(named) == 1:
        open_log(named[0], use_tier=False).close()


def _plan(options: ReadOptions, narrowed: Narrowed) -> list[LogPartition]:
    named = find_logs(options.location, options.selection)
    names = [(log.topic, log.partition) for log in named]
    options.starting.check(names)
    options.ending.check(names)
    admitted = [log for log in named if narrowed.admits(log.topic, log.partition)]
    with ExitStack() as stack:
        reads = _open_all(admitted, partial(_look, options, narrowed), stack)
        return divide(reads, options.min_partitions, options.most_records)


def _open_all(logs: Sequence[NamedLog], look: partial[_Read], stack: ExitStack) -> list[_Read]:
    """Open the logs, all or none; the stack closes them."""
    if len(logs) == 1:
        reads = [look(logs[0])]
        stack.callback(reads[0][0].close)
        return reads
    with ThreadPoolExecutor(PARALLEL, "walstore-plan") as threads:
        looks = [threads.submit(look, log) for log in logs]
    for done in looks:
        if done.exception() is None:
            stack.callback(done.result()[0].close)
    return [done.result() for done in looks]


def _look(options: ReadOptions, narrowed: Narrowed, named: NamedLog) -> _Read:
    """Open a log and resolve which part of it is read; the caller closes it."""
    with ExitStack() as stack:
        try:
            log = open_log(named, use_tier=options.use_tier)
            stack.callback(log.close)
            interval = resolve(
                log,
                options.starting.of(named.topic, named.partition),
                options.ending.of(named.topic, named.partition),
                needs_record=options.needs_record,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            found = narrowed.interval(log, interval)
        except WalError as error:
            if not options.selection.is_whole or named.is_part:
                error.add_note(f"this is about {named.topic}/{named.partition}")
            raise
        if interval.lost:
            logger.warning("%s/%d: %s", named.topic, named.partition, interval.lost)
        stack.pop_all()
        return log, found


class BatchReader(DataSourceReader):
    """Reads logs once, up to the durable limit at the time of planning.

    Picklable: Spark plans with one copy and reads with others.
    """

    def __init__(self, options: ReadOptions, names: Sequence[str]) -> None:
        """Read according to ``options``, as the columns ``names``."""
        self._options = options
        self._names = tuple(names)
        self._narrowed = Narrowed()
        if options.takes_filters and HAS_FILTERS:
            self.pushFilters: Any = FilterTaker(self)

    def take_filters(self, filters: Iterable[Filter]) -> None:
        """Narrow the read by these filters where that saves work."""
        self._narrowed = narrow(filters)

    def partitions(self) -> list[InputPartition]:
        """Plan the read and divide it; reads indexes and manifests, no records."""
        return [*plan_read(self._options, self._left())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        projection = Projection(self._names, self._left().streams)
        return read_rows(partition, projection, fail_on_data_loss=self._options.fail_on_data_loss)

    def _left(self) -> Narrowed:
        """Return what options and filters select. Not stored: Spark copies a reader before it plans."""
        if self._options.stream is None:
            return self._narrowed
        stream, others = frozenset([self._options.stream]), self._narrowed.streams
        return replace(self._narrowed, streams=stream if others is None else stream & others)


class FilterTaker:
    """Replaces the method ``pushFilters`` on a reader with ``pushdown=on``.

    While ``spark.sql.python.filterPushdown.enabled`` is off, the default, Spark refuses every read by a class
    that defines the method; while it is on, Spark calls the method. The setting is not known when the source
    is registered and may change later. So the class keeps the inherited method, which Spark checks, and the
    instance has this object, which Spark calls.

    Only on request: Spark 4.3 plans a DataFrame for its last filter and reuses that plan for everything
    derived from the DataFrame, also with another filter or none. docs/spark.md explains how to use it.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Record the filters and return all of them, so that Spark evaluates them too."""
        self._reader.take_filters(filters)
        return filters


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

    def interval(self, log: PlannedLog, interval: ReadInterval) -> ReadInterval:
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
