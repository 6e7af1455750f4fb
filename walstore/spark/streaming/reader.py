"""StreamReader: Spark's interface to a stream, micro-batch by micro-batch.

One copy, in a process of its own, returns offsets and plans; others, on the executors, read. What they need
is in the partitions. Spark does not always call ``stop``, so nothing here relies on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from uploader import open_store
from walstore import CorruptionError, InvalidSettingsError, OffsetTrimmedError
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.spark.bounds import LogName, Offsets, from_json, show, to_json
from walstore.spark.features import ReadLimit, SupportsTriggerAvailableNow
from walstore.spark.logs import find_logs
from walstore.spark.options import Budget, StreamOptions, moves
from walstore.spark.planned_log import StoreOpener
from walstore.spark.rows import Projection
from walstore.spark.streaming.admission import budget_of, check_limits, default_limit
from walstore.spark.streaming.micro_batch import MicroBatches
from walstore.spark.streaming.poller import Poller, make_polled_log
from walstore.spark.streaming.stream_cursors import StreamCursors, initial_offsets
from walstore.spark.task import read_rows

logger = logging.getLogger("walstore.spark")

JsonOffsets = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows logs. Opens them on first use, so that a copy that only reads opens none."""

    def __init__(
        self,
        options: StreamOptions,
        names: Sequence[str],
        *,
        clock: Clock | None = None,
        open_store: StoreOpener = open_store,
    ) -> None:
        """Follow the logs of ``options``, as the columns ``names``.

        Tests pass a clock, and stores for the logs' URLs.
        """
        check_limits(
            options.most, "maxOffsetsPerTrigger, maxBytesPerTrigger and minOffsetsPerTrigger"
        )
        self._options = options
        self._names = tuple(names)
        self._clock = clock or SystemClock()
        self._open_store = open_store
        self._poller: Poller | None = None
        self._cursors: StreamCursors | None = None
        self._initial: dict[LogName, int] | None = None
        self._target: dict[LogName, int] | None = None
        self._is_resumed = False
        self._admitted: float | None = None

    # -- offsets -----------------------------------------------------------------------------

    def initialOffset(self) -> JsonOffsets:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts; every call returns the same.

        With ``cursorName`` also after a restart, until the cursor is moved.
        """
        if self._initial is None:
            logs = self._open().logs
            self._initial = initial_offsets(logs, self._options, self._cursors)
        return to_json(self._initial)

    def latestOffset(  # noqa: N802
        self, start: JsonOffsets | None = None, limit: ReadLimit | None = None
    ) -> JsonOffsets:
        """Return where the micro-batch from ``start`` ends.

        Spark 4.0 and 4.1 do not pass a start and get the tail.
        """
        poller = self._open()
        if start is None:
            self._resolve_first()
        if self._target is None:
            poller.poll()
        tails = poller.limits() if self._target is None else self._target
        if start is None:
            return to_json(tails)
        begin = from_json(start)
        self._refresh_behind(poller, begin)
        tails = poller.limits() if self._target is None else self._target
        budget = budget_of(limit, self._options.most)
        if self._waits(begin, tails, budget):
            return start
        return to_json(self._batches.end(begin, tails, budget))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch that the options set."""
        return default_limit(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Freeze the end: the query will read up to the current tails."""
        poller = self._open()
        poller.refresh_all()
        self._target = poller.limits()

    def reportLatestOffset(self) -> JsonOffsets:  # noqa: N802
        """Return the logs' tails, so that Spark can report the query's lag."""
        poller = self._open()
        poller.poll()
        return to_json(poller.limits())

    # -- planning and reading ----------------------------------------------------------------

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        """Return the partitions of ``[start, end)``; reads indexes and manifests, no records."""
        poller = self._open()
        self._is_resumed = True
        limit = from_json(end)
        self._refresh_behind(poller, limit)
        return [*self._batches.partitions(from_json(start), limit)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        stream = self._options.stream
        projection = Projection(self._names, None if stream is None else frozenset([stream]))
        return read_rows(partition, projection, fail_on_data_loss=self._options.fail_on_data_loss)

    # -- behind the query --------------------------------------------------------------------

    def commit(self, end: JsonOffsets) -> None:
        """Move the cursors to ``end``. Spark calls this one batch late, and never for the last batch.

        A failure is logged; the next call tries again.
        """
        poller = self._open()
        cursors, offsets = self._cursors, from_json(end)
        failed = {} if cursors is None else cursors.advance(poller.logs, offsets)
        for name, error in failed.items():  # the query continues without its cursor
            logger.warning(
                "cursor %s of %s was not moved to %d: %s",
                self._options.cursor, show(name), offsets[name], error,
            )  # fmt: skip

    def stop(self) -> None:
        """Release connections and threads."""
        poller, self._poller = self._poller, None
        cursors, self._cursors = self._cursors, None
        try:
            if cursors is not None:
                cursors.close()
        finally:
            if poller is not None:
                poller.close()

    # -- inside ------------------------------------------------------------------------------

    def _open(self) -> Poller:
        if self._poller is None:
            options = self._options
            by_pattern = options.selection.pattern is not None
            self._poller = Poller(
                find=partial(find_logs, options.location, options.selection),
                make_log=partial(
                    make_polled_log, use_tier=options.use_tier, open_store=self._open_store
                ),
                clock=self._clock,
                poll_seconds=options.poll_seconds,
                discovery_seconds=options.discovery_seconds if by_pattern else None,
            )
            self._batches = MicroBatches(
                self._poller.logs,
                fail_on_data_loss=options.fail_on_data_loss,
                min_partitions=options.min_partitions,
                most_records=options.most_records,
            )
            if options.cursor is not None:
                self._cursors = StreamCursors(options.cursor, self._poller.runner)
        return self._poller

    def _waits(self, begin: Offsets, tails: Offsets, budget: Budget) -> bool:
        """Return whether a micro-batch waits for more records.

        It waits no longer than the delay since the last one, or since the begin of the query; one that ends
        at what is there now does not wait.
        """
        if budget.least_rows is None or self._target is not None:
            return False
        now = self._clock.monotonic()
        if self._admitted is None:
            self._admitted = now
        known = [tails[name] - begin[name] for name in tails.keys() & begin.keys()]
        rows = sum(count for count in known if count > 0)
        is_late = now - self._admitted >= self._options.delay_seconds
        if rows < budget.least_rows and not (is_late and tails != begin):
            return True
        self._admitted = now
        return False

    def _resolve_first(self) -> None:
        """Resolve where the query starts before the end of its first batch is returned.

        Spark 4.0 and 4.1 record the first batch's end and only then ask for its start. Resolved that late,
        ``latest`` could be beyond that end, and the batch could never be read. If the query has a checkpoint,
        they plan an empty batch, but not always before this call. The options may then name offsets and logs
        that no longer exist, which does not matter.
        """
        if self._initial is not None or self._is_resumed:
            return
        try:
            self.initialOffset()
        except (OffsetTrimmedError, InvalidSettingsError):
            if moves(self._options.starting):
                raise

    def _refresh_behind(self, poller: Poller, offsets: Offsets) -> None:
        """Refresh logs whose offsets in Spark's checkpoint are beyond the limit known here."""
        logs = poller.logs
        behind = [name for name in offsets if name in logs and logs[name].limit < offsets[name]]
        if behind:
            poller.refresh_all(behind)
        for name in behind:
            if logs[name].limit < offsets[name]:
                raise CorruptionError(
                    f"the query has read {show(name)} up to offset {offsets[name]} and the log ends at "
                    f"{logs[name].limit}: it is another log than the checkpoint is of, or it lost records; "
                    "start again with another checkpointLocation",
                    path=show(name),
                    expected=offsets[name],
                    found=logs[name].limit,
                )
