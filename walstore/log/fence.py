"""Fence: appends that fail once another owner has taken the log over.

A fence is a register with a different value for each takeover. Appends through it expect that value, so
an append after another takeover is refused when it would get its offset, however late that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from walstore.batches.batch_builder import AppendRequest
from walstore.batches.conditions import AppendConditions, check_name, make_conditions
from walstore.errors import RegisterMismatchError
from walstore.log.transaction import Transaction
from walstore.records import AnyDurability, Durability

if TYPE_CHECKING:
    from walstore.log.engine import Engine


class Fence:
    """Appends for one owner; see :meth:`walstore.Wal.fence`."""

    def __init__(self, engine: Engine, owner: str, register: str, token: str) -> None:
        """Not for callers; see :meth:`walstore.Wal.fence`."""
        self._engine = engine
        self.owner = owner
        """The owner that took it."""
        self.register = register
        """Register that contains the fence."""
        self.token = token
        """Its value while this fence holds: a number that grows with each takeover, and the owner."""

    @property
    def holds(self) -> bool:
        """Whether no other takeover has been accepted in this process so far."""
        return self._engine.channel.ledger.registers.get(self.register) == self.token

    async def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append one record under the fence; FencedError if it no longer holds."""
        span = await self.append_many(
            (value,),
            key=key,
            stream=stream,
            headers=headers,
            timestamp_us=timestamp_us,
            durability=durability,
        )
        return span.start

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> range:
        """Append an atomic group under the fence; FencedError if it no longer holds.

        Otherwise as :meth:`walstore.Wal.append_many`.
        """
        conditions = self._conditions(None, None)
        return await self._engine.append_group(
            values, key, stream, headers, timestamp_us, durability, conditions
        )

    def transaction(
        self,
        *,
        expect: Mapping[str, str | None] | None = None,
        update: Mapping[str, str | None] | None = None,
        durability: AnyDurability | None = None,
    ) -> Transaction:
        """Return a transaction that commits only while the fence holds, else FencedError."""
        conditions = self._conditions(expect, update)
        return Transaction(self._engine, conditions, self._engine.level(durability))

    def __repr__(self) -> str:
        return f"<Fence {self.register!r} of {self.owner!r}{'' if self.holds else ', lost'}>"

    def _conditions(
        self,
        expect: Mapping[str, str | None] | None,
        update: Mapping[str, str | None] | None,
    ) -> AppendConditions:
        conditions = make_conditions(None, expect, update)
        conditions.expect = {**(conditions.expect or {}), self.register: self.token}
        conditions.fence = self.register
        return conditions


async def take_fence(engine: Engine, owner: str, register: str) -> Fence:
    """Make ``owner`` the holder of a fence; durable when this returns."""
    engine.check_home()
    owner, register = check_name(owner, "owner"), check_name(register, "register")
    while True:
        held = engine.channel.ledger.registers.get(register)
        number = held.partition(" ")[0] if held else "0"
        token = f"{int(number) + 1 if number.isdecimal() else 1} {owner}"
        conditions = AppendConditions(expect={register: held}, update={register: token})
        try:
            await engine.submit(
                AppendRequest((), None, None, None, None, 0, conditions), Durability.DISK
            )
        except RegisterMismatchError:
            continue  # another owner took it while this one waited; take it from that one
        return Fence(engine, owner, register, token)
