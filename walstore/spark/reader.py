"""The batch reader: plans on the driver, reads on the executors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from walstore.spark.directory import DirectoryLog
from walstore.spark.options import ReadOptions
from walstore.spark.partition import LogPartition
from walstore.spark.plan import partitions, resolve
from walstore.spark.read import read_rows
from walstore.spark.store import StoreLog

logger = logging.getLogger("walstore.spark")


class BatchReader(DataSourceReader):
    """Reads the log once, as far as it is durable when the query is planned.

    Picklable: Spark plans with one copy of it and reads with others.
    """

    def __init__(self, options: ReadOptions, names: Sequence[str]) -> None:
        """Read what ``options`` say, as the columns ``names``."""
        self._options = options
        self._names = tuple(names)

    def partitions(self) -> list[InputPartition]:
        """Look at the log and divide it; reads indexes and manifests, no records."""
        options = self._options
        with closing(open_log(options)) as log:
            interval = resolve(options, log)
            if interval.lost:
                logger.warning("%s: %s", options.location.topic, interval.lost)
            return [*partitions(log, interval, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        if not isinstance(partition, LogPartition):
            return iter(())  # what Spark plans when there is nothing to read
        return read_rows(partition, self._names, fail_on_data_loss=self._options.fail_on_data_loss)


def open_log(options: ReadOptions) -> StoreLog | DirectoryLog:
    """Return the log that the options name, ready to be planned over; the caller closes it."""
    if options.location.is_store:
        return StoreLog(options.location)
    return DirectoryLog(options.location, use_tier=options.use_tier)
