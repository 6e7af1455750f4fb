"""The stored state of a coordinator, the port for its storage, and a store in the registers of a log."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgpack

from walstore.errors import (
    FencedError,
    FormatVersionError,
    LimitExceededError,
    RegisterMismatchError,
)
from walstore.log.wal import Wal

VERSION: Final = 1
PART_CHARS: Final = 4096
MAX_PARTS: Final = 64


class StateStore(Protocol):
    """A place for one small value that is replaced atomically and durably, by one owner at a time.

    :class:`RegisterStore` is one. A database table that also contains the results of the transactions
    is another: then state and results change in one step.
    """

    async def load(self) -> bytes | None:
        """Return the value, or None if there is none yet."""

    async def save(self, data: bytes) -> None:
        """Replace the value that this object loaded or saved last; durable on return.

        FencedError if the stored value is another one. The ``outcome`` of other walstore errors says
        whether it was replaced; any other exception counts as ``"unknown"``.
        """


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """The authoritative record of the last committed transaction."""

    producers: tuple[bytes, ...]
    """Producers that may have published since: the last is the current session's, the others are dead."""
    outputs: tuple[str, ...]
    """``log_id`` of every log that they may have published to."""
    intents: Mapping[str, bytes] = field(default_factory=dict)
    """Acknowledgements of the last committed transaction."""
    position: bytes | None = None
    """The position stored by the last committed transaction."""

    def to_bytes(self) -> bytes:
        """Return the state as msgpack; docs/messages.md has the fields."""
        packed: bytes = msgpack.packb(
            [VERSION, self.producers, self.outputs, self.intents, self.position]
        )
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> CoordinatorState:
        """Parse :meth:`to_bytes`; FormatVersionError for a newer version, ValueError for other bytes."""
        try:
            fields: list[Any] = msgpack.unpackb(data)
            version = int(fields[0])
        except Exception as error:
            raise ValueError("these bytes are not the state of a coordinator") from error
        if version != VERSION:
            raise FormatVersionError(
                "the coordinator's state has another version",
                path="coordinator state",
                found=version,
                supported=VERSION,
            )
        _, producers, outputs, intents, position = fields
        return cls(tuple(producers), tuple(outputs), intents, position)


class RegisterStore:
    """Keeps a value in registers ``name``, ``name/0``, ``name/1``, … of a log.

    The log may be one of those that the transactions publish to. The first register contains a version
    and the number of parts; a save expects the version it knows, so a program that another one replaced
    can no longer save. At most 64 parts, 192 KiB; every segment of the log begins with a copy, so keep
    it small.
    """

    def __init__(self, log: Wal, name: str = "coordinator") -> None:
        """Use registers of ``log`` whose names begin with ``name``."""
        self._log = log
        self._name = name
        self._seen: str | None = None  # the first register, as loaded or saved last

    async def load(self) -> bytes | None:
        """Return the value, or None if there is none yet."""
        registers = self._log.registers
        self._seen = registers.get(self._name)
        if self._seen is None:
            return None
        count = int(self._seen.split()[1])
        text = "".join(registers[f"{self._name}/{part}"] for part in range(count))
        return base64.b64decode(text)

    async def save(self, data: bytes) -> None:
        """Replace the value; FencedError if another store replaced it since.

        LimitExceededError if it is too large; otherwise raises as a transaction of the log.
        """
        text = base64.b64encode(data).decode()
        parts = [text[at : at + PART_CHARS] for at in range(0, len(text), PART_CHARS)]
        if len(parts) > MAX_PARTS:
            raise LimitExceededError(
                f"a state of {len(data)} bytes does not fit {MAX_PARTS} registers; keep less in it",
                limit=MAX_PARTS,
            )
        version, count = map(int, self._seen.split()) if self._seen else (0, 0)
        first = f"{version + 1} {len(parts)}"
        update: dict[str, str | None] = {self._name: first}
        update |= {f"{self._name}/{at}": None for at in range(len(parts), count)}
        update |= {f"{self._name}/{at}": part for at, part in enumerate(parts)}
        try:
            async with self._log.transaction(expect={self._name: self._seen}, update=update):
                pass
        except RegisterMismatchError as error:
            raise FencedError(
                f"another program took over the state in register {self._name!r}"
            ) from error
        self._seen = first
