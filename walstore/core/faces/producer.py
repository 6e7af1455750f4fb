"""Producer: appends with sequence numbers, so that one that is repeated is in the log once.

Each append of a producer has a number, 1 for its first and one more each time. The log remembers the last
appends of each producer, in the frames with the records, so also across a crash. An append with a number used
before returns the offsets it got then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Unpack

from walstore.core.batches.conditions import AppendConditions, check_sequence
from walstore.core.faces.append_backend import AppendBackend, AppendOptions
from walstore.core.faces.transaction import Transaction
from walstore.core.runtime.owned import Owned
from walstore.records import AnyDurability


class Producer(Owned):
    """Appends with sequence numbers; see :meth:`walstore.Wal.producer`.

    Without ``sequence`` an append gets the next number. Pass it, and pass the same one again after a
    crash or an unknown outcome, to ensure that the records are in the log once. The setting
    ``producer_window`` is the number of appends remembered, ``max_producers`` that of producers.

    To a served log an append with a number is sent again when its answer is lost. Without ``sequence`` this
    object counts there, under a name of its own that begins with the producer's: so appends of two clients
    with the same producer do not take each other's numbers. At most as many appends as the log remembers are
    on their way; others wait. One that is refused takes no part: later ones that are on their way are sent
    again with other numbers, and may then come after one that was called still later.
    """

    def __init__(self, backend: AppendBackend, producer_id: str) -> None:
        """Not for callers; see :meth:`walstore.Wal.producer`."""
        self._backend = backend
        self._append = backend.appends_of(producer_id)
        self.id = producer_id
        """Name of the producer in the log."""

    @property
    def last_sequence(self) -> Callable[[], Awaitable[int]]:
        """Returns the number of its newest append, accepted and maybe not yet durable; 0 before the first.

        ``await producer.last_sequence()``. StorageUnavailableError if the log is replicated and another
        machine may lead it. Of a served log, appends without ``sequence`` do not count, transactions do. Of
        an open one it is for one more version that number, too, with a DeprecationWarning.
        """
        return self._backend.last_sequence(self.id)

    async def append(
        self,
        value: bytes,
        *,
        sequence: int | None = None,
        repeated: bool = False,
        **options: Unpack[AppendOptions],
    ) -> int:
        """Append one record once and return its offset; see :meth:`append_many`."""
        conditions = self._conditions(sequence, repeated=repeated)
        return (await self._append((value,), conditions, **options)).start

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        sequence: int | None = None,
        repeated: bool = False,
        **options: Unpack[AppendOptions],
    ) -> range:
        """Append records once, as one atomic group with one number, and return their offsets.

        With a number used before nothing is appended, whatever the values, and the original offsets are
        returned once they are as safe as ``durability`` says. SequenceMismatchError if the number
        leaves a gap, or is older than the log remembers. Otherwise as :meth:`walstore.Wal.append_many`.

        ``repeated=True`` says that this number may have been appended before. If the log may have forgotten
        the producer for newer ones, OutcomeUnknownError then, and nothing is appended; without it, the number
        1 of a forgotten producer is appended again.
        """
        return await self._append(values, self._conditions(sequence, repeated=repeated), **options)

    def transaction(
        self,
        *,
        sequence: int | None = None,
        repeated: bool = False,
        durability: AnyDurability | None = None,
    ) -> Transaction:
        """Return a transaction that commits once with its number; see :meth:`walstore.Wal.transaction`.

        Without ``sequence`` it gets the next number of the producer at the commit. A transaction committed
        before is dropped at its commit and gets the original ``span``.
        """
        conditions = self._conditions(sequence, repeated=repeated)
        return Transaction(self._backend.gather(conditions, durability), conditions)

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._backend.check_owner()

    def __repr__(self) -> str:
        return f"<Producer {self.id!r}>"

    def _conditions(self, sequence: int | None, *, repeated: bool) -> AppendConditions:
        sequence = check_sequence(sequence, repeated=repeated)
        return AppendConditions(producer=self.id, sequence=sequence, is_repeated=repeated)
