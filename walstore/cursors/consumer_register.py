"""ConsumerRegister: the position of a consumer, stored in its output log.

A register changes in the same frame as the records of a transaction, so output and position survive
together or not at all. Its value is the position and a takeover number, ``"42 3"``. Each takeover
raises the number, so the next commit of the former owner finds an unexpected value.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from walstore.errors import CorruptionError, FencedError, RegisterMismatchError
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
        """Position of the last durable commit, by any consumer; 0 before the first."""
        return self._read()[0]

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
            try:
                async with self._output.transaction(
                    expect=before, update={self.name: self.value}, durability=Durability.DISK
                ):
                    return
            except RegisterMismatchError:
                continue  # another one took it at the same moment; try again

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
