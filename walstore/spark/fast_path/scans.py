"""What the JVM reads of one log: runs of fragments of one kind, whole or cut. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from walstore.spark.fast_path.footers import KnownPart
from walstore.spark.fast_path.kinds import FragmentKind
from walstore.spark.partition import FragmentPart

MOST_SCANS: Final = 64
"""``minPartitions`` divides a read into no more scans: Spark takes some 30 ms to plan each."""


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
    """Offsets ``[start, limit)`` that are wanted, if the fragments hold others too."""

    @property
    def size_bytes(self) -> int:
        """Length of the fragments together."""
        return sum(part.size_bytes for part in self.parts)


def scans_of(
    topic: str, partition: int, url: str, found: Sequence[KnownPart], bounds: tuple[int, int]
) -> list[Scan]:
    """Return the scans for fragments of one log, of which ``bounds`` is wanted.

    Rows are compared with the bounds only in fragments that the bounds cut: there are at most two.
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
    """Return about ``count`` scans of about the same size, as far as there are fragments."""
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
