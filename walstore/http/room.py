"""Room: bytes of a budget that one request holds, for its body or for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from walstore.append.budgets import ChannelBudget
from walstore.http.protocol import RefusedError
from walstore.http.stream import Stream, StreamChunk

SHORT_BYTES: Final = 64 << 10
"""What takes no more never waits, so that nobody is kept from a small request or answer."""
_COPIES: Final = 3
"""Of an answer: records, what is made of them, and what waits for the client."""


class Room:
    """Of one request, until it is closed. Belongs to the event loop."""

    def __init__(self, budget: ChannelBudget, patience_seconds: float) -> None:
        """Wait up to so long if there is none."""
        self._most_bytes = budget.capacity_bytes // 2  # there is soon room for that
        self._patience_seconds = patience_seconds
        self._is_admitted = asyncio.Event()
        self._share = budget.share(self._is_admitted.set)

    def has(self, size_bytes: int) -> bool:
        """Whether there is so much."""
        return self._share.has_room(size_bytes)

    def take(self, size_bytes: int) -> None:
        """Hold so much in any case."""
        self._share.take(size_bytes)

    def give(self, size_bytes: int) -> None:
        """Hold so much less."""
        self._share.give(size_bytes)
        self._share.serve()

    async def wait(self, size_bytes: int) -> None:
        """Hold so much once there is room, in turn; RefusedError with 503 if there is none in time."""
        wanted = min(size_bytes, self._most_bytes)
        try:
            async with asyncio.timeout(self._patience_seconds):
                while size_bytes > SHORT_BYTES and not self._share.has_room(wanted):
                    self._is_admitted.clear()
                    self._share.wait(wanted)
                    await self._is_admitted.wait()
        except TimeoutError:
            text = "what all clients send and do not take is too much; send the request again"
            raise RefusedError(503, text, {"Retry-After": "1", "Connection": "close"}) from None
        self._share.take(size_bytes)

    def close(self) -> None:
        """Hold nothing."""
        self._share.close()


class Answers:
    """Records for answers, of all clients within one limit. Each is held until its client has taken it."""

    def __init__(self, budget: ChannelBudget, most_bytes: int, patience_seconds: float) -> None:
        """Read up to ``most_bytes`` for one answer, less if there is no room, or one larger record."""
        self._budget = budget
        self._most_bytes = most_bytes
        self._patience_seconds = patience_seconds

    @property
    def is_short(self) -> bool:
        """Whether there is no room for another answer of the usual size."""
        return not self._budget.fits(_COPIES * self._most_bytes)

    @asynccontextmanager
    async def read(self, stream: Stream, start: int) -> AsyncIterator[StreamChunk]:
        """Yield records from ``start`` on, without waiting for any; their room is held in the block."""
        room = Room(self._budget, self._patience_seconds)
        try:
            most = self._most_bytes if room.has(_COPIES * self._most_bytes) else SHORT_BYTES
            most = min(most, self._most_bytes)
            room.take(_COPIES * most)
            chunk = await stream.read(start, most)
            more = _COPIES * (sum(map(len, chunk.values)) - most)
            if more > SHORT_BYTES and not room.has(more):
                del chunk  # nothing is held while it waits
                room.give(_COPIES * most)
                await room.wait(_COPIES * most + more)
                chunk = await stream.read(start, most)
            elif more > 0:
                room.take(more)
            yield chunk
        finally:
            room.close()
