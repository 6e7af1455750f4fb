"""Sending: one answer of an HTTP server on its way to its client, in pieces as that takes them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from walstore.core.runtime.tasks import start_task
from walstore.serve.outgoing import SHORT_BYTES, TAKER_BYTES
from walstore.serve.stalls import SPARING_NEED_SECONDS, Taking

if TYPE_CHECKING:
    from aiohttp import web

_PIECE_BYTES: Final = 128 << 10
_SMALL_PIECE_BYTES: Final = 16 << 10
"""Of what counts for nothing: so little waits beyond :data:`SHORT_BYTES` for a client that takes nothing."""
_LONG_SECONDS: Final = 0.5
"""Who takes nothing for so long lets others have its room."""


class Sending:
    """Writes to one client. Belongs to the event loop."""

    def __init__(self, request: web.Request, now: float) -> None:
        """Answer ``request``."""
        self._request = request
        self._written_bytes = 0
        # Ends when the client has taken nearly all that was written, if it has not yet.
        self._draining: asyncio.Task[None] | None = None
        # Done when what is being written is to be dropped.
        self._letting_go: asyncio.Future[None] | None = None
        self._taking = Taking(now)

    @property
    def _left_bytes(self) -> int:
        """What the client has not taken."""
        transport = self._request.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def stall(self, now: float, *, most_seconds: float, is_in_need: bool) -> str | None:
        """Return why to end the connection, as :class:`walstore.serve.stalls.Taking`.

        One that has taken much lets go of what others need. It may be slow: its system takes large steps.
        """
        left = self._left_bytes
        need_seconds = SPARING_NEED_SECONDS if is_in_need and not self.is_taker else most_seconds
        return self._taking.stall(
            self._written_bytes - left if left else None,
            now,
            most_seconds=most_seconds,
            need_seconds=need_seconds,
        )

    @property
    def is_taker(self) -> bool:
        """Whether the client has taken more than its socket holds."""
        return self._written_bytes - self._left_bytes >= TAKER_BYTES

    async def write_little(self, data: bytes, start: int) -> int:
        """Write a little from byte ``start`` on, and return how far; await :meth:`taken` before more."""
        limit = min(start + _SMALL_PIECE_BYTES, len(data))
        await self._put(data[start:limit])
        return limit

    async def write(self, data: bytes, start: int = 0) -> int:
        """Write from byte ``start`` on, and return how far; await :meth:`taken` before more is written.

        Less than all if the client takes nothing and :meth:`let_go` was called.
        """
        for at in range(start, len(data), _PIECE_BYTES):
            if at > start and self._left_bytes > SHORT_BYTES and not await self._is_taken():
                return at
            # Copied: a view would keep all of the data as long as its last piece.
            await self._put(data[at : at + _PIECE_BYTES])
        return len(data)

    def let_go(self) -> None:
        """If the client takes nothing for long, let others have the room of what it is sent."""
        is_long = self._taking.idle_seconds >= _LONG_SECONDS
        if is_long and self._letting_go is not None and not self._letting_go.done():
            self._letting_go.set_result(None)

    async def taken(self) -> None:
        """Return once the client has taken nearly all that was written."""
        if self._draining is None:
            await self._request.writer.drain()
            return
        await asyncio.wait((self._draining,))
        draining, self._draining = self._draining, None
        draining.result()

    def close(self) -> None:
        """End the connection now."""
        if self._request.transport is not None:
            self._request.transport.abort()

    @property
    def peer(self) -> str:
        """Who the client is, for people."""
        return str(self._request.remote or "a client")

    async def _is_taken(self) -> bool:
        """Wait until the client has taken nearly all; False if what is written is to be dropped before."""
        loop = asyncio.get_running_loop()
        # A task that is never cancelled: what is answered next on the connection waits for the same. It ends
        # with the connection.
        self._draining = start_task(self._drain())
        self._letting_go = loop.create_future()
        both = {self._draining, self._letting_go}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        self._letting_go = None
        if not self._draining.done():
            return False
        await self.taken()
        return True

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):  # what is written next says so, too
            await self._request.writer.drain()

    async def _put(self, data: bytes) -> None:
        self._written_bytes += len(data)
        writer: Any = self._request.writer  # whose interface does not show that it need not wait
        await writer.write(data, drain=False)
