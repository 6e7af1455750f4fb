"""Producer and Fence: appends under a condition that the log keeps.

Each append of a producer has a sequence number, 1 for its first and one more each time. The log
remembers the last appends of each producer, in the frames with the records, so also across a crash. An
append with a number used before returns the offsets it got then.

A fence is a register with a different value for each takeover. Appends through it expect that value, so
an append after another takeover is refused when it would get its offset, however late that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from walstore.batches.conditions import (
    AppendConditions,
    Expected,
    check_name,
    check_register,
    check_sequence,
    make_conditions,
)
from walstore.errors import RegisterMismatchError
from walstore.log.last_sequence import LastSequence
from walstore.log.transaction import Transaction
from walstore.records import AnyDurability
from walstore.runtime.owned import Owned

if TYPE_CHECKING:
    from walstore.log.engine import Engine


class Producer(Owned):
    """Appends with sequence numbers; see :meth:`walstore.Wal.producer`.

    Without ``sequence`` an append gets the next number. Pass it, and pass the same one again after a
    crash or an unknown outcome, to ensure that the records are in the log once. The setting
    ``producer_window`` is the number of appends remembered, ``max_producers`` that of producers.
    """

    def __init__(self, engine: Engine, producer_id: str) -> None:
        """Not for callers; see :meth:`walstore.Wal.producer`."""
        self._engine = engine
        self.id = producer_id
        """Name of the producer in the log."""

    @property
    def last_sequence(self) -> LastSequence:
        """Returns the number of its newest append, accepted and maybe not yet durable; 0 before the first.

        ``await producer.last_sequence()``, as of a served log: StorageUnavailableError if the log is
        replicated and another machine may lead it. For one more version it is that number, too, with a
        DeprecationWarning.
        """
        return LastSequence(self._last, self._find_last)

    async def _find_last(self) -> int:
        await self._engine.check_current()
        return self._last

    @property
    def _last(self) -> int:
        window = self._engine.channel.ledger.producers.get(self.id)
        return 0 if window is None else window.last

    async def append(
        self,
        value: bytes,
        *,
        sequence: int | None = None,
        repeated: bool = False,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append one record once and return its offset; see :meth:`append_many`."""
        span = await self.append_many(
            (value,),
            sequence=sequence,
            repeated=repeated,
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
        sequence: int | None = None,
        repeated: bool = False,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> range:
        """Append records once, as one atomic group with one number, and return their offsets.

        With a number used before nothing is appended, whatever the values, and the original offsets are
        returned once they are as safe as ``durability`` says. SequenceMismatchError if the number
        leaves a gap, or is older than the log remembers. Otherwise as :meth:`walstore.Wal.append_many`.

        ``repeated=True`` says that this number may have been appended before. If the log may have forgotten
        the producer for newer ones, OutcomeUnknownError then, and nothing is appended; without it, the number
        1 of a forgotten producer is appended again.
        """
        conditions = self._conditions(sequence, repeated=repeated)
        return await self._engine.append_group(
            values, key, stream, headers, timestamp_us, durability, conditions
        )

    def transaction(
        self,
        *,
        sequence: int | None = None,
        repeated: bool = False,
        durability: AnyDurability | None = None,
    ) -> Transaction:
        """Return a transaction that commits once with its number; see :meth:`walstore.Wal.transaction`.

        A transaction committed before is dropped at its commit and gets the original ``span``.
        """
        return Transaction(
            self._engine,
            self._conditions(sequence, repeated=repeated),
            self._engine.level(durability),
        )

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self._engine.check_home()

    def __repr__(self) -> str:
        return f"<Producer {self.id!r} at {self._last}>"

    def _conditions(self, sequence: int | None, *, repeated: bool) -> AppendConditions:
        sequence = check_sequence(sequence, repeated=repeated)
        return AppendConditions(producer=self.id, sequence=sequence, is_repeated=repeated)


class Fence(Owned):
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
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
        durability: AnyDurability | None = None,
    ) -> Transaction:
        """Return a transaction that commits only while the fence holds, else FencedError."""
        conditions = self._conditions(expect, update)
        return Transaction(self._engine, conditions, self._engine.level(durability))

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self._engine.check_home()

    def __repr__(self) -> str:
        return f"<Fence {self.register!r} of {self.owner!r}{'' if self.holds else ', lost'}>"

    def _conditions(
        self,
        expect: Expected | None,
        update: Mapping[str, str | None] | None,
    ) -> AppendConditions:
        conditions = make_conditions(None, expect, update)
        conditions.expect = {**(conditions.expect or {}), self.register: self.token}
        conditions.fence = self.register
        return conditions


async def take_fence(engine: Engine, owner: str, register: str) -> Fence:
    """Make ``owner`` the holder of a fence; durable when this returns."""
    engine.check_home()
    owner, register = check_name(owner, "owner"), check_register(register)
    while True:
        held = engine.channel.ledger.registers.get(register)
        number = held.partition(" ")[0] if held else "0"
        token = f"{int(number) + 1 if number.isdecimal() else 1} {owner}"
        conditions = AppendConditions(expect={register: held}, update={register: token})
        try:
            await engine.change(conditions)
        except RegisterMismatchError:
            continue  # another owner took it while this one waited; take it from that one
        return Fence(engine, owner, register, token)
