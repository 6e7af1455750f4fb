"""A micro-batch: where it ends, given where it starts, and what its tasks read. Blocking.

After a crash Spark replays a batch from the two offsets in its checkpoint, so a batch depends on these alone.
A log that is new to the stream therefore joins it with no records: the batch's end records where it begins,
and the next batch reads from there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack

from walstore import CorruptionError, LogNotFoundError
from walstore.core.offset_range import OffsetRange
from walstore.spark.bounds import LogName, Offsets, show
from walstore.spark.options import Budget
from walstore.spark.partitions import LogPartition, Span
from walstore.spark.plan import ReadInterval, divide
from walstore.spark.planned_log import PlannedLog
from walstore.spark.streaming.admission import by_bytes, by_rows
from walstore.spark.streaming.poller import PolledLog

logger = logging.getLogger("walstore.spark")


class MicroBatches:
    """Plans the micro-batches of one stream."""

    def __init__(
        self,
        logs: Mapping[LogName, PolledLog],
        *,
        fail_on_data_loss: bool,
        min_partitions: int,
        most_records: int | None,
    ) -> None:
        """Plan over ``logs``, to which the poller may add."""
        self._logs = logs
        self._fail_on_data_loss = fail_on_data_loss
        self._min_partitions = min_partitions
        self._most_records = most_records
        self._warned: set[str] = set()

    def end(self, start: Offsets, tails: Offsets, budget: Budget) -> dict[LogName, int]:
        """Return where the batch from ``start`` ends, at most at ``tails``.

        Raises OffsetTrimmedError or LogNotFoundError if unread records were removed, unless data loss is
        allowed. No log ends before ``start``.
        """
        self._check_all_there(start)
        joining = {name: self._head(name) for name in tails if name not in start}
        begin = {
            name: self._begin(name, start[name], tail)
            for name, tail in tails.items()
            if name in start
        }
        ends = {name: tails[name] for name in begin}
        if budget.rows is not None:
            ends = by_rows(begin, ends, budget.rows)
        if budget.size_bytes is not None:
            spans = {name: self._spans(name, begin[name], ends[name], budget) for name in begin}
            ends = by_bytes(begin, spans, budget.size_bytes)
        return {**start, **ends, **joining}

    def partitions(self, start: Offsets, end: Offsets) -> list[LogPartition]:
        """Return what the tasks of a batch read. Raises as :meth:`end`."""
        self._check_all_there(end)
        self._check_none_forgotten(start, end)
        reads: list[tuple[PlannedLog, ReadInterval]] = []
        with ExitStack() as opened:
            for name, limit in sorted(end.items()):
                if name not in self._logs or start.get(name) == limit:
                    continue
                _check_forward(name, start.get(name, 1), limit)
                # One snapshot must decide both what is trimmed and what is planned.
                planned = opened.enter_context(self._plan(name))
                if name in start:
                    begin = self._readable(name, planned, start[name], limit)
                else:
                    # Spark 4.0 and 4.1 do not pass the start, so a log cannot join without records.
                    begin = min(planned.head, limit)
                reads.append((planned, ReadInterval(begin, limit)))
            found = divide(reads, self._min_partitions, self._most_records)
        _check_whole(reads, found)
        return found

    # -- inside ------------------------------------------------------------------------------

    def _spans(self, name: LogName, start: int, limit: int, budget: Budget) -> list[Span]:
        if start >= limit:
            return []
        assert budget.size_bytes is not None
        with self._plan(name) as planned:
            return planned.spans(start, limit, budget.size_bytes)

    def _begin(self, name: LogName, start: int, limit: int) -> int:
        """Return the first readable offset of ``[start, limit)``; plans only if it may be trimmed."""
        if start >= self._logs[name].head or start == limit:
            return start
        with self._plan(name) as planned:
            return self._readable(name, planned, start, limit)

    def _readable(self, name: LogName, planned: PlannedLog, start: int, limit: int) -> int:
        """Return the first readable offset of ``[start, limit)``."""
        if not planned.is_trimmed(start):
            return start
        head = planned.head
        if self._fail_on_data_loss:
            OffsetRange(head, planned.limit).check_head(
                start,
                f"records of {show(name)} were removed before the query read them; "
                "failOnDataLoss=false continues at the head",
            )
        self._warn_once(
            f"{show(name)}: offsets [{start}, {min(head, limit)}) were removed before they were read"
        )
        return min(head, limit)

    def _check_all_there(self, offsets: Offsets) -> None:
        gone = sorted(offsets.keys() - self._logs.keys())
        if not gone:
            return
        text = f"{', '.join(map(show, gone))}: the query has read this log before, and now it is not there"
        if self._fail_on_data_loss:
            raise LogNotFoundError(
                f"{text}, or not asked for; failOnDataLoss=false continues without",
                location=show(gone[0]),
            )
        self._warn_once(text)

    def _check_none_forgotten(self, start: Offsets, end: Offsets) -> None:
        """Check that a batch ends in every log in which it begins.

        Spark 4.0 and 4.1 do not pass the start of a batch. If a log of a pattern was missing when the query
        restarted, the end returned to them lacks it, and so does every later offset in the checkpoint: if the
        log comes back, its records would be read a second time.
        """
        forgotten = sorted(start.keys() - end.keys())
        if not forgotten:
            return
        text = (
            f"{', '.join(map(show, forgotten))}: the query has read this log before, and it was not there "
            "when the query went on; this Spark keeps no offsets of it"
        )
        if self._fail_on_data_loss:
            raise LogNotFoundError(
                f"{text}: start again with another checkpointLocation, or continue with "
                "failOnDataLoss=false and read it from its head if it comes back",
                location=show(forgotten[0]),
            )
        self._warn_once(f"{text}; it is read from its head if it comes back")

    def _head(self, name: LogName) -> int:
        with self._plan(name) as planned:
            return planned.head

    def _plan(self, name: LogName) -> AbstractContextManager[PlannedLog]:
        return self._logs[name].plan()

    def _warn_once(self, text: str) -> None:
        """Log each warning once."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)


def _check_forward(name: LogName, start: int, limit: int) -> None:
    """Check that a log does not end before its start: Spark 4.0 and 4.1 plan up to the log's end."""
    if limit < start:
        raise CorruptionError(
            f"the query has read {show(name)} up to offset {start} and the log ended at {limit} when it went "
            "on: it is another log than the checkpoint is of, or it lost records; start again with another "
            "checkpointLocation",
            path=show(name),
            expected=start,
            found=limit,
        )


def _check_whole(reads: list[tuple[PlannedLog, ReadInterval]], found: list[LogPartition]) -> None:
    """Check that the tasks cover every record of the batch: a committed batch is never read again."""
    wanted = sum(interval.limit - interval.start for _, interval in reads)
    planned = sum(partition.limit - partition.start for partition in found)
    if planned != wanted:
        raise CorruptionError(
            f"a micro-batch has {wanted} records and its tasks would read {planned}",
            path=", ".join(map(repr, found)),
            expected=wanted,
            found=planned,
        )
