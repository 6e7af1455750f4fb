"""What one Spark task reads: a picklable value, sent from the planner to the executors. Pure.

It contains everything its task needs except credentials, which come from the environment of the process that
reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple, Protocol, TypeVar

from pyspark.sql.datasource import InputPartition

from uploader.format.entries import Fragment
from walstore.core.format.segment import SegmentIndex


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a local segment file."""

    name: str
    """File name in the log's directory."""
    segment_start: int
    """First offset of the whole segment."""
    start: int
    limit: int
    position: int
    """Byte position of a batch that contains ``start`` or precedes it."""
    size_bytes: int
    """About how many bytes will be read."""


@dataclass(frozen=True, slots=True)
class FragmentPart:
    """A fragment, or a part of it."""

    start: int
    limit: int
    entry: Fragment = field(repr=False)
    """The fragment's entry in the manifest."""
    is_ours: bool = False
    """Whether the manifest says that the fragment has the columns of ours."""

    @property
    def size_bytes(self) -> int:
        """Length of the object."""
        return self.entry.num_bytes


class LogPartition(InputPartition):
    """Consecutive records ``[start, limit)`` of one log."""

    def __init__(
        self, *, topic: str, partition: int = 0, start: int, limit: int, size_bytes: int
    ) -> None:
        super().__init__((topic, partition, start, limit))
        self.topic = topic
        self.partition = partition
        """Number of the partition; 0 for a log that is not partitioned."""
        self.start = start
        self.limit = limit
        self.size_bytes = size_bytes
        """About how many stored bytes the task reads."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic}/{self.partition} [{self.start}, {self.limit}))"


class FilePartition(LogPartition):
    """Records in the segment files of a log's directory."""

    def __init__(
        self,
        *,
        topic: str,
        partition: int = 0,
        directory: str,
        tier_url: str | None,
        parts: Sequence[FilePart],
    ) -> None:
        super().__init__(topic=topic, partition=partition, **_bounds(parts))
        self.directory = directory
        self.tier_url = tier_url
        self.parts = parts


class FragmentPartition(LogPartition):
    """Records in the fragments of an object store."""

    def __init__(
        self, *, topic: str, partition: int = 0, url: str, parts: Sequence[FragmentPart]
    ) -> None:
        super().__init__(topic=topic, partition=partition, **_bounds(parts))
        self.url = url
        self.parts = parts


def _bounds(parts: Sequence[FilePart] | Sequence[FragmentPart]) -> dict[str, int]:
    return {
        "start": parts[0].start,
        "limit": parts[-1].limit,
        "size_bytes": sum(part.size_bytes for part in parts),
    }


class Span(NamedTuple):
    """Records ``[start, limit)`` of one log that are stored together."""

    start: int
    limit: int
    size_bytes: int
    """About how many stored bytes they take."""


PARTITION_BYTES: Final = 32 << 20
"""About how many stored bytes a task reads, unless ``minPartitions`` asks for smaller tasks."""


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


_P = TypeVar("_P", bound=_Sized)


def group(parts: Iterable[_P], most_bytes: int, most: int | None = None) -> list[list[_P]]:
    """Group consecutive parts, up to ``most`` and ``most_bytes``; a larger part is a group of its own."""
    groups: list[list[_P]] = []
    size_bytes = 0
    for part in parts:
        is_full = bool(groups) and len(groups[-1]) == most
        if not groups or is_full or size_bytes + part.size_bytes > most_bytes:
            groups.append([])
            size_bytes = 0
        groups[-1].append(part)
        size_bytes += part.size_bytes
    return groups


@dataclass(frozen=True, slots=True)
class FileExtent:
    """A segment file as far as its records are durable."""

    name: str
    start: int
    limit: int
    end_position: int
    """Byte position after the last of these records, approximately."""
    index: SegmentIndex


def cut_file(extent: FileExtent, start: int, limit: int, most_bytes: int) -> list[FilePart]:
    """Cut ``[start, limit)`` of a file into about equal parts, as far as its index allows."""
    index = extent.index
    low = index.locate(start)
    high = extent.end_position if limit >= extent.limit else max(low, index.locate(limit))
    count = max(1, -(-(high - low) // most_bytes))
    cuts = [start]
    for at in range(1, count):
        entry = bisect_left(index.positions, low + (high - low) * at // count)
        if entry < len(index.starts) and cuts[-1] < index.starts[entry] < limit:
            cuts.append(index.starts[entry])
    positions = [low, *(index.locate(cut) for cut in cuts[1:]), high]
    return [
        FilePart(
            name=extent.name,
            segment_start=extent.start,
            start=cut,
            limit=until,
            position=position,
            size_bytes=max(0, end - position),
        )
        for (cut, until), (position, end) in zip(
            pairwise([*cuts, limit]), pairwise(positions), strict=True
        )
    ]


def clip(bounds: Sequence[int], start: int, limit: int) -> tuple[int, int]:
    """Return the intersection of the half-open interval ``bounds`` and ``[start, limit)``."""
    return max(bounds[0], start), min(bounds[1], limit)
