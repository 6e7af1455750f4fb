"""What a task returns of its records: some columns, some streams. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from walstore.spark.schema import HEADERS

_STORED_AS: Final = {
    "key": "key",
    "value": "value",
    "timestamp": "timestamp_us",
    "stream": "stream",
    HEADERS: "headers",
}
"""Columns that lie in the log, as ``arrow.SCHEMA`` names them; the others are known without it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns and the records of a read."""

    names: tuple[str, ...]
    """Columns of the rows, in order."""
    streams: frozenset[str] | None = None
    """Whose records; None for all, also those without a stream."""

    @property
    def columns(self) -> frozenset[str]:
        """What must be read of the records; nothing if topic, partition and offsets are all it takes."""
        filtered = {"stream"} if self.streams is not None else set()
        return frozenset(filtered | {_STORED_AS[name] for name in self.names if name in _STORED_AS})
