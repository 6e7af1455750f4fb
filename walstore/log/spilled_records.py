"""SpilledRecords: the records of a transaction of an open log, in memory up to a budget and then in a file.

Those in memory commit as one batch. Above the budget they are written to a file of their own
(:mod:`walstore.core.files.spill`), which becomes a segment at the commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from datetime import datetime
from sys import getsizeof
from threading import get_ident
from typing import Final

from walstore.core.batches.batch_builder import AppendRequest, BatchBuilder, split
from walstore.core.batches.conditions import AppendConditions
from walstore.core.faces.transaction import TransactionRecords
from walstore.core.files.spill import Spill
from walstore.core.runtime.error_mapping import copy_error, describe_spill
from walstore.errors import WalClosedError
from walstore.log.engine import Engine
from walstore.records import Durability

_LEAST_FRAME_BYTES: Final = 256 << 10
"""Minimum size of a spilled batch: each costs one small write at the commit."""
_FILE_COST_BYTES: Final = 32 << 10
"""Of a file, in memory: more than it takes, so that a limit of bytes is also one of descriptors."""
_FRAME_COST_BYTES: Final = 512
"""Of each batch of the file."""
_NAME_COST_BYTES: Final = 256
"""Of each stream of the file, in addition to its name."""


class SpilledRecords(TransactionRecords):
    """Where the records of one transaction are until it ends. Owned by the task that uses it."""

    def __init__(self, engine: Engine, conditions: AppendConditions, level: Durability) -> None:
        # Set once.
        self._engine = engine
        self._conditions = conditions
        self._level = level
        settings = engine.settings
        self.max_record_bytes = settings.max_record_bytes
        self._memory_bytes = min(settings.transaction_memory_bytes, settings.channel_bytes)
        batch_bytes = min(settings.batch_bytes, settings.segment_bytes // 4)
        self._frame_bytes = max(batch_bytes, _LEAST_FRAME_BYTES)
        # Until it ends.
        self._builder = BatchBuilder(0)
        self._spill: Spill | None = None
        self._names: dict[str | None, None] = {}  # streams of records in the file, in order
        self._file_bytes = 0

    @property
    def held_bytes(self) -> int:
        """As of :class:`TransactionRecords`; of the file, what is known of it."""
        return self._builder.held_bytes + self._file_bytes

    def check_owner(self) -> None:
        """As of :class:`TransactionRecords`."""
        self._engine.check_home()

    def check_caller(self) -> None:
        """As of :class:`TransactionRecords`."""
        channel = self._engine.channel
        # Getting the running loop takes longer. In this thread no other loop runs while the log's does.
        if get_ident() != channel.thread or not channel.loop.is_running():
            self._engine.check_home()

    def begin(self) -> None:
        """Raise what the log raises once it is closing, or has failed."""
        if self._engine.is_closing:
            raise copy_error(self._engine.writer.failure or WalClosedError("the log is closed"))

    def timestamp(self, timestamp_us: int | datetime) -> int:
        """Check a caller's timestamp."""
        return self._engine.timestamp(timestamp_us)

    def add(self, request: AppendRequest) -> bool:
        """Keep records in memory; whether they are to be written to the file."""
        builder = self._builder
        builder.extend(request)
        builder.size_bytes += request.size_bytes
        builder.held_bytes += request.held_bytes
        if self._spill is None:
            return builder.held_bytes > self._memory_bytes
        return builder.size_bytes > self._frame_bytes

    async def write_out(self) -> None:
        """Move the records in memory to the file, in batches that fit readers' memory.

        DiskFullError or StorageUnavailableError if it does not fit the disk.
        """
        if not self._builder.values:
            return
        engine = self._engine
        refusal = engine.disk_watch.refusal
        if refusal is not None:
            raise copy_error(refusal)
        builder, self._builder = self._builder, BatchBuilder(0)
        builder.pad()
        self._note_names(builder.streams or ())
        spill = self._spill or await self._open_spill()
        before = spill.size_bytes
        now_us = engine.clock.now_us()
        for part in split(builder, self._frame_bytes):
            await self._blocking(spill.add, part, now_us)
            self._file_bytes += _FRAME_COST_BYTES
        engine.spilled_bytes += spill.size_bytes - before
        engine.disk_watch.note_written(spill.size_bytes - before)

    async def finish(self) -> None:
        """End the file, if there is one."""
        if self._spill is not None:
            await self.write_out()
            await self._blocking(self._spill.finish)

    async def commit(self) -> None:
        """Append the file as a segment, or the records in memory as a batch."""
        if self._spill is not None:
            names = list(self._names) or None
            request = AppendRequest((), None, names, None, None, 0, self._conditions, self._spill)
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

    async def end(self, *, is_committed: bool) -> None:
        """Count the transaction, and delete the file unless it is in the log.

        One left behind is deleted when the log closes or is opened again.
        """
        if is_committed:
            self._engine.transactions_committed += 1
        else:
            self._engine.transactions_rolled_back += 1
        if is_committed and not self._conditions.is_duplicate:
            return
        self._builder = BatchBuilder(0)
        self._names.clear()
        self._file_bytes = 0
        spill, self._spill = self._spill, None
        if spill is not None:
            with contextlib.suppress(WalClosedError, OSError):
                await self._engine.spilling.run(self._engine.drop_spill, spill)

    # -- inside ------------------------------------------------------------------------------

    async def _open_spill(self) -> Spill:
        engine = self._engine
        try:
            self._spill = await engine.spilling.run_owned(engine.make_spill, Spill.discard)
        except OSError as error:
            raise describe_spill(error) from error
        self._file_bytes += _FILE_COST_BYTES
        return self._spill

    def _note_names(self, streams: Iterable[str | None]) -> None:
        for name in dict.fromkeys(streams):
            if name not in self._names:
                self._names[name] = None
                self._file_bytes += _NAME_COST_BYTES + getsizeof(name)

    async def _blocking(self, call: Callable[..., None], *args: object) -> None:
        try:
            await self._engine.spilling.run(call, *args)
        except OSError as error:
            raise describe_spill(error) from error
