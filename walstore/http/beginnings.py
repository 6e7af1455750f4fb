"""Beginnings: what clients are sent first of large records, for all that ask for the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from walstore.core.append.budgets import ChannelBudget
from walstore.http.stream import Stream, StreamChunk
from walstore.serve.room import Room

_KEEP_SECONDS: Final = 10.0
"""How long one is kept that nobody asks for."""
_NEED_KEEP_SECONDS: Final = 0.5
"""The same while others wait for room."""

Make = Callable[[Stream, StreamChunk], Awaitable[bytes]]
"""Makes the bytes of an answer: of the same records always the same."""
Key = tuple[Stream, int, Make]
"""A stream, the offset that an answer begins at, and how it is made."""


class MadeAnswer(NamedTuple):
    """The bytes of an answer."""

    chunk: StreamChunk
    """What they were made of, without the records."""
    size: int
    data: bytes
    """All of them, or of a large one the beginning, or none if there is no room for it."""


class Beginnings:
    """Beginnings in memory: of the answers' budget a quarter, or one. Belongs to the event loop."""

    def __init__(self, budget: ChannelBudget) -> None:
        """Count them in ``budget``."""
        self._room = Room(budget)
        self._most_bytes = budget.capacity_bytes // 4
        # With the time of their last use; the one used last at the end.
        self._kept: OrderedDict[Key, tuple[MadeAnswer, float]] = OrderedDict()

    def get(self, key: Key, now: float) -> MadeAnswer | None:
        """Return one that is kept, as of now; None if there is none, or its records were removed."""
        stream, start, _ = key
        if key not in self._kept or start < stream.head:
            return None
        made, _ = self._kept[key]
        self.keep(key, made, now)
        return made._replace(chunk=stream.seen(made.chunk))

    def keep(self, key: Key, made: MadeAnswer, now: float) -> None:
        """Keep one; those used longest ago go if there are too many."""
        self._kept[key] = made, now
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and self._bytes > self._most_bytes:
            self._kept.popitem(last=False)
        self._room.hold(self._bytes)

    def tidy(self, now: float, *, is_in_need: bool) -> None:
        """Forget those of deleted streams, and those that nobody asked for lately."""
        most_seconds = _NEED_KEEP_SECONDS if is_in_need else _KEEP_SECONDS
        for key, (_, used) in list(self._kept.items()):
            stream = key[0]
            if now - used >= most_seconds or not stream.is_usable or stream.is_deleted:
                del self._kept[key]
        self._room.hold(self._bytes)

    def close(self) -> None:
        """Take nothing of the budget any more."""
        self._room.close()

    @property
    def _bytes(self) -> int:
        return sum(len(made.data) for made, _ in self._kept.values())
