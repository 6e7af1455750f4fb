"""LocalAppends: the way of appends into a log that is open here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from walstore.core.batches.batch_builder import AppendRequest
from walstore.core.batches.conditions import AppendConditions
from walstore.core.faces.append_backend import AppendBackend
from walstore.errors import RegisterMismatchError
from walstore.log.engine import Engine
from walstore.log.last_sequence import LastSequence
from walstore.log.spilled_records import SpilledRecords
from walstore.records import AnyDurability, Durability


class LocalAppends(AppendBackend):
    """The appends of an engine. Belongs to its event loop."""

    def __init__(self, engine: Engine) -> None:
        self.most_group_bytes = engine.settings.channel_bytes
        self.max_record_bytes = engine.settings.max_record_bytes
        self._engine = engine

    def check_owner(self) -> None:
        """As of :class:`walstore.core.runtime.owned.Owned`."""
        self._engine.check_home()

    def level(self, durability: AnyDurability | None) -> Durability:
        """InvalidSettingsError for a level that this log cannot reach."""
        return self._engine.level(durability)

    def timestamp(self, timestamp_us: int | datetime) -> int:
        """Check a caller's timestamp."""
        return self._engine.timestamp(timestamp_us)

    async def submit(self, request: AppendRequest, level: Durability | None) -> range:
        """As :meth:`Engine.submit`."""
        return await self._engine.submit(request, level or self._engine.default_level)

    def gather(
        self, conditions: AppendConditions, durability: AnyDurability | None
    ) -> SpilledRecords:
        """Keep records in memory, and then in a file."""
        return SpilledRecords(self._engine, conditions, self._engine.level(durability))

    def register(self, name: str) -> str | None:
        """Return the value of a register, maybe not yet durable."""
        return self._engine.channel.ledger.registers.get(name)

    def last_sequence(self, producer_id: str) -> LastSequence:
        """Return a producer's newest number, for one more version; called, it is confirmed."""

        async def find() -> int:
            await self._engine.check_current()
            return self._last(producer_id)

        return LastSequence(self._last(producer_id), find)

    def _last(self, producer_id: str) -> int:
        window = self._engine.channel.ledger.producers.get(producer_id)
        return 0 if window is None else window.last

    async def take_fence(self, owner: str, register: str) -> str:
        """As of :class:`AppendBackend`."""
        while True:
            held = self.register(register)
            number = held.partition(" ")[0] if held else "0"
            token = f"{int(number) + 1 if number.isdecimal() else 1} {owner}"
            conditions = AppendConditions(expect={register: held}, update={register: token})
            try:
                await self._engine.change(conditions)
            except RegisterMismatchError:
                continue  # another owner took it while this one waited; take it from that one
            return token

    async def open_stream(self, name: str, metadata: Mapping[str, str]) -> None:
        """As of :class:`AppendBackend`."""
        await self._engine.change(AppendConditions(open_streams={name: metadata}))

    async def close_stream(self, name: str) -> None:
        """As of :class:`AppendBackend`."""
        await self._engine.change(AppendConditions(close_streams=(name,)))

    async def wait_durable(self, offset: int, level: Durability | None) -> None:
        """As of :class:`AppendBackend`."""
        self._engine.channel.check_assigned(offset)
        await self._engine.wait(offset + 1, level or self._engine.default_level)

    async def flush(self) -> None:
        """As of :class:`AppendBackend`."""
        await self._engine.settle()

    async def trim(self, before: int) -> int:
        """As of :class:`AppendBackend`."""
        return await self._engine.retention.trim(before)

    async def rotate(self) -> None:
        """As of :class:`AppendBackend`."""
        await self._engine.writer.rotate()
