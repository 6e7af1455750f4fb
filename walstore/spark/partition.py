"""What one Spark task reads. Picklable values; they travel from the planner to the executors.

A partition names everything its task needs, and no credentials: those come from the environment of the
process that reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from uploader.manifest import Fragment


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a local segment file."""

    name: str
    """File name in the log's directory."""
    segment_start: int
    """First offset of the whole segment."""
    start: int
    limit: int
    at_offset: int
    """First offset of a batch at or before the one that holds ``start``."""
    at_position: int
    """Byte at which that batch begins."""
    size_bytes: int
    """About how many bytes will be read."""


@dataclass(frozen=True, slots=True)
class FragmentPart:
    """A fragment, or a part of it."""

    entry: Fragment = field(repr=False)
    start: int
    limit: int

    @property
    def size_bytes(self) -> int:
        """Length of the object."""
        return self.entry.num_bytes


class EmptyPartition(InputPartition):
    """No records. Spark wants one partition even of nothing."""

    def __init__(self) -> None:
        super().__init__(None)


class LogPartition(InputPartition):
    """Consecutive records ``[start, limit)`` of one log."""

    def __init__(self, *, topic: str, start: int, limit: int) -> None:
        super().__init__((topic, start, limit))
        self.topic = topic
        self.start = start
        self.limit = limit

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic} [{self.start}, {self.limit}))"


class FilePartition(LogPartition):
    """Records in the files of a log's directory."""

    def __init__(
        self, *, topic: str, directory: str, tier_url: str | None, parts: tuple[FilePart, ...]
    ) -> None:
        super().__init__(topic=topic, start=parts[0].start, limit=parts[-1].limit)
        self.directory = directory
        self.tier_url = tier_url
        """Where to find what retention has deleted since the read was planned."""
        self.parts = parts


class FragmentPartition(LogPartition):
    """Records in the fragments of an object store."""

    def __init__(self, *, topic: str, url: str, parts: tuple[FragmentPart, ...]) -> None:
        super().__init__(topic=topic, start=parts[0].start, limit=parts[-1].limit)
        self.url = url
        self.parts = parts
