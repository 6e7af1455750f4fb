"""The stored state of a coordinator, as a value and as bytes, and the port for its storage. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgpack

from walstore.errors import FormatVersionError

VERSION: Final = 1


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
