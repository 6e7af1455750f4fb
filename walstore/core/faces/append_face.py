"""AppendFace: the appending methods of a log, wherever it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Unpack

from walstore.core.batches.append_request import make_record
from walstore.core.batches.conditions import (
    Expected,
    check_metadata,
    check_name,
    check_register,
    make_conditions,
)
from walstore.core.faces.append_backend import AppendBackend, AppendOptions
from walstore.core.faces.fence import Fence
from walstore.core.faces.producer import Producer
from walstore.core.faces.transaction import Transaction
from walstore.core.runtime.owned import Owned
from walstore.core.validation.arguments import as_int, as_text
from walstore.records import AnyDurability


class AppendFace(Owned):
    """A log to which records are appended."""

    appends: AppendBackend
    """Not for callers: the way of appends into the log."""

    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append one record and return its offset once it is as safe as ``durability`` says.

        As :meth:`walstore.Wal.append`. OutcomeUnknownError if the connection to a served log is lost before
        the answer.
        """
        level = self.appends.level(durability)
        record = make_record(value, key, stream, headers, timestamp_us)
        return await self.appends.append(record, level)

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        expect_offset: int | None = None,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
        **options: Unpack[AppendOptions],
    ) -> range:
        """Append records as one atomic group and return their offsets.

        After a crash all of them are in the log or none. ``key`` to ``timestamp_us`` apply to each
        record. The group may have up to ``channel_bytes``; for more, or for records with options of
        their own, see :meth:`transaction`. An empty group is a ValueError.

        With ``expect_offset`` the group is appended only if its first record gets that offset
        (OffsetMismatchError); with ``expect`` only if the registers have those values, None meaning
        absent (RegisterMismatchError). A value may also be :class:`walstore.OneOf` or
        :class:`walstore.NoneOf` several. ``update`` sets registers, or removes them with None, together
        with the records. Conditions are checked and offsets assigned in one step, so nothing can come
        between; a refused group takes no offset. Otherwise as :meth:`append`.
        """
        conditions = None
        if expect_offset is not None or expect is not None or update is not None:
            conditions = make_conditions(expect_offset, expect, update)
        return await self.appends.append_group(values, conditions, **options)

    def transaction(
        self,
        *,
        expect_offset: int | None = None,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
        durability: AnyDurability | None = None,
    ) -> Transaction:
        """Return a transaction: records of any total size that enter the log together or not at all.

        ``async with wal.transaction() as txn: await txn.append(...)``. Leaving the block commits; an
        exception or a cancellation in it rolls back, as does a crash. Nothing is visible and no offset
        is assigned before the commit, and other appends continue meanwhile. The conditions are those of
        :meth:`append_many`, checked at the commit. A transaction without records changes only
        registers, or nothing: then it is a barrier after which everything accepted before is durable.
        """
        conditions = make_conditions(expect_offset, expect, update)
        return Transaction(self.appends.gather(conditions, durability), conditions)

    def producer(self, producer_id: str) -> Producer:
        """Return an idempotent producer: an append repeated with the same sequence number is in the log
        once, across retries, crashes and reopening, whatever the connection does."""
        return Producer(self.appends, check_name(producer_id, "producer"))

    async def fence(self, owner: str, *, register: str = "fence") -> Fence:
        """Take the log over for ``owner``: appends through earlier fences fail with FencedError.

        The fence is a register, so it is durable, and independent fences have different names. It
        affects only appends made through a fence.
        """
        owner, register = check_name(owner, "owner"), check_register(register)
        token = await self.appends.take_fence(owner, register)
        return Fence(self.appends, owner, register, token)

    async def open_stream(self, name: str, *, metadata: Mapping[str, str] | None = None) -> None:
        """Open a stream, or open it again, with ``metadata``; durable when this returns.

        The first append to a stream opens it too, without metadata. LimitExceededError if the log has
        65 536 streams already.
        """
        checked = check_metadata({} if metadata is None else metadata)
        await self.appends.open_stream(check_name(name, "stream"), checked)

    async def close_stream(self, name: str) -> None:
        """Close a stream: appends to it raise StreamClosedError until it is opened again.

        Its records stay, and readers that follow it wait: it may be opened again. To end them, append a last
        record that says so. StreamClosedError if there is no such stream.
        """
        await self.appends.close_stream(as_text(name, "a stream name"))

    async def wait_durable(self, offset: int, durability: AnyDurability = "disk") -> None:
        """Return when the record at ``offset`` is as safe as ``durability`` says.

        Raises OffsetNotWrittenError for an offset not assigned yet, and the error of a failed log.
        Cancelling has no effect on the record.
        """
        level = self.appends.level(durability)
        await self.appends.wait_durable(as_int(offset, "offset"), level)

    async def flush(self) -> None:
        """Return when everything accepted before the call, of all clients, is on disk."""
        await self.appends.flush()

    async def trim(self, before: int) -> int:
        """Remove all records below ``before`` from the log's disk and return the new head.

        The head is then exactly ``before``, unless a cursor, a pin or, with a tier, a record not yet
        uploaded keeps it lower, or it was higher already. It is durable when this returns, and never
        moves back. ``durable_limit`` empties the log; a higher offset raises OffsetNotWrittenError. If
        cancelled, the head may have moved or may still move. Also raises WalLockedError if another
        process keeps the cursors locked for seconds, StorageUnavailableError if they cannot be read,
        DiskFullError or OutcomeUnknownError if a write fails, which fails the log, and WalClosedError.
        """
        return await self.appends.trim(as_int(before, "before"))

    async def rotate(self) -> None:
        """Seal the active segment now, if it holds records, and begin the next.

        Returns when the sealed one is durable; cancelling does not stop the rotation. Raises
        DiskFullError or OutcomeUnknownError if the disk call fails, which fails the log, and
        WalClosedError.
        """
        await self.appends.rotate()
