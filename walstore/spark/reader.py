"""The batch reader: plans on the driver, reads on the executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from walstore.spark.features import HAS_FILTERS
from walstore.spark.filters import Narrowed, narrow
from walstore.spark.options import ReadOptions
from walstore.spark.partition import LogPartition
from walstore.spark.planner import plan_read
from walstore.spark.schema import Projection
from walstore.spark.task import read_rows

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


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
