"""Connections: those of an HTTP server, bounded in number, and without a request for so long only.

aiohttp limits neither: a client that sends half of a head, or nothing, would be kept for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from walstore.core.ports import Clock
from walstore.serve.audit_trail import AuditTrail
from walstore.serve.outgoing import limit_ahead

_SWEEP_SECONDS: Final = 1.0


class Connections:
    """Makes the protocols of a server, and ends connections that are of no use. Of one event loop."""

    def __init__(
        self, make: Callable[[], asyncio.Protocol], *, most: int, idle_seconds: float, clock: Clock
    ) -> None:
        """Pass on to protocols that ``make()`` returns."""
        self._make = make
        self._most = most
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._open: dict[asyncio.BaseTransport, _Guard] = {}

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _Guard(self, self._make())

    def begin(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request of a connection is being answered."""
        guard = None if transport is None else self._open.get(transport)
        if guard is not None:
            guard.requests += 1

    def trail(self, transport: asyncio.BaseTransport | None) -> AuditTrail | None:
        """Return the audit lines of a connection; None if it is lost."""
        guard = None if transport is None else self._open.get(transport)
        return None if guard is None else guard.trail

    def end(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that the answer is given: the connection may wait for its next request."""
        guard = None if transport is None else self._open.get(transport)
        if guard is not None:
            guard.requests -= 1
            guard.idle_since = self._clock.monotonic()

    async def sweep(self) -> None:
        """End connections that have had no request for too long, until cancelled."""
        while True:
            await self._clock.sleep(min(_SWEEP_SECONDS, self._idle_seconds / 2))
            limit = self._clock.monotonic() - self._idle_seconds
            for guard in list(self._open.values()):
                if not guard.requests and guard.idle_since < limit:
                    guard.abort()

    async def end_after(self, seconds: float) -> None:
        """End all connections once the time is up."""
        await self._clock.sleep(seconds)
        for guard in list(self._open.values()):
            guard.abort()

    def joined(self, guard: _Guard, transport: asyncio.BaseTransport) -> bool:
        """Take a connection in; False if there are too many."""
        if len(self._open) >= self._most:
            return False
        guard.idle_since = self._clock.monotonic()
        self._open[transport] = guard
        return True

    def left(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection."""
        self._open.pop(transport, None)


class _Guard(asyncio.Protocol):
    """Passes everything on to the protocol of one connection."""

    def __init__(self, owner: Connections, inner: asyncio.Protocol) -> None:
        self.requests = 0
        self.idle_since = 0.0
        self._owner = owner
        self._inner = inner
        self._transport: Any = None
        self._is_in = False
        self.trail = AuditTrail(None, "http")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.trail = AuditTrail(transport, "http")
        self._is_in = self._owner.joined(self, transport)
        if self._is_in:
            limit_ahead(transport)
            self._inner.connection_made(transport)
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_in:
            self._owner.left(self._transport)
            self.trail.ended()
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._is_in else None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def abort(self) -> None:
        """End the connection now."""
        self._transport.abort()
