"""ReadableLog and Log: what all ways of having a log have in common, as types.

A function with ``log: walstore.ReadableLog`` takes what :meth:`walstore.Wal.open`,
:meth:`walstore.Wal.open_readonly`, :func:`walstore.connect`, :func:`walstore.connect_readonly` and
``uploader.CloudLog.open`` give. :class:`walstore.Log` is the first and the third of them, which also write.
Both are for annotations: what is promised, and what is raised, stands at each class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from walstore.records import AnyDurability, Start

if TYPE_CHECKING:
    from walstore.batches.conditions import Expected
    from walstore.cursors.consumer import Consumer
    from walstore.groups.group import Group
    from walstore.log.appenders import Fence, Producer
    from walstore.log.transaction import Transaction
    from walstore.positions.cursor import Cursor
    from walstore.positions.state import CursorInfo
    from walstore.read.reader import Reader
    from walstore.remote.appenders import RemoteFence, RemoteProducer
    from walstore.remote.transaction import RemoteTransaction
    from walstore.runtime.statistics import GroupInfo


class ReadableLog(Protocol):
    """A log that can be read, wherever it is."""

    @property
    def head(self) -> int:
        """First offset that can be read; equals :attr:`limit` where there is no record."""

    @property
    def limit(self) -> int:
        """Offset after the last record that can be read, as far as is known here; see :meth:`refresh`."""

    async def refresh(self) -> None:
        """Ask for the present :attr:`head` and :attr:`limit`."""

    def reader(
        self,
        start: Start | str | int | datetime = ...,
        *,
        stop: int | None = None,
        stream: str | None = None,
        follow: bool = ...,
    ) -> Reader:
        """Return a reader of records, from ``start`` on and before ``stop``. Say ``follow``: a log in a store
        stops at its end by default, the others wait for more."""

    async def offset_at(self, timestamp_us: int | datetime) -> int:
        """Return the first offset at or after a time, or the end of the log if all records are older."""

    async def timestamp_at(self, offset: int) -> int:
        """Return the timestamp of a record, in microseconds since 1970 UTC.

        OffsetTrimmedError, OffsetNotWrittenError.
        """

    async def aclose(self) -> None:
        """Release what it holds. Twice is allowed."""


class Log(ReadableLog, Protocol):
    """A log that can be read and written: opened here, or at a server."""

    @property
    def tail(self) -> int:
        """Next offset to be assigned."""

    @property
    def durable_limit(self) -> int:
        """Every offset below it is on disk."""

    @property
    def registers(self) -> Mapping[str, str]:
        """The log's registers."""

    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append one record and return its offset."""

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
        expect_offset: int | None = None,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
    ) -> range:
        """Append records as one atomic group."""

    def transaction(
        self,
        *,
        expect_offset: int | None = None,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
        durability: AnyDurability | None = None,
    ) -> Transaction | RemoteTransaction:
        """Return a transaction for ``async with``."""

    def producer(self, producer_id: str) -> Producer | RemoteProducer:
        """Return a producer, whose appends have sequence numbers."""

    async def fence(self, owner: str, *, register: str = "fence") -> Fence | RemoteFence:
        """Take a register over, and return what appends only while it is kept."""

    async def flush(self) -> None:
        """Return when everything accepted before the call is on disk."""

    async def wait_durable(self, offset: int, durability: AnyDurability = "disk") -> None:
        """Return when the record at ``offset`` is as safe as ``durability`` says."""

    async def open_stream(self, name: str, *, metadata: Mapping[str, str] | None = None) -> None:
        """Open a stream."""

    async def close_stream(self, name: str) -> None:
        """Close a stream for appends."""

    async def trim(self, before: int) -> int:
        """Remove all records below ``before``, and return the new head."""

    async def cursor(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = ...,
        lease_seconds: float | None = None,
    ) -> Cursor:
        """Return a handle on the named cursor."""

    async def cursors(self) -> list[CursorInfo]:
        """Return all cursors by name."""

    async def delete_cursor(self, name: str) -> bool:
        """Remove a cursor; return whether there was one."""

    def consumer(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = ...,
        auto_commit_seconds: float | None = 5.0,
        lease_seconds: float | None = None,
        stream: str | None = None,
        follow: bool = True,
        output: Any = None,
        concurrency: int = 1,
    ) -> Consumer[Any]:
        """Return a reader whose place is kept under a name."""

    def group(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = ...,
        stream: str | None = None,
        ack_wait_seconds: float = 30.0,
        max_deliver: int | None = None,
        max_ack_pending: int = 1000,
        is_ordered: bool = False,
        dead_letters: str | None = None,
    ) -> Group:
        """Return a member of a group, whose members share the records."""

    async def groups(self) -> list[GroupInfo]:
        """Return all groups."""

    async def delete_group(self, name: str) -> bool:
        """Remove a group; return whether there was one."""
