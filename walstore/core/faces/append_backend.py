"""AppendBackend: where appends go, a log that is open here or the connection to one that is served."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeAlias, TypedDict

from walstore.core.batches.append_request import check_records, gather_group
from walstore.core.batches.batch_builder import AppendRequest
from walstore.core.batches.conditions import AppendConditions
from walstore.core.faces.transaction import TransactionRecords
from walstore.records import AnyDurability, Durability


class RecordParts(TypedDict, total=False):
    """What the records of an append have besides their values; each may be left out."""

    key: bytes | None
    stream: str | None
    headers: Mapping[str, bytes] | None
    timestamp_us: int | datetime | None
    """An aware datetime, or microseconds since 1970 UTC; by default the time of the commit."""


class AppendOptions(RecordParts, total=False):
    """The same, and how safe they are before the append returns: by default as the log says."""

    durability: AnyDurability | None


GroupAppend: TypeAlias = Callable[..., Awaitable[range]]
"""Called as :meth:`AppendBackend.append_group`."""


class AppendBackend:
    """The way of appends into one log. Its callers check their event loop before."""

    most_group_bytes: int
    """Largest atomic group."""
    max_record_bytes: int
    """Largest record."""

    async def append_group(
        self,
        values: Iterable[bytes],
        conditions: AppendConditions | None,
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
        durability: AnyDurability | None = None,
    ) -> range:
        """Check a caller's arguments, append them as one atomic group, and return its offsets."""
        level = self.level(durability)
        times = None if timestamp_us is None else self.timestamp(timestamp_us)
        request = await gather_group(
            values, key, stream, headers, times, conditions, most_bytes=self.most_group_bytes
        )
        check_records(request, self.max_record_bytes)
        return await self.submit(request, level)

    def appends_of(self, producer_id: str) -> GroupAppend:
        """Return what appends the groups of one producer, whose conditions name it."""
        return self.append_group

    @abstractmethod
    def check_owner(self) -> None:
        """As of :class:`walstore.core.runtime.owned.Owned`."""

    @abstractmethod
    def level(self, durability: AnyDurability | None) -> Durability | None:
        """Check a level before anything is accepted at it; None, the log's own, may stay that."""

    def timestamp(self, timestamp_us: int | datetime) -> int | datetime:
        """Check a caller's timestamp, as far as that can be done here."""
        return timestamp_us

    async def append(self, record: AppendRequest, level: Durability | None) -> int:
        """Append one record and return its offset."""
        return (await self.submit(record, level)).start

    @abstractmethod
    async def submit(self, request: AppendRequest, level: Durability | None) -> range:
        """Accept a request, wait until it is as safe as ``level`` says, and return its offsets."""

    @abstractmethod
    def gather(
        self, conditions: AppendConditions, durability: AnyDurability | None
    ) -> TransactionRecords:
        """Return where the records of a new transaction are kept until its commit."""

    @abstractmethod
    def register(self, name: str) -> str | None:
        """Return the value of a register, as far as it is known here without asking."""

    @abstractmethod
    def last_sequence(self, producer_id: str) -> Callable[[], Awaitable[int]]:
        """Return what asks for the number of a producer's newest append."""

    @abstractmethod
    async def take_fence(self, owner: str, register: str) -> str:
        """Make ``owner`` the holder of a fence, durably, and return the register's value."""

    @abstractmethod
    async def open_stream(self, name: str, metadata: Mapping[str, str]) -> None:
        """Open a stream; durable when this returns."""

    @abstractmethod
    async def close_stream(self, name: str) -> None:
        """Close a stream; durable when this returns."""

    @abstractmethod
    async def wait_durable(self, offset: int, level: Durability | None) -> None:
        """Return when the record at ``offset`` is as safe as ``level`` says."""

    @abstractmethod
    async def flush(self) -> None:
        """Return when everything accepted is on disk."""

    @abstractmethod
    async def trim(self, before: int) -> int:
        """Remove all records below ``before`` and return the new head."""

    @abstractmethod
    async def rotate(self) -> None:
        """Seal the active segment."""
