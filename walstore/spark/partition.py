"""What one Spark task reads. Picklable values, sent from the planner to the executors.

A partition contains everything its task needs except credentials, which come from the environment of the
process that reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from uploader.format.entries import Fragment


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
