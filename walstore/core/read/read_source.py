"""What a reader reads from: a source, and the parts that only some sources have."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from walstore.core.batches.batch import Batch
from walstore.records import Record


class ReadSource(Protocol):
    """What a reader reads from: a local log with its tiers, or a log in object storage."""

    @property
    def head(self) -> int:
        """First offset that can be read."""

    @property
    def limit(self) -> int:
        """Offset after the last one that is visible now."""

    @property
    def tail(self) -> int:
        """Next offset to be assigned; at least ``limit``."""

    async def wait_limit(self, limit: int) -> None:
        """Return when the visible limit has reached ``limit``, or when it never will because the log is
        sealed; raises when the log closes."""

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record."""

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first visible offset at or after a time, or the limit if all are older."""


@runtime_checkable
class StreamIndex(Protocol):
    """An optional part of a source: it knows without reading where a stream has no records."""

    async def skip_stream(self, name: str, position: int, limit: int) -> int:
        """Return an offset in ``[position, limit]`` with no record of stream ``name`` between ``position``
        and it; ``position`` itself if that is not known."""


@runtime_checkable
class LaggingSource(Protocol):
    """An optional part of a source: its limits are as last heard from another process."""

    async def refresh(self) -> None:
        """Ask for the present limits."""


@runtime_checkable
class SizedSource(Protocol):
    """An optional part of a source: it knows how large a batch is before it reads it."""

    async def stored_bytes(self, position: int) -> int:
        """Return what the batch at a visible position takes once it is read; 0 if it is in memory, or if
        that is not known. Raises nothing that reading there would not raise."""


@runtime_checkable
class LocalSource(Protocol):
    """An optional part of a source: it has the newest records in memory, so they are read without waiting."""

    async def wait_limit(self, limit: int, deadline: float | None = None) -> None:
        """As :meth:`ReadSource.wait_limit`; return at a time of the event loop in any case."""

    def read_cached(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """As :meth:`ReadSource.read`, but empty if the position is not in memory, or in case of an error:
        then reading raises it."""

    def share_records(self, position: int, limit: int) -> list[Record] | None:
        """Return all records of ``[position, limit)`` if other readers take the same ones now: made once
        for all of them. None if not; then read them."""
