"""Plans which fragments the JVM reads, and what remains for the Python source. Blocking I/O.

The plan is that of ``format("walstore")``. Of a local log's files only those remain whose records are in no
fragment yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from walstore import LogNotFoundError, WalError
from walstore.spark.fast_path.footers import FragmentKind, KnownPart, read_footers
from walstore.spark.filters import Narrowed
from walstore.spark.location import Location
from walstore.spark.options import ReadOptions
from walstore.spark.partition import FilePartition, FragmentPart, FragmentPartition, LogPartition
from walstore.spark.planner import plan_read
from walstore.spark.store import StoreLog

logger = logging.getLogger("walstore.spark")

PARALLEL: Final = 8
"""Logs whose footers are read concurrently."""
_ANY_SIZE: Final = 1 << 62
MOST_SCANS: Final = 64
"""Most scans into which ``minPartitions`` divides a read: Spark takes some 30 ms to plan each."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Fragments of one log that one Parquet scan reads."""

    topic: str
    partition: int
    url: str
    """The log's store."""
    kind: FragmentKind
    parts: tuple[FragmentPart, ...] = field(repr=False)
    cut: tuple[int, int] | None = None
    """Offsets ``[start, limit)`` to read, if the fragments contain others too."""

    @property
    def size_bytes(self) -> int:
        """Length of the fragments together."""
        return sum(part.size_bytes for part in self.parts)


def scans_of(
    topic: str, partition: int, url: str, found: Sequence[KnownPart], bounds: tuple[int, int]
) -> list[Scan]:
    """Return the scans of one log's fragments for the offsets ``bounds``.

    Only the fragments that the bounds cut, at most two, are scanned with a filter on the offset.
    """
    whole: dict[FragmentKind, list[FragmentPart]] = {}
    cut: dict[FragmentKind, list[FragmentPart]] = {}
    for part, kind in found:
        is_whole = (part.start, part.limit) == (part.entry.start, part.entry.limit)
        (whole if is_whole else cut).setdefault(kind, []).append(part)
    return [
        *(Scan(topic, partition, url, kind, tuple(parts)) for kind, parts in whole.items()),
        *(Scan(topic, partition, url, kind, tuple(parts), bounds) for kind, parts in cut.items()),
    ]


def divide(scans: Sequence[Scan], count: int) -> list[Scan]:
    """Return about ``count`` scans of about the same size, as far as the fragments allow."""
    total = sum(scan.size_bytes for scan in scans) or 1
    goal = min(count, MOST_SCANS)
    if len(scans) >= goal:
        return list(scans)
    return [piece for scan in scans for piece in _pieces(scan, goal * scan.size_bytes // total)]


def _pieces(scan: Scan, count: int) -> Iterable[Scan]:
    parts = scan.parts
    count = max(1, min(count, len(parts)))
    for at in range(count):
        low, high = len(parts) * at // count, len(parts) * (at + 1) // count
        yield replace(scan, parts=parts[low:high])


@dataclass(frozen=True, slots=True)
class FileRange:
    """Records that are only in the files of a log's directory."""

    topic: str
    partition: int
    directory: str
    start: int
    limit: int


@dataclass(frozen=True, slots=True)
class Fragments:
    """Consecutive fragments of one log."""

    topic: str
    partition: int
    url: str
    parts: tuple[FragmentPart, ...]

    @property
    def bounds(self) -> tuple[int, int]:
        """The offsets to read."""
        return self.parts[0].start, self.parts[-1].limit

    def scans(self, stream: str | None) -> list[Scan]:
        """Read the fragments' footers; see :func:`walstore.spark.fast_path.footers.read_footers`."""
        found = read_footers(self.url, self.parts, stream)
        return scans_of(self.topic, self.partition, self.url, found, self.bounds)


@dataclass(frozen=True, slots=True)
class FastPathPlan:
    """What the JVM reads, and what the Python source reads."""

    fragments: Sequence[Fragments]
    files: Sequence[FileRange]

    def scans(self, stream: str | None) -> list[Scan]:
        """Read all footers and return the scans."""
        with ThreadPoolExecutor(PARALLEL, "walstore-footers") as threads:
            looks = [threads.submit(found.scans, stream) for found in self.fragments]
        return [scan for look in looks for scan in look.result()]


def plan(options: ReadOptions) -> FastPathPlan:
    """Plan a read; errors as for :func:`walstore.spark.planner.plan_read`."""
    fragments: list[Fragments] = []
    files: list[FileRange] = []
    for members in _by_log(plan_read(options, Narrowed())):
        stored = [found for found in members if isinstance(found, FragmentPartition)]
        local = [found for found in members if isinstance(found, FilePartition)]
        if stored:
            fragments.append(_join(stored))
        if local:
            start, limit = local[0].start, local[-1].limit
            shipped = _shipped(local[0], start, limit)
            if shipped is not None:
                fragments.append(shipped)
                start = shipped.bounds[1]
            if start < limit:
                first = local[0]
                files.append(FileRange(first.topic, first.partition, first.directory, start, limit))
    return FastPathPlan(fragments, files)


def _by_log(partitions: Iterable[LogPartition]) -> list[list[LogPartition]]:
    found: dict[tuple[str, int], list[LogPartition]] = {}
    for partition in partitions:
        found.setdefault((partition.topic, partition.partition), []).append(partition)
    return list(found.values())


def _join(partitions: Sequence[FragmentPartition]) -> Fragments:
    first = partitions[0]
    parts = tuple(part for partition in partitions for part in partition.parts)
    return Fragments(first.topic, first.partition, first.url, parts)


def _shipped(files: FilePartition, start: int, limit: int) -> Fragments | None:
    """Return the fragments that contain the first of the files' records, if any.

    The files have all records, so a tier that does not answer only makes the read slower.
    """
    if files.tier_url is None:
        return None
    location = Location(files.tier_url, is_store=True, topic=files.topic)
    try:
        with closing(StoreLog(location, partition=files.partition)) as tier:
            limit = min(limit, tier.limit)
            if start >= limit or tier.is_trimmed(start):
                return None
            found = tier.partitions(start, limit, _ANY_SIZE)
    except LogNotFoundError:
        return None  # nothing has been shipped yet
    except WalError as error:
        logger.warning("%s is read from its files: %s", files.topic, error)
        return None
    return _join([partition for partition in found if isinstance(partition, FragmentPartition)])
