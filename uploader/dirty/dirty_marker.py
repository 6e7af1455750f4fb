"""Markers of a dirty log: which log was written where, as values. Pure.

Owns their JSON form, which is that of wal3's service (its ``collection_id`` is the name of the log here), and
how many markers become one entry per log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from uploader.format.document import (
    MOST_SMALL_BYTES,
    Fields,
    check_u64,
    read_document,
    serialise,
)
from walstore.errors import CorruptionError
from walstore.validation.arguments import as_text

_CLEAR = b'"clear"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirty:
    """A range of a log that was written and not yet compacted, as far as the dirty log knows."""

    name: str
    """Which log."""
    start: int
    """Offset of the first record."""
    limit: int
    """Offset after the last one."""
    first_us: int
    """When the first of it was noted, in microseconds since 1970 UTC; it stays through roll-ups."""
    reinserted: int = 0
    """How many roll-ups it has survived."""

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits, and an empty range; ValueError.

        TypeError for an invalid name or number: no reader could read the marker, nor any after it.
        """
        as_text(self.name, "the name of a log")
        check_u64(
            start=self.start,
            limit=self.limit,
            first_us=self.first_us,
            reinserted=self.reinserted,
        )
        if self.start >= self.limit:
            raise ValueError(f"not a stretch of a log: {self}")

    def serialise(self) -> bytes:
        """Return the record that notes it."""
        return serialise(
            {
                "mark_dirty": {
                    "collection_id": self.name,
                    "log_position": self.start,
                    "num_records": self.limit - self.start,
                    "reinsert_count": self.reinserted,
                    "initial_insertion_epoch_us": self.first_us,
                }
            }
        )

    def join(self, other: Dirty) -> Dirty:
        """Return the range that covers both. Joining a part of it again changes nothing."""
        return Dirty(
            name=self.name,
            start=min(self.start, other.start),
            limit=max(self.limit, other.limit),
            first_us=min(self.first_us, other.first_us),
            reinserted=max(self.reinserted, other.reinserted),
        )


@dataclass(frozen=True, slots=True)
class Purge:
    """A log is gone: earlier markers of it no longer matter."""

    name: str
    """Which log."""

    def __post_init__(self) -> None:
        """Refuse an invalid name; TypeError, ValueError."""
        as_text(self.name, "the name of a log")

    def serialise(self) -> bytes:
        """Return the record that says so."""
        return serialise({"purge": {"collection_id": self.name}})


def parse_marker(data: bytes, *, path: str) -> Dirty | Purge | None:
    """Read a record; None if it means nothing. CorruptionError, naming ``path``, if it is not a marker."""
    if data == _CLEAR:
        return None
    return read_document(data, _marker, path=path, most_bytes=MOST_SMALL_BYTES)


def coalesce(known: dict[str, Dirty], markers: Iterable[Dirty | Purge | None]) -> None:
    """Merge markers, in order, into what is known of each log."""
    for marker in markers:
        if isinstance(marker, Purge):
            known.pop(marker.name, None)
        elif marker is not None:
            before = known.get(marker.name)
            known[marker.name] = marker if before is None else before.join(marker)


def _marker(fields: Fields) -> Dirty | Purge:
    if fields.has("mark_dirty"):
        dirty = fields.object("mark_dirty")
        start = dirty.number("log_position")
        return Dirty(
            name=dirty.text("collection_id"),
            start=start,
            limit=start + dirty.number("num_records"),
            reinserted=dirty.number("reinsert_count"),
            first_us=dirty.number("initial_insertion_epoch_us"),
        )
    if fields.has("purge"):
        return Purge(fields.object("purge").text("collection_id"))
    raise CorruptionError("neither a marker nor a purge", path=fields.path)
