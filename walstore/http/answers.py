"""Answers: records for the clients of an HTTP server, made when there is room and sent as they are taken.

An answer has about ``read_bytes``, or little if there is no room for that. Only one that begins with a larger
record may need more. Of that a client is sent the beginning, and nothing is held of the rest until it has
taken that. So clients that take nothing keep nobody waiting. All that are sent the same large record at the
same time share it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from walstore.append.budgets import ChannelBudget
from walstore.http.sending import Sending
from walstore.http.stream import Stream, StreamChunk
from walstore.runtime.tasks import start_task
from walstore.serve.outgoing import SHORT_BYTES, TAKER_BYTES
from walstore.serve.room import Room

if TYPE_CHECKING:
    from aiohttp import web

    from walstore.ports import Clock

logger = logging.getLogger("walstore")

_SWEEP_SECONDS: Final = 0.5
_COPIES: Final = 2
"""Of an answer that is being made: records, and what is made of them."""

Make = Callable[[Stream, StreamChunk], Awaitable[bytes]]
"""Makes the bytes of an answer: of the same records always the same."""
Begin = Callable[[StreamChunk, int], "web.StreamResponse"]
"""Returns the answer whose so many bytes are sent; one with another status than 200 is sent without them."""
End = Callable[[StreamChunk], bytes]
"""Returns what follows the bytes."""
_Key = tuple[Stream, int, Make]


class _Made(NamedTuple):
    """The bytes of an answer."""

    chunk: StreamChunk
    """What they were made of, without the records."""
    data: bytes
    is_held: bool
    """Whether there is room for them; if not, nothing may be waited for."""


class _Shared:
    """A large answer, for all clients that are sent it now, or wait for it to be made."""

    def __init__(self, limit: int, room: Room) -> None:
        """Of the records up to ``limit``; ``room`` is what it takes, until nobody is sent it."""
        self.limit = limit
        self.room = room
        self.clients = 0
        self.making: asyncio.Task[_Made]


class Answers:
    """Sends records to all clients of a server, within one limit. Belongs to its event loop."""

    def __init__(
        self, budget: ChannelBudget, most_bytes: int, stall_seconds: float, clock: Clock
    ) -> None:
        """Send up to about ``most_bytes`` in one answer; end connections that take nothing for so long."""
        self._budget = budget
        self._most_bytes = most_bytes
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._shared: dict[_Key, _Shared] = {}
        self._sendings: set[Sending] = set()
        # Held while a large answer is made; how many wait for that, and the last one made while some do.
        self._making = asyncio.Lock()
        self._makers = 0
        self._last: tuple[_Key, int, _Made] | None = None

    async def send(
        self,
        request: web.Request,
        stream: Stream,
        start: int,
        begin: Begin,
        make: Make,
        end: End | None = None,
    ) -> tuple[web.StreamResponse, StreamChunk]:
        """Send records from ``start`` on, without waiting for any; return the answer and what was sent.

        Returns when the client has taken nearly all. ConnectionError if it is gone.
        """
        key = stream, start, make
        sending = Sending(request, self._budget, self._clock.monotonic())
        self._sendings.add(sending)
        try:
            async with self._made(key) as (chunk, data, is_held):
                size = len(data)
                answer = begin(chunk, size)
                if answer.status != 200:
                    return answer, chunk
                await answer.prepare(request)
                if is_held:
                    at = await sending.write(data)
                else:
                    at = await sending.write_first(data, TAKER_BYTES)
            while at < size:
                del data
                await sending.taken()
                async with self._large(key, _COPIES * size, chunk.limit) as (_, data, _):
                    at = await sending.write(data, at)
            if end is not None:
                await sending.write(end(chunk))
            return answer, chunk
        finally:
            sending.end()
            self._sendings.discard(sending)

    async def sweep(self) -> None:
        """End connections that take nothing of their answers, until cancelled."""
        while True:
            await self._clock.sleep(min(_SWEEP_SECONDS, self._stall_seconds / 2))
            now = self._clock.monotonic()
            is_in_need = bool(self._budget.waiting) or not self._budget.fits(
                _COPIES * self._most_bytes
            )
            for sending in list(self._sendings):
                why = sending.stall(now, most_seconds=self._stall_seconds, is_in_need=is_in_need)
                if why is not None:
                    logger.warning("%s is disconnected: %s", sending.peer, why)
                    sending.close()
                elif self._budget.waiting:
                    sending.let_go()

    # -- making ------------------------------------------------------------------------------

    @asynccontextmanager
    async def _made(self, key: _Key) -> AsyncIterator[_Made]:
        """Yield an answer: of as much as there is room for, or of one record."""
        stream, start, make = key
        if key in self._shared:
            async with self._large(key) as made:
                yield made
            return
        room = Room(self._budget)
        try:
            is_short = not room.has(_COPIES * self._most_bytes)
            most = min(SHORT_BYTES, self._most_bytes) if is_short else self._most_bytes
            room.hold(_COPIES * most)
            chunk = await stream.read(start, most)
            size = chunk.size_bytes
            if size <= most + SHORT_BYTES:
                data = await make(stream, chunk)
                chunk = chunk._replace(values=())
                room.hold(len(data))
                yield _Made(chunk, data, is_held=True)
                return
        finally:
            room.close()
        cost, limit = _COPIES * size, chunk.limit
        del chunk  # nothing is held while it waits
        if room.has(cost):
            async with self._large(key, cost, limit) as made:
                yield made
            return
        async with self._made_alone(key, cost, limit) as made:
            yield made

    @asynccontextmanager
    async def _made_alone(self, key: _Key, cost: int, limit: int) -> AsyncIterator[_Made]:
        """Yield a large answer while no other one is made; those who wait for the same get the same."""
        stream, start, make = key
        self._makers += 1
        try:
            async with self._making:
                if self._last is None or self._last[:2] != (key, limit):
                    self._last = None
                    chunk = await stream.read(start, cost, limit)
                    data = await make(stream, chunk)
                    chunk = chunk._replace(values=())
                    self._last = key, limit, _Made(chunk, data, is_held=False)
                yield self._last[2]
        finally:
            self._makers -= 1
            if not self._makers:
                self._last = None

    @asynccontextmanager
    async def _large(
        self, key: _Key, cost: int = 0, limit: int | None = None
    ) -> AsyncIterator[_Made]:
        """Yield a large answer, of the records up to ``limit``, once there is room for it.

        Without a limit it is one that others are sent.
        """
        shared = self._shared.get(key)
        if shared is None or limit not in {None, shared.limit}:
            assert limit is not None
            shared = self._shared[key] = _Shared(limit, Room(self._budget))
            shared.making = start_task(self._make_shared(shared, key, cost))
            shared.making.add_done_callback(_heed)
        shared.clients += 1
        try:
            await asyncio.wait({shared.making})
            chunk, data, _ = shared.making.result()
            yield _Made(key[0].seen(chunk), data, is_held=True)
        finally:
            shared.clients -= 1
            if not shared.clients:
                shared.making.cancel()
                shared.room.close()
                if self._shared.get(key) is shared:
                    del self._shared[key]

    async def _make_shared(self, shared: _Shared, key: _Key, cost: int) -> _Made:
        await shared.room.wait(cost, is_first=True)
        async with self._made_alone(key, cost, shared.limit) as made:
            shared.room.hold(len(made.data))
            return made


def _heed(making: asyncio.Task[_Made]) -> None:
    """Note the error of an answer that nobody waits for any more."""
    if not making.cancelled():
        making.exception()
