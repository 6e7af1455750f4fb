"""Transaction: records of any total size that enter the log together or not at all.

They are kept in memory up to a budget and commit as one batch. Above it they are written to a file of
their own (:mod:`walstore.files.spill`), which becomes a segment at the commit. Until then they have no
offset and are invisible, and other appends continue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import getsizeof
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from walstore.batches.append_request import make_record, make_rows
from walstore.batches.batch_builder import RECORD_OVERHEAD_BYTES, AppendRequest, BatchBuilder, split
from walstore.batches.conditions import AppendConditions, check_registers
from walstore.errors import RecordTooLargeError, WalClosedError, WalError
from walstore.files.spill import Spill
from walstore.records import Durability
from walstore.runtime.error_mapping import copy_error, describe_spill
from walstore.runtime.owned import Owned, checks_itself

if TYPE_CHECKING:
    from walstore.log.engine import Engine

_LEAST_FRAME_BYTES: Final = 256 << 10
"""Minimum size of a spilled batch: each costs one small write at the commit."""
_FILE_COST_BYTES: Final = 32 << 10
"""Of a file, in memory: more than it takes, so that a limit of bytes is also one of descriptors."""
_FRAME_COST_BYTES: Final = 512
"""Of each batch of the file."""
_NAME_COST_BYTES: Final = 256
"""Of each stream of the file, in addition to its name."""


class Transaction(Owned):
    """An append being built; see :meth:`walstore.Wal.transaction`. One task at a time, on the event
    loop of the log: from another thread or event loop all methods raise WrongLoopError and change
    nothing.

    Use it with ``async with``. If the block raises or is cancelled, everything is rolled back. If the
    commit itself is cancelled, it may still have happened: then ``span`` is set.
    """

    def __init__(self, engine: Engine, conditions: AppendConditions, level: Durability) -> None:
        """Not for callers; see :meth:`walstore.Wal.transaction`."""
        # Set once.
        self._engine = engine
        self._conditions = conditions
        self._level = level
        settings = engine.settings
        self._memory_bytes = min(settings.transaction_memory_bytes, settings.channel_bytes)
        batch_bytes = min(settings.batch_bytes, settings.segment_bytes // 4)
        self._frame_bytes = max(batch_bytes, _LEAST_FRAME_BYTES)
        # Owned by the task that uses it.
        self._builder = BatchBuilder(0)
        self._spill: Spill | None = None
        self._names: dict[str | None, None] = {}  # streams of records in the file, in order
        self._file_bytes = 0
        self._count = 0
        self._is_open = False
        self._failure: WalError | None = None
        self._has_failed = False  # as opposed to rolled back by its user

    @property
    def span(self) -> range | None:
        """Offsets of the records once they are committed; None before.

        Without records: an empty range at the log's tail at the commit. For a producer's repeated
        transaction: the original offsets.
        """
        return self._conditions.span

    @property
    def is_duplicate(self) -> bool:
        """Whether the producer had committed it before."""
        return self._conditions.is_duplicate

    @checks_itself
    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
    ) -> int:
        """Add a record and return its place in the transaction, counted from 0.

        Its offset will be ``span.start`` plus that. Raises what :meth:`walstore.Wal.append` raises for
        bad arguments and records that are too large, which leaves the transaction as it was, and
        DiskFullError or StorageUnavailableError if it does not fit the disk, which rolls it back.
        """
        channel = self._engine.channel
        # For each record; getting the running loop takes longer. In this thread no other loop runs then.
        if get_ident() != channel.thread or not channel.loop.is_running():
            self._engine.check_home()
        self._check_open()
        times = self._engine.timestamp(timestamp_us)
        request = make_record(value, key, stream, headers, times)
        return await self._add(request, request.size_bytes - RECORD_OVERHEAD_BYTES)

    async def append_rows(self, values: Sequence[bytes], headers: Sequence[bytes | None]) -> None:
        """Not for callers: as :meth:`append` of each value, with its own headers as ``pack_headers`` made
        them, or none. With an error for one of them none is added."""
        self._check_open()
        request = make_rows(values, headers)
        await self._add(request, max(map(_size_of, values, headers)))

    async def _add(self, request: AppendRequest, largest_bytes: int) -> int:
        """Add records, the largest of which has so many bytes; return the place of the first."""
        limit = self._engine.settings.max_record_bytes
        if largest_bytes > limit:
            raise RecordTooLargeError(
                f"the record has {largest_bytes} bytes; max_record_bytes is {limit}",
                size_bytes=largest_bytes,
                limit_bytes=limit,
            )
        builder, place = self._builder, self._count
        builder.extend(request)
        builder.size_bytes += request.size_bytes
        builder.held_bytes += request.held_bytes
        if self._spill is None:
            is_full = builder.held_bytes > self._memory_bytes
        else:
            is_full = builder.size_bytes > self._frame_bytes
        self._count = place + request.count
        if is_full:
            try:
                await self._write_out()
            except asyncio.CancelledError:
                # Part of it may be missing in the file, and the caller may continue.
                await self._roll_back_for(
                    WalClosedError("adding to the transaction was cancelled, so it was rolled back")
                )
                raise
        return place

    def set_registers(self, update: Mapping[str, str | None]) -> None:
        """Also set these registers at the commit, or remove them with None; the last value counts.

        They are copied. TypeError or ValueError for invalid registers, RuntimeError after the commit. A
        transaction that is rolled back sets none.
        """
        self._engine.check_home()
        if self.span is not None:
            raise RuntimeError(f"the transaction is committed, as {self.span}; make another")
        added = check_registers(update, "update")
        self._conditions.update = {**(self._conditions.update or {}), **(added or {})} or None

    async def rollback(self) -> None:
        """Drop everything now; leaving the block then does nothing. Twice is allowed."""
        if not self._is_open:
            return
        self._is_open = False
        self._engine.transactions_rolled_back += 1
        self._failure = self._failure or WalClosedError("the transaction was rolled back")
        await self._discard()

    async def __aenter__(self) -> Self:
        if self._is_open or self._count or self._failure is not None or self.span is not None:
            raise RuntimeError("a transaction can be entered once; make another")
        if self._engine.is_closing:
            raise copy_error(self._engine.writer.failure or WalClosedError("the log is closed"))
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_open:
            if error is None and self._has_failed:
                assert self._failure is not None
                # Otherwise code that caught it inside would believe it committed.
                raise copy_error(self._failure)
            return
        if error is not None:
            await self.rollback()
            return
        try:
            await self._commit()
        finally:
            if self._conditions.span is None:
                await self.rollback()
            else:
                self._is_open = False
                self._engine.transactions_committed += 1
                if self._conditions.is_duplicate:
                    await self._discard()

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self._engine.check_home()

    @property
    def held_bytes(self) -> int:
        """Not for callers: about what its records, or what is known of its file, take in memory."""
        return self._builder.held_bytes + self._file_bytes

    async def write_out(self) -> None:
        """Not for callers: move its records to the file now, so that it takes little memory.

        As :meth:`append` raises when a transaction does not fit the disk, which rolls it back.
        """
        if self._builder.values:
            await self._write_out()

    # -- inside ------------------------------------------------------------------------------

    async def _commit(self) -> None:
        if self._spill is not None:
            await self._write_out()
            spill = self._spill
            await self._blocking(spill.finish)
            names = list(self._names) or None
            request = AppendRequest((), None, names, None, None, 0, self._conditions, spill)
        else:
            builder = self._builder
            builder.pad()
            request = AppendRequest(
                builder.values,
                builder.keys,
                builder.streams,
                builder.headers,
                builder.timestamps_us,
                builder.size_bytes,
                self._conditions,
                held_bytes=builder.held_bytes,
            )
        await self._engine.submit(request, self._level)

    async def _write_out(self) -> None:
        """Move the records in memory to the file, in batches that fit readers' memory."""
        refusal = self._engine.disk_watch.refusal
        if refusal is not None:
            await self._roll_back_for(copy_error(refusal))
            raise copy_error(refusal)
        builder, self._builder = self._builder, BatchBuilder(0)
        builder.pad()
        self._note_names(builder.streams or ())
        if self._spill is None:
            await self._open_spill()
        spill = self._spill
        assert spill is not None
        before = spill.size_bytes
        now_us = self._engine.clock.now_us()
        for part in split(builder, self._frame_bytes):
            await self._blocking(spill.add, part, now_us)
            self._file_bytes += _FRAME_COST_BYTES
        self._engine.spilled_bytes += spill.size_bytes - before
        self._engine.disk_watch.note_written(spill.size_bytes - before)

    async def _open_spill(self) -> None:
        engine = self._engine
        try:
            spill = await engine.spilling.run_owned(engine.make_spill, Spill.discard)
        except OSError as error:
            await self._fail(error)
            raise AssertionError from error  # _fail raises
        self._spill = spill
        self._file_bytes += _FILE_COST_BYTES

    def _note_names(self, streams: Iterable[str | None]) -> None:
        for name in dict.fromkeys(streams):
            if name not in self._names:
                self._names[name] = None
                self._file_bytes += _NAME_COST_BYTES + getsizeof(name)

    async def _blocking(self, call: Callable[..., None], *args: object) -> None:
        try:
            await self._engine.spilling.run(call, *args)
        except OSError as error:
            await self._fail(error)

    async def _fail(self, cause: OSError) -> None:
        """Roll back because a disk call failed; the log itself is not affected."""
        failure = describe_spill(cause)
        await self._roll_back_for(failure)
        raise copy_error(failure) from cause

    async def _roll_back_for(self, failure: WalError) -> None:
        """Roll back because of a failure, which every later use raises, including leaving the block."""
        self._failure = failure
        self._has_failed = True
        await self.rollback()

    async def _discard(self) -> None:
        """Delete the file; one left behind is deleted when the log closes or is opened again."""
        self._builder = BatchBuilder(0)
        self._names.clear()
        self._file_bytes = 0
        spill, self._spill = self._spill, None
        if spill is not None:
            with contextlib.suppress(WalClosedError, OSError):
                await self._engine.spilling.run(self._engine.drop_spill, spill)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise copy_error(self._failure)
        if not self._is_open and self.span is not None:
            raise RuntimeError(f"the transaction is committed, as {self.span}; make another")
        if not self._is_open:
            raise RuntimeError("use a transaction inside its own 'async with' block")


def _size_of(value: bytes, headers: bytes | None) -> int:
    return len(value) + len(headers or b"")
