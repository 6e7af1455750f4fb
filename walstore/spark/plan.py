"""Planning a read: from bounds and sizes to partitions. Pure: no I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from walstore.errors import InvalidSettingsError, OffsetNotWrittenError, OffsetTrimmedError
from walstore.segment import HEADER_BYTES, SegmentIndex
from walstore.spark.options import Bound, Edge, Moment, ReadOptions
from walstore.spark.partition import FilePart

PARTITION_BYTES: Final = 32 << 20
"""About how many stored bytes a task reads when ``minPartitions`` does not ask for less."""


class Log(Protocol):
    """What planning asks of a log."""

    @property
    def head(self) -> int:
        """First offset that can be read."""

    @property
    def limit(self) -> int:
        """Offset after the last one that can be read."""

    def offset_at(self, timestamp_us: int) -> int | None:
        """Return the first offset that is not older than a time, or None."""


class Part(Protocol):
    """The least that can be given to a task."""

    @property
    def size_bytes(self) -> int:
        """How many stored bytes it is about."""


_P = TypeVar("_P", bound=Part)


@dataclass(frozen=True, slots=True)
class Interval:
    """Resolved offsets to read."""

    start: int
    limit: int
    lost: str | None = None
    """What had to be left out, where the options allow that; for the log."""


def resolve(options: ReadOptions, log: Log) -> Interval:
    """Turn the options' bounds into offsets.

    Raises OffsetTrimmedError or OffsetNotWrittenError for offsets that are not there (with
    ``failOnDataLoss=false`` they are left out), InvalidSettingsError for bounds that contradict each
    other or a start by time that no record meets.
    """
    limit = _limit(options, log)
    start = _start(options, log)
    asked = start
    lost = None
    if start > log.limit or limit > log.limit:
        beyond = max(start, limit)
        if options.fail_on_data_loss:
            raise OffsetNotWrittenError(
                "the offset has not been written yet; failOnDataLoss=false reads up to the tail",
                requested=beyond,
                head=log.head,
                tail=log.limit,
            )
        start, limit = min(start, log.limit), min(limit, log.limit)
        lost = f"offsets from {log.limit} to {beyond} are not written"
    if start > limit:
        raise InvalidSettingsError(f"the read starts at offset {asked} and ends before it, at {limit}")
    if start < limit and isinstance(options.starting, int) and start < log.head:
        if options.fail_on_data_loss:
            raise OffsetTrimmedError(
                "the start was removed from the log; failOnDataLoss=false starts at the head",
                requested=start,
                head=log.head,
                tail=log.limit,
            )
        lost = f"offsets from {start} to {log.head} were removed"
        start = log.head
    return Interval(start, max(start, limit), lost)
