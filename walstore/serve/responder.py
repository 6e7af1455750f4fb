"""Responder: what one client is told: answers, refusals, and that the server lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from walstore.errors import WalError
from walstore.net.wire.errors import pack_error
from walstore.net.wire.message import Kind, ProtocolViolationError, encode
from walstore.serve.answer import PreparedAnswer, encode_answer, size_of
from walstore.serve.figures import ServerFigures
from walstore.serve.outgoing import SHORT_BYTES, Outgoing

logger = logging.getLogger("walstore.serve")


class Responder:
    """Writes to one client. Belongs to the event loop of the server."""

    def __init__(
        self,
        outgoing: Outgoing,
        figures: ServerFigures,
        monotonic: Callable[[], float],
        on_full: Callable[[], None],
    ) -> None:
        """``on_full`` is called when the client has to take some before it gets more."""
        self._outgoing, self._figures = outgoing, figures
        self._monotonic = monotonic
        self._on_full = on_full
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self.said_at = monotonic()
        """When the client was told something last."""

    def begin(self, transport: asyncio.Transport, peer: str) -> None:
        """Write to a transport; ``peer`` is whose it is, for people."""
        self._transport, self._peer = transport, peer
        self._outgoing.begin(transport)

    async def send(self, number: int, answer: Any) -> None:
        """Write an answer: a short one now, a larger one in turn."""
        if not isinstance(answer, PreparedAnswer):
            pieces = encode_answer(number, answer)
            if size_of(pieces) <= SHORT_BYTES:
                self.write(pieces)
                return
            made, answer = answer, PreparedAnswer(lambda _: _as_it_is(made), size_of(pieces))
            del pieces
        await self._outgoing.send(answer, partial(encode_answer, number), self.write)

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a message now, unless the connection is ending."""
        if self._transport is None or self._transport.is_closing():
            return
        self._figures.sent_bytes += size_of(pieces)
        self.said_at = self._monotonic()
        was_writable = self._outgoing.is_writable
        self._outgoing.write(pieces)
        if was_writable and not self._outgoing.is_writable:
            self._on_full()

    def refuse(self, number: int, error: BaseException) -> None:
        """Answer a request with its error. Others of the connection go on, whatever is wrong with it."""
        if isinstance(error, ProtocolViolationError):
            error = ValueError(f"the server did nothing, as it received {error}")
        if not isinstance(error, WalError | ValueError | TypeError | RuntimeError):
            logger.error("a request of %s failed by a defect", self._peer, exc_info=error)
        self._figures.errors[type(error).__name__] += 1
        self.write(encode(Kind.FAILED, number, pack_error(error)))


async def _as_it_is(answer: Any) -> Any:
    return answer
