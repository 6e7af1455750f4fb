"""The changes to a file since its last sync, and what a crash may leave of them. Pure.

``power.py`` keeps one :class:`FileContent` for each file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

SECTOR_BYTES: Final = 512

Keep = Callable[[], bool]
"""Called once for each change that may be kept or lost."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written at a position."""

    position: int
    data: bytes

    @property
    def limit(self) -> int:
        """Position after the last byte."""
        return self.position + len(self.data)

    def sectors(self) -> list[Write]:
        """Split at the sector boundaries of the file."""
        first = self.position - self.position % SECTOR_BYTES
        cuts = [self.position, *range(first + SECTOR_BYTES, self.limit, SECTOR_BYTES), self.limit]
        return [
            Write(low, self.data[low - self.position : high - self.position])
            for low, high in pairwise(cuts)
        ]


@dataclass(frozen=True, slots=True)
class Resize:
    """A new length of the file."""

    size_bytes: int


class FileContent:
    """A file's bytes: what is durable, and the changes since, in order."""

    def __init__(self, durable: bytes, *, most_pending: int | None = None) -> None:
        """Begin with durable bytes; above ``most_pending`` changes the oldest are dropped."""
        self._durable = bytearray(durable)
        self._pending: deque[Write | Resize] = deque(maxlen=most_pending)
        self._size_bytes = len(durable)

    @property
    def pending(self) -> int:
        """How many changes no sync has covered."""
        return len(self._pending)

    def write(self, position: int, data: bytes) -> None:
        """Record a write; one beyond the end also changes the length."""
        if not data:
            return
        write = Write(position, data)
        if write.limit > self._size_bytes:
            self.resize(write.limit)
        self._pending.append(write)

    def resize(self, size_bytes: int) -> None:
        """Record that the file was truncated or extended."""
        self._size_bytes = size_bytes
        self._pending.append(Resize(size_bytes))

    def reserve(self, size_bytes: int) -> None:
        """Record that space was reserved, which extends a shorter file."""
        if size_bytes > self._size_bytes:
            self.resize(size_bytes)

    def sync(self, count: int) -> None:
        """Make the first ``count`` pending changes durable."""
        for _ in range(min(count, len(self._pending))):
            change = self._pending.popleft()
            if isinstance(change, Resize):
                _resize(self._durable, change.size_bytes)
            else:
                _overwrite(self._durable, change)

    def survivors(self, keep: Keep) -> bytes:
        """Return the bytes as they may be after a crash.

        Sectors are kept one by one. Lengths are kept in order until ``keep`` refuses one.
        """
        content = bytearray(self._durable)
        lengths_kept = True
        for change in self._pending:
            if isinstance(change, Resize):
                lengths_kept = lengths_kept and keep()
                if lengths_kept:
                    _resize(content, change.size_bytes)
                continue
            for sector in change.sectors():
                if keep():
                    _overwrite(content, sector)
        return bytes(content)


def _resize(content: bytearray, size_bytes: int) -> None:
    del content[size_bytes:]
    content.extend(bytes(size_bytes - len(content)))


def _overwrite(content: bytearray, write: Write) -> None:
    """Replace bytes in place; bytes beyond the end stay lost."""
    room = len(content) - write.position
    if room > 0:
        data = write.data[:room]
        content[write.position : write.position + len(data)] = data
