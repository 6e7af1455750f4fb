"""Plans a read: from options and a log's extent to offsets and partitions. Pure: no I/O of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from walstore import InvalidSettingsError
from walstore.core.offset_range import OffsetRange
from walstore.spark.bounds import Bound, Edge, TimeBound
from walstore.spark.partitions import PARTITION_BYTES, LogPartition
from walstore.spark.planned_log import PlannedLog


@dataclass(frozen=True, slots=True)
class ReadInterval:
    """Offsets to read."""

    start: int
    limit: int
    lost: str | None = None
    """Requested offsets that are not available, if the options allow to leave them out."""


def resolve(
    log: PlannedLog,
    starting: Bound,
    ending: Bound,
    *,
    needs_record: bool = True,
    fail_on_data_loss: bool = True,
) -> ReadInterval:
    """Turn the bounds of one log into offsets.

    Raises OffsetTrimmedError or OffsetNotWrittenError for offsets that are not available (without
    ``fail_on_data_loss`` they are left out instead), and InvalidSettingsError for bounds that
    contradict each other or, with ``needs_record``, a starting time after the last record.
    """
    start = start_offset(log, starting, needs_record=needs_record)
    limit = limit_offset(log, ending)
    lost = []
    beyond = max(start, limit)
    if beyond > log.limit:
        if fail_on_data_loss:
            OffsetRange(log.head, log.limit).check_tail(
                beyond,
                "the read would go beyond the log's tail; failOnDataLoss=false reads what is there",
            )
        lost.append(f"offsets [{log.limit}, {beyond}) are not written yet")
        start, limit = min(start, log.limit), min(limit, log.limit)
    if start > limit:
        raise InvalidSettingsError(
            f"the read would start at offset {start} and end before it, at {limit}"
        )
    if start < limit and log.is_trimmed(start):
        if fail_on_data_loss:
            OffsetRange(log.head, log.limit).check_head(
                start,
                "the read would start before the log's head; failOnDataLoss=false starts at the head",
            )
        lost.append(f"offsets [{start}, {min(log.head, limit)}) were removed from the log")
        start = min(log.head, limit)
    return ReadInterval(start, limit, "; ".join(lost) or None)


def start_offset(log: PlannedLog, bound: Bound, *, needs_record: bool = True) -> int:
    """Return where a read starts, which may be before the head or beyond the tail.

    A starting time after the last record raises InvalidSettingsError if ``needs_record`` is set; else the
    read starts at the tail.
    """
    if bound is Edge.EARLIEST:
        return log.head
    if isinstance(bound, TimeBound):
        found = log.offset_at(bound.timestamp_us)
        if found is None and needs_record:
            raise InvalidSettingsError(
                "no record is as new as the starting time; to read nothing then, set "
                "startingOffsetsByTimestampStrategy=latest"
            )
        return log.limit if found is None else found
    # Kafka counts from 0 and a walstore log from 1; nothing was lost at 0.
    return log.limit if bound is Edge.LATEST else max(1, bound)


def limit_offset(log: PlannedLog, bound: Bound) -> int:
    """Return where a read ends, which may be beyond the tail."""
    if isinstance(bound, TimeBound):
        found = log.offset_at(bound.timestamp_us)
        return log.limit if found is None else found
    return log.limit if isinstance(bound, Edge) else max(1, bound)


def divide(
    reads: Sequence[tuple[PlannedLog, ReadInterval]],
    min_partitions: int,
    most_records: int | None = None,
) -> list[LogPartition]:
    """Return what each task reads, log by log.

    If ``min_partitions`` needs more tasks, they are made smaller; larger logs get more of them. A task with
    more than ``most_records`` is cut into equal ones, also within a fragment, which each of them then reads.
    """
    found = _cut(reads, PARTITION_BYTES, most_records)
    if found and len(found) < min_partitions:
        total = sum(partition.size_bytes for partition in found)
        found = _cut(reads, max(1, total // min_partitions), most_records)
    return found


def _cut(
    reads: Sequence[tuple[PlannedLog, ReadInterval]], most_bytes: int, most_records: int | None
) -> list[LogPartition]:
    return [
        small
        for log, interval in reads
        if interval.start < interval.limit
        for partition in log.partitions(interval.start, interval.limit, most_bytes)
        for small in _cut_records(log, partition, most_bytes, most_records)
    ]


def _cut_records(
    log: PlannedLog, partition: LogPartition, most_bytes: int, most_records: int | None
) -> list[LogPartition]:
    start, count = partition.start, partition.limit - partition.start
    if most_records is None or count <= most_records:
        return [partition]
    tasks = -(-count // most_records)
    cuts = [start + count * at // tasks for at in range(tasks + 1)]
    return [
        small for low, high in pairwise(cuts) for small in log.partitions(low, high, most_bytes)
    ]
