"""ReadCheckpoint: the position of a reader of committed messages, as a value and as bytes. Pure.

The bytes are msgpack; docs/messages.md has the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack

from walstore.errors import FormatVersionError

VERSION: Final = 1


class ProducerState(NamedTuple):
    """A reader's state for one producer."""

    acked: int
    """Clock up to which its messages were delivered, or counted as delivered."""
    newest: int
    """Largest clock of any of its messages, including rolled-back ones."""
    begin: int
    """Offset from which its pending messages must be re-read; 0 if there are none."""
    seen_us: int
    """Timestamp of its last record."""


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Enough to continue after the last message delivered, without loss or repetition."""

    position: int
    """Offset of the next record to examine."""
    producers: Mapping[bytes, ProducerState] = field(default_factory=dict)
    """Producers seen within the horizon, and all that have pending messages."""

    @property
    def pin(self) -> int:
        """Lowest offset that a reader resuming here may have to read again: keep it in the log.

        It never decreases between checkpoints of a reader, so a cursor may follow it.
        """
        begins = (state.begin for state in self.producers.values() if state.begin)
        return min(begins, default=self.position)

    def to_bytes(self) -> bytes:
        """Return the checkpoint as bytes, about 40 for each producer."""
        rows = [[producer, *state] for producer, state in self.producers.items()]
        packed: bytes = msgpack.packb([VERSION, self.position, rows])
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> ReadCheckpoint:
        """Parse :meth:`to_bytes`; FormatVersionError for bytes of a newer version, ValueError for other
        bytes."""
        try:
            fields: list[Any] = msgpack.unpackb(data)
            version = int(fields[0])
        except Exception as error:
            raise ValueError("these bytes are not a read checkpoint") from error
        if version != VERSION:
            raise FormatVersionError(
                "the read checkpoint has another version",
                path="read checkpoint",
                found=version,
                supported=VERSION,
            )
        _, position, rows = fields
        states = {producer: ProducerState(*state) for producer, *state in rows}
        return cls(position, states)
