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
    """Reads logs once, as far as they are durable when the query is planned.

    Picklable: Spark plans with one copy of it and reads with others.
    """

    def __init__(self, options: ReadOptions, names: Sequence[str]) -> None:
        """Read what ``options`` say, as the columns ``names``."""
        self._options = options
        self._names = tuple(names)
        self._narrowed = Narrowed()
        if options.takes_filters and HAS_FILTERS:
            self.pushFilters: Any = FilterTaker(self)

    def take_filters(self, filters: Iterable[Filter]) -> None:
        """Read no more than what these filters leave, as far as that spares work."""
        self._narrowed = narrow(filters)

    def partitions(self) -> list[InputPartition]:
        """Look at the logs and divide them; reads indexes and manifests, no records."""
        return [*plan_read(self._options, self._left())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        if not isinstance(partition, LogPartition):
            return iter(())  # what Spark plans when there is nothing to read
        projection = Projection(self._names, self._left().streams)
        return read_rows(partition, projection, fail_on_data_loss=self._options.fail_on_data_loss)

    def _left(self) -> Narrowed:
        """Return what options and filters leave. Not kept: Spark copies a reader before it plans."""
        if self._options.stream is None:
            return self._narrowed
        stream, others = frozenset([self._options.stream]), self._narrowed.streams
        return replace(self._narrowed, streams=stream if others is None else stream & others)


class FilterTaker:
    """What a reader with ``pushdown=on`` has in place of the method ``pushFilters``.

    Spark refuses every read by a class that defines the method while
    ``spark.sql.python.filterPushdown.enabled`` is off, which is the default, and calls it while it is on.
    Which of the two holds is not to be known where the source is registered, and it may change later. So
    the class has the method it inherits, as Spark looks for it, and the reader has this, which Spark calls.

    Only on request, because Spark 4.3 plans a DataFrame for its last filter and uses that plan for all that
    is made of the DataFrame, also for what has another filter or none. docs/spark.md tells how to use it.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take note of the filters and leave all of them to Spark, too."""
        self._reader.take_filters(filters)
        return filters
