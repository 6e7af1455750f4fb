"""Values that callers see: durability levels, start positions, records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class _NoHeaders(Mapping[str, bytes]):
    """An empty mapping that cannot be changed and, unlike a mappingproxy, can be pickled."""

    __slots__ = ()

    def __getitem__(self, name: str) -> bytes:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "{}"


NO_HEADERS: Mapping[str, bytes] = _NoHeaders()
"""The headers of a record without any; one shared, immutable value."""


class Durability(StrEnum):
    """How safe a record must be before an append returns."""

    MEMORY = "memory"
    """Accepted and ordered; a crash of this process may still lose it."""
    DISK = "disk"
    """The sync that covers it has returned: it survives a crash of process and machine."""
    CLOUD = "cloud"
    """A manifest in object storage names it: it survives the loss of this machine's disk."""
    REPLICATED = "replicated"
    """Enough copies of a replicated log have it on disk: it survives the loss of one machine.
    InvalidSettingsError for any other log."""


DurabilityName = Literal["memory", "disk", "cloud", "replicated"]
AnyDurability: TypeAlias = Durability | DurabilityName
"""A level as callers pass it: a member of :class:`Durability`, or its word."""


class Start(StrEnum):
    """Where a reader begins without an offset or a time."""

    EARLIEST = "earliest"
    """The first retained record, in any tier."""
    LATEST = "latest"
    """The next record to become visible after the reader was made."""


class Record(NamedTuple):
    """One record, as delivered by readers. Immutable; compares and unpacks as a tuple."""

    offset: int
    """Position in the log; the first record of a log is 1."""
    value: bytes
    """What was appended; may be empty."""
    key: bytes | None = None
    """Optional key, as passed to the append."""
    stream: str | None = None
    """Name of the stream it was appended to, if any."""
    headers: Mapping[str, bytes] = NO_HEADERS
    """Optional application headers."""
    timestamp_us: int = 0
    """Microseconds since 1970 UTC; never less than that of an earlier record of the log."""

    @property
    def timestamp(self) -> datetime:
        """``timestamp_us`` as an aware datetime in UTC; at most the last moment of the year 9999."""
        return from_timestamp_us(self.timestamp_us)


def to_timestamp_us(moment: datetime) -> int:
    """Return microseconds since 1970 UTC of an aware datetime; ValueError for a naive one."""
    if moment.utcoffset() is None:
        raise ValueError(f"a datetime needs a time zone, got {moment!r}; use datetime.now(UTC)")
    return (moment - EPOCH) // timedelta(microseconds=1)


def from_timestamp_us(timestamp_us: int) -> datetime:
    """Return the aware UTC datetime of microseconds since 1970; the latest possible one if it is later."""
    try:
        return EPOCH + timedelta(microseconds=timestamp_us)
    except OverflowError:
        return _LAST
