"""The change stream: the updates of a collection, each once, micro-batch by micro-batch. Blocking I/O.

An offset is a frontier: all updates at earlier times were read. A micro-batch depends on its two frontiers
alone: the updates between them never change, and compaction keeps their times while the critical reader of
the query holds them.

A stream that begins with what was compacted before it (frontier 0) reads that as the content at the first
time that the reader holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from uploader import CollectionScan
from uploader.versioned import updates
from walstore import (
    ContentionError,
    CorruptionError,
    OutcomeUnknownError,
    SinceViolationError,
    StorageUnavailableError,
)
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.spark.features import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from walstore.spark.streaming.admission import budget_of, check_limits, default_limit, end_of
from walstore.spark.versioned.change_files import (
    ChangePartition,
    as_changes,
    divide_changes,
    read_pieces,
)
from walstore.spark.versioned.objects import ScanObjects
from walstore.spark.versioned.options import ChangeOptions
from walstore.spark.versioned.query_hold import QueryHold
from walstore.spark.versioned.reading import (
    BATCH_ROWS,
    RangePartition,
    divide,
    narrowed,
    read_ranges,
)
from walstore.spark.versioned.types import change_schema, check_selected, to_spark

logger = logging.getLogger("walstore.spark")

JsonOffset = dict[str, int]


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a collection. Opens it on first use, so that a copy that only reads opens nothing.

    One copy, in a process of its own, returns offsets and plans; others, on the executors, read.
    """

    def __init__(
        self, options: ChangeOptions, schema: StructType, *, clock: Clock | None = None
    ) -> None:
        """Follow the collection of ``options``, as the columns in ``schema``. Tests pass a clock."""
        check_limits(options.most, "maxTimesPerTrigger, maxRowsPerTrigger and maxBytesPerTrigger")
        self._options = options
        self._schema = schema
        self._clock = clock or SystemClock()
        self._hold: QueryHold | None = None
        self._upper = 0
        self._polled: float | None = None
        self._target: int | None = None

    # -- offsets -----------------------------------------------------------------------------

    def initialOffset(self) -> JsonOffset:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts; the same after a crash."""
        return _json(self._open().begin(self._options.starting))

    def latestOffset(  # noqa: N802
        self, start: JsonOffset | None = None, limit: ReadLimit | None = None
    ) -> JsonOffset:
        """Return where the micro-batch from ``start`` ends. Spark 4.0 and 4.1 pass no start."""
        hold = self._open()
        if start is None and not hold.has_begun:
            # The start is asked for later, and must not be beyond this end. A query that has a checkpoint
            # does not need it; then it does not matter whether the collection still has it.
            with suppress(SinceViolationError):
                hold.begin(self._options.starting)
        end = self._poll() if self._target is None else self._target
        begin = _frontier(start) if start is not None else hold.first
        if end <= (hold.since if begin == 0 else begin):
            return _json(begin)
        if start is None or limit is None or isinstance(limit, ReadAllAvailable):
            return _json(end)
        if begin == 0 and hold.since:
            return _json(hold.since + 1)  # the content, which cannot be divided by time
        return _json(max(self._admitted(hold, begin, end, limit), begin + 1))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch that the options set."""
        return default_limit(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Freeze the end: the query will read up to the collection's present end."""
        self._open()
        self._polled = None
        self._target = self._poll()

    def reportLatestOffset(self) -> JsonOffset:  # noqa: N802
        """Return the collection's end, so that Spark can report the query's lag."""
        self._open()
        return _json(self._poll())

    # -- planning and reading ----------------------------------------------------------------

    def partitions(self, start: JsonOffset, end: JsonOffset) -> list[InputPartition]:
        """Return the partitions of the updates between two frontiers."""
        hold = self._open()
        first, limit = _frontier(start), _frontier(end)
        if first >= limit:
            return []
        if limit > self._upper:
            self._polled = None
        if limit > self._poll():
            raise CorruptionError(
                f"the query has read up to {limit} and the collection ends at {self._upper}: it is another "
                "one than the checkpoint is of, or lost updates; start again with another checkpointLocation",
                path=self._options.location.text,
                expected=limit,
                found=self._upper,
            )
        found: list[InputPartition] = []
        after = first - 1
        url, least = self._options.location.text, self._options.min_partitions
        if first == 0 and hold.since:
            after = min(hold.since, limit - 1)
            content = self._planned(hold, as_of=after, after=None)
            found += divide(url, content, least)
        if after < limit - 1:
            scan = self._planned(hold, as_of=limit - 1, after=after)
            found += divide_changes(url, scan, least)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of one partition."""
        if not isinstance(partition, (RangePartition, ChangePartition)):
            return
        names = self._schema.fieldNames()
        whole = partition.scan.schema
        schema = narrowed(whole, names)
        with ScanObjects(partition.url, partition.scan) as objects:
            if isinstance(partition, RangePartition):
                at = partition.scan.as_of
                tables: Iterator[pa.Table] = (
                    updates.as_updates(table, schema, at=at)
                    for table in read_ranges(partition, objects, schema)
                )
            else:
                tables = read_pieces(partition, objects, schema)
            for table in tables:
                rows = as_changes(table, schema).select(names)
                yield from to_spark(rows).to_batches(BATCH_ROWS)

    # -- behind the query --------------------------------------------------------------------

    def commit(self, end: JsonOffset) -> None:
        """Give up what was read. Spark calls this one batch late, and never for the last batch."""
        hold = self._open()
        try:
            hold.give_up(_frontier(end))
        except (StorageUnavailableError, OutcomeUnknownError, ContentionError) as error:
            logger.warning(
                "the reader %s stays where it is for now: %s", self._options.reader, error
            )

    def stop(self) -> None:
        """Release connections; the reader keeps its hold."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.close()

    # -- inside ------------------------------------------------------------------------------

    def _open(self) -> QueryHold:
        if self._hold is None:
            self._hold = QueryHold.open(self._options)
        return self._hold

    def _poll(self) -> int:
        """Return the collection's end; looks at most once in the poll interval."""
        now = self._clock.monotonic()
        if self._polled is None or now - self._polled >= self._options.poll_seconds:
            self._upper = self._open().upper()
            self._polled = now
        return self._upper

    def _planned(self, hold: QueryHold, *, as_of: int, after: int | None) -> CollectionScan:
        scan = hold.planned_scan(self._options, as_of=as_of, after=after)
        check_selected(self._schema, change_schema(scan.schema))  # it may have changed since load()
        return scan

    def _admitted(self, hold: QueryHold, start: int, end: int, limit: ReadLimit) -> int:
        """Return where a micro-batch of the wanted size from ``start`` ends."""
        budget = budget_of(limit, self._options.most)
        if budget.times is not None:
            end = min(end, start + budget.times)
        if budget.rows is None and budget.size_bytes is None:
            return end
        return end_of(hold.stretches(start, end), start, end, budget)


def _frontier(offset: JsonOffset) -> int:
    found = offset.get("frontier")
    if type(found) is not int or found < 0:
        raise CorruptionError(
            "the checkpoint has an offset that is no frontier",
            path="checkpointLocation",
            found=offset,
        )
    return found


def _json(frontier: int) -> JsonOffset:
    return {"frontier": frontier}
