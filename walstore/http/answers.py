"""Answers: records for the clients of an HTTP server, made when there is room and sent as they are taken.

An answer has about ``read_bytes``, or little if there is no room for that. Only one that begins with a larger
record may need more. Of that a client is sent the beginning, in little pieces, and nothing is held of the
rest until the client has taken that; the beginning is kept for others that ask for the same, and made again
if it is not. So clients that take nothing cost little, and keep nobody waiting. All that are sent the same
large record at the same time share it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from walstore.core.append.budgets import ChannelBudget
from walstore.core.runtime.tasks import start_task
from walstore.http.beginnings import Beginnings, Key, MadeAnswer, Make
from walstore.http.sending import Sending
from walstore.http.stream import Stream, StreamChunk
from walstore.serve.outgoing import SHORT_BYTES, TAKER_BYTES
from walstore.serve.room import Room

if TYPE_CHECKING:
    from aiohttp import web

    from walstore.core.ports import Clock

logger = logging.getLogger("walstore.http")

_SWEEP_SECONDS: Final = 0.5
_ALL: Final = 1 << 62
_COPIES: Final = 2
"""Of an answer that is being made: records, and what is made of them."""

Begin = Callable[[StreamChunk, int], "web.StreamResponse"]
"""Returns the answer whose so many bytes are sent; one with another status than 200 is sent without them."""
End = Callable[[StreamChunk], bytes]
"""Returns what follows the bytes."""


class _Shared:
    """A large answer, for all clients that are sent it now, or wait for it to be made."""

    def __init__(self, limit: int, room: Room) -> None:
        """Of the records up to ``limit``; ``room`` is what it takes, until nobody is sent it."""
        self.limit = limit
        self.room = room
        self.clients = 0
        self.making: asyncio.Task[MadeAnswer]


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
        self._shared: dict[Key, _Shared] = {}
        self._sendings: set[Sending] = set()
        self._beginnings = Beginnings(budget)
        # Held while a large answer is made.
        self._making = asyncio.Lock()

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
        sending = Sending(request, self._clock.monotonic())
        self._sendings.add(sending)
        try:
            async with self._made(key) as (chunk, size, data):
                answer = begin(chunk, size)
                if answer.status != 200:
                    return answer, chunk
                await answer.prepare(request)
                at = await sending.write(data)
                begun = 0 if data else min(size, TAKER_BYTES)
                del data
            await sending.taken()
            while at < begun:
                at = await sending.write_little((await self._begin(key, chunk.limit)).data, at)
                await sending.taken()
            while at < size:
                async with self._large(key, _COPIES * size, chunk.limit) as (_, _, data):
                    at = await sending.write(data, at)
                    del data
                await sending.taken()
            if end is not None:
                await sending.write(end(chunk))
                await sending.taken()
            return answer, chunk
        finally:
            self._sendings.discard(sending)

    async def sweep(self) -> None:
        """End connections that take nothing of their answers, until cancelled."""
        try:
            while True:
                await self._clock.sleep(min(_SWEEP_SECONDS, self._stall_seconds / 2))
                self._look(self._clock.monotonic())
        finally:
            self._beginnings.close()

    def _look(self, now: float) -> None:
        self._beginnings.tidy(now, is_in_need=bool(self._budget.waiting))
        is_full = not self._budget.fits(_COPIES * self._most_bytes)
        is_in_need = is_full or bool(self._budget.waiting)
        for sending in list(self._sendings):
            why = sending.stall(now, most_seconds=self._stall_seconds, is_in_need=is_in_need)
            if why is not None:
                logger.warning("%s is disconnected: %s", sending.peer, why)
                sending.close()
            elif self._budget.waiting:
                sending.let_go()

    # -- making ------------------------------------------------------------------------------

    @asynccontextmanager
    async def _made(self, key: Key) -> AsyncIterator[MadeAnswer]:
        """Yield an answer: of as much as there is room for, or one without data of a record that has none."""
        stream, start, make = key
        if key in self._shared:
            async with self._large(key) as made:
                yield made
            return
        beginning = self._beginning(key)
        if beginning is None:
            room = Room(self._budget)
            try:
                is_short = not room.has(_COPIES * self._most_bytes)
                most = min(SHORT_BYTES, self._most_bytes) if is_short else self._most_bytes
                room.hold(_COPIES * most)
                chunk = await stream.read(start, most, None, most + SHORT_BYTES)
                if chunk.values or chunk.is_empty:
                    data = await make(stream, chunk)
                    chunk = chunk._replace(values=())
                    room.hold(len(data))
                    yield MadeAnswer(chunk, len(data), data)
                    return
            finally:
                room.close()
            beginning = await self._begin(key, chunk.limit)
        cost = _COPIES * beginning.size
        if Room(self._budget).has(cost):
            async with self._large(key, cost, beginning.chunk.limit) as made:
                yield made
        else:
            yield beginning._replace(data=b"")

    def _beginning(self, key: Key) -> MadeAnswer | None:
        """Return the beginning of a large answer, if it is kept."""
        return self._beginnings.get(key, self._clock.monotonic())

    async def _begin(self, key: Key, limit: int) -> MadeAnswer:
        """Return the beginning of an answer of the records up to ``limit``; make it if it is not kept."""
        if (made := self._beginning(key)) is not None:
            return made
        async with self._making:
            made = self._beginning(key)  # others may have waited for the same
            if made is None:
                made = await self._make(key, limit)
                made = made._replace(data=made.data[:TAKER_BYTES])
                self._beginnings.keep(key, made, self._clock.monotonic())
            return made

    async def _make(self, key: Key, limit: int) -> MadeAnswer:
        stream, start, make = key
        chunk = await stream.read(start, _ALL, limit)
        data = await make(stream, chunk)
        return MadeAnswer(chunk._replace(values=()), len(data), data)

    @asynccontextmanager
    async def _large(
        self, key: Key, cost: int = 0, limit: int | None = None
    ) -> AsyncIterator[MadeAnswer]:
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
            made = shared.making.result()
            yield made._replace(chunk=key[0].seen(made.chunk))
        finally:
            shared.clients -= 1
            if not shared.clients:
                shared.making.cancel()
                shared.room.close()
                if self._shared.get(key) is shared:
                    del self._shared[key]

    async def _make_shared(self, shared: _Shared, key: Key, cost: int) -> MadeAnswer:
        await shared.room.wait(cost, is_first=True)
        async with self._making:
            made = await self._make(key, shared.limit)
        shared.room.hold(made.size)
        return made


def _heed(making: asyncio.Task[MadeAnswer]) -> None:
    """Note the error of an answer that nobody waits for any more."""
    if not making.cancelled():
        making.exception()
