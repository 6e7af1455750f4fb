"""ConsumerRegister and ConsumerTransaction: output and position of a consumer, committed together.

A register changes in the same frame as the records of a transaction, so output and position survive
together or not at all. Its value is the position and a takeover number, ``"42 3"``. Each takeover
raises the number, so the next commit of the former owner finds an unexpected value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from walstore.core.runtime.owned import Owned
from walstore.errors import CorruptionError, FencedError, RegisterMismatchError, WalError
from walstore.records import AnyDurability, Durability


class OutputTransaction(Protocol):
    """What a consumer needs of a transaction of its output log, apart from its user's calls."""

    @property
    def span(self) -> range | None:
        """Offsets of the records once the transaction is accepted; None before that, and if it never is."""

    def set_registers(self, update: Mapping[str, str | None]) -> None:
        """Also set these registers at the commit."""


OutputT = TypeVar("OutputT", bound=OutputTransaction)
OutputT_co = TypeVar("OutputT_co", bound=OutputTransaction, covariant=True)


class OutputLog(Protocol[OutputT_co]):
    """What a consumer needs of its output log. Belongs to the event loop."""

    @property
    def path(self) -> Path:
        """The log's directory."""

    @property
    def registers(self) -> Mapping[str, str]:
        """The durable state of the registers."""

    def transaction(
        self,
        *,
        expect: Mapping[str, str | None] | None = None,
        update: Mapping[str, str | None] | None = None,
        durability: AnyDurability | None = None,
    ) -> AbstractAsyncContextManager[OutputT_co]:
        """Return a transaction that commits if ``expect`` holds, and sets ``update`` with it."""


class ConsumerRegister:
    """The register of one consumer in one output log. Belongs to the event loop."""

    def __init__(self, output: OutputLog[OutputTransaction], input_id: str, name: str) -> None:
        """``input_id`` is the identity of the log that is consumed, ``name`` the consumer's."""
        self.name = f"cursor.{input_id}.{name}"
        """Name of the register."""
        self._output = output
        self._consumer = name
        self._turn = 0
        # Of a replicated output: what a takeover of it keeps, and what was accepted, by the records' limits.
        self._safe_position = 0
        self._accepted: deque[tuple[int, int]] = deque()
        self.position = 0
        """Position of the last commit that was accepted; 0 before :meth:`take`."""

    @property
    def value(self) -> str:
        """The value of the register unless another consumer took it."""
        return self.value_at(self.position)

    def value_at(self, position: int) -> str:
        """Return the register's value for a position."""
        return f"{position} {self._turn}"

    @property
    def durable_position(self) -> int:
        """Position of the last durable commit, by any consumer; 0 before the first.

        In a replicated output it is on enough machines, or the input could be trimmed above what a takeover
        of the output leaves.
        """
        position = self._read()[0]
        replicated = self._replicated_limit
        if replicated is None:
            return position
        while self._accepted and self._accepted[0][0] <= replicated:
            self._safe_position = self._accepted.popleft()[1]
        return min(position, self._safe_position)

    def note_accepted(self, position: int, span: range, *, is_safe: bool) -> None:
        """Take note of an accepted commit; ``is_safe`` if it is known to be as safe as the output can make
        it."""
        self.position = position
        if is_safe:
            self._accepted.clear()
            self._safe_position = position
        elif span:
            self._accepted.append((span.stop, position))

    @property
    def is_replicated_by_default(self) -> bool:
        """Whether commits of the output that name no level wait for its copies."""
        return getattr(self._output, "durability", None) == Durability.REPLICATED

    @property
    def _replicated_limit(self) -> int | None:
        limit: int | None = getattr(
            self._output, "replicated_limit", None
        )  # not all logs have copies
        return limit

    @property
    def is_ours(self) -> bool:
        """Whether no other consumer has taken it durably."""
        return self._read()[1] == self._turn

    async def take(self, hint: int) -> None:
        """Take the register over; ``hint`` is the position if there was no register yet.

        When this returns, the former owner is fenced.
        """
        while True:
            position, turn = self._read()
            self._turn = turn + 1
            self.position = position or hint
            before = {self.name: self._output.registers.get(self.name)}
            level = Durability.DISK if self._replicated_limit is None else Durability.REPLICATED
            try:
                async with self._output.transaction(
                    expect=before, update={self.name: self.value}, durability=level
                ):
                    pass
            except RegisterMismatchError:
                continue  # another one took it at the same moment; try again
            self._safe_position = self.position
            return

    def fenced(self) -> FencedError:
        """Return the error for a consumer whose register was taken over."""
        return FencedError(
            f"another consumer {self._consumer!r} took over; this one committed nothing since "
            f"offset {self.position}"
        )

    def _read(self) -> tuple[int, int]:
        value = self._output.registers.get(self.name)
        if value is None:
            return 0, 0
        position, _, turn = value.partition(" ")
        try:
            return int(position), int(turn)
        except ValueError:
            raise CorruptionError(
                f"register {self.name!r} is not a consumer's: {value!r}",
                path=str(self._output.path),
            ) from None


class TransactionContext(Protocol):
    """What a transaction needs of its consumer."""

    @property
    def check_home(self) -> Callable[[], None]:
        """Raises in a child process, another thread or another event loop."""

    def check(self) -> int:
        """Return the offset of the next record to deliver; raises if the consumer cannot continue."""

    def on_rollback(self) -> None:
        """Go back to the last commit."""

    async def on_commit(self) -> None:
        """Record that the register's position moved. Raises nothing but cancellation."""

    def on_fence(self, error: WalError) -> None:
        """Refuse everything from now on."""


class ConsumerTransaction(Owned, Generic[OutputT]):
    """A transaction of a consumer's output log; see :meth:`walstore.Consumer.transaction`."""

    def __init__(
        self,
        place: TransactionContext,
        output: OutputLog[OutputT],
        register: ConsumerRegister,
        durability: AnyDurability | None,
    ) -> None:
        """Not for callers; see :meth:`walstore.Consumer.transaction`."""
        self._place = place
        self._output = output
        self._register = register
        self._durability = durability
        self._inner: AbstractAsyncContextManager[OutputT] | None = None
        self._transaction: OutputT | None = None

    async def __aenter__(self) -> OutputT:
        register = self._register
        self._place.check()
        self._inner = self._output.transaction(
            expect={register.name: register.value}, durability=self._durability
        )
        self._transaction = await self._inner.__aenter__()
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._inner is not None
        assert self._transaction is not None
        if error is not None:
            try:
                await self._inner.__aexit__(kind, error, trace)
            finally:
                self._place.on_rollback()
        else:
            await self._commit(self._inner, self._transaction)

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._place.check_home()

    async def _commit(
        self, inner: AbstractAsyncContextManager[OutputT], transaction: OutputT
    ) -> None:
        register = self._register
        position = register.position
        is_done = False
        try:
            try:
                position = self._place.check()
            except WalError as error:
                await inner.__aexit__(type(error), error, error.__traceback__)
                raise
            transaction.set_registers({register.name: register.value_at(position)})
            await inner.__aexit__(None, None, None)
            is_done = True
        except RegisterMismatchError as mismatch:
            fenced = register.fenced()
            self._place.on_fence(fenced)
            raise fenced from mismatch
        finally:
            # Also after a cancellation: an accepted commit still happens.
            span = transaction.span
            is_accepted = span is not None
            if span is not None:
                register.note_accepted(position, span, is_safe=is_done and self._waits_for_copies)
            else:
                self._place.on_rollback()
        if is_accepted:
            await self._place.on_commit()

    @property
    def _waits_for_copies(self) -> bool:
        """Whether the commit returns once enough machines have it, if the output is replicated."""
        if self._durability is None:
            return self._register.is_replicated_by_default
        return self._durability == Durability.REPLICATED
