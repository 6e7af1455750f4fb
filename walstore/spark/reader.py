"""The batch reader: plans on the driver, reads on the executors. Blocking I/O.

Planning finds one or many logs, resolves their bounds and divides them into tasks. Several logs are opened
concurrently in threads, for a request or two each. Logs that filters exclude by topic or partition are not
opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from walstore import WalError
from walstore.spark.features import HAS_FILTERS
from walstore.spark.filters import Narrowed, narrow
from walstore.spark.logs import NamedLog, find_logs, open_log
from walstore.spark.options import ReadOptions
from walstore.spark.plan import Log, LogPartition, ReadInterval, divide, resolve
from walstore.spark.rows import Projection
from walstore.spark.task import read_rows

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


logger = logging.getLogger("walstore.spark")

PARALLEL: Final = 8
"""Logs opened concurrently."""

_Read = tuple[Log, ReadInterval]


def plan_read(options: ReadOptions, narrowed: Narrowed) -> list[LogPartition]:
    """Return what each task reads, narrowed by filters; reads indexes and manifests, no records.

    Blocks, also inside a running event loop, as in a notebook. See :func:`walstore.spark.logs.find_logs` and
    :func:`walstore.spark.plan.resolve` for the errors.
    """
    if not _is_in_loop():
        return _plan(options, narrowed)
    with ThreadPoolExecutor(1, "walstore-plan") as thread:
        return thread.submit(_plan, options, narrowed).result()


def check_location(options: ReadOptions) -> None:
    """Raise what planning would raise for a location that cannot be read, mostly LogNotFoundError.

    Opens a single log; of several it looks up only the names. Blocks, as :func:`plan_read`.
    """
    if not _is_in_loop():
        _check(options)
        return
    with ThreadPoolExecutor(1, "walstore-plan") as thread:
        thread.submit(_check, options).result()


def _check(options: ReadOptions) -> None:
    named = find_logs(options.location, options.selection)
    if len(named) == 1:
        open_log(named[0], use_tier=False).close()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _plan(options: ReadOptions, narrowed: Narrowed) -> list[LogPartition]:
    named = find_logs(options.location, options.selection)
    names = [(log.topic, log.partition) for log in named]
    options.starting.check(names)
    options.ending.check(names)
    admitted = [log for log in named if narrowed.admits(log.topic, log.partition)]
    with ExitStack() as stack:
        reads = _open_all(admitted, partial(_look, options, narrowed), stack)
        return divide(reads, options.min_partitions)


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
        if not isinstance(partition, LogPartition):
            return iter(())  # Spark plans one if there is nothing to read
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
