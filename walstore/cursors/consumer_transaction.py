"""ConsumerTransaction: output and position of a consumer, committed together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, Protocol

from walstore.cursors.consumer_register import ConsumerRegister, OutputLog, OutputT
from walstore.errors import RegisterMismatchError, WalError
from walstore.records import AnyDurability


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


class ConsumerTransaction(Generic[OutputT]):
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
        self._place.check_home()
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
        self._place.check_home()
        assert self._inner is not None
        assert self._transaction is not None
        if error is not None:
            try:
                await self._inner.__aexit__(kind, error, trace)
            finally:
                self._place.on_rollback()
        else:
            await self._commit(self._inner, self._transaction)

    async def _commit(
        self, inner: AbstractAsyncContextManager[OutputT], transaction: OutputT
    ) -> None:
        register = self._register
        position = register.position
        try:
            try:
                position = self._place.check()
            except WalError as error:
                await inner.__aexit__(type(error), error, error.__traceback__)
                raise
            transaction.set_registers({register.name: register.value_at(position)})
            await inner.__aexit__(None, None, None)
        except RegisterMismatchError as mismatch:
            fenced = register.fenced()
            self._place.on_fence(fenced)
            raise fenced from mismatch
        finally:
            # Also after a cancellation: an accepted commit still happens.
            is_accepted = transaction.span is not None
            if is_accepted:
                register.position = position
            else:
                self._place.on_rollback()
        if is_accepted:
            await self._place.on_commit()
