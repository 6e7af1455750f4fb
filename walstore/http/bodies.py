"""Bodies: those of the requests in progress, of all clients together within one limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from walstore.core.append.budgets import ChannelBudget
from walstore.core.batches.cost import RECORD_COST_BYTES
from walstore.http.content import JSON, MOST_MESSAGES, decode_body, split_body
from walstore.http.json_text import SHORT_CHARS
from walstore.http.protocol import RefusedError
from walstore.serve.outgoing import SHORT_BYTES
from walstore.serve.room import Room

if TYPE_CHECKING:
    from walstore.http.http_settings import HttpSettings

_COPIES: Final = 2
"""Of a body: as it came, and whole or decoded."""
_JSON_COPIES: Final = 3
"""Of a JSON body: as it came, as text, and as its messages."""
_MESSAGE_BYTES: Final = 2 * RECORD_COST_BYTES
"""What each message takes beside its bytes, with the header that tells how many follow it."""
_MESSAGES_BYTES: Final = 32 << 20
"""What the messages of all bodies may take beside their bytes."""


class Bodies:
    """Reads bodies, each once there is room for all of it."""

    def __init__(self, settings: HttpSettings, budget: ChannelBudget) -> None:
        """``budget`` is for all of them, and for whatever else shares it."""
        self._settings = settings
        self._budget = budget
        # Only whole bodies wait for a part of it, so that each has it soon.
        self._messages = ChannelBudget(_MESSAGES_BYTES)

    @asynccontextmanager
    async def whole(self, request: web.Request) -> AsyncIterator[bytes]:
        """Yield the whole body, decoded; its room is held in the block.

        RefusedError if it is cut, malformed or too large, or takes too long: 408; 503 if there is no room.
        """
        if not request.can_read_body:
            yield b""
            return
        room = Room(self._budget)
        try:
            await self._wait(room, self._cost(request))
            yield await self._read(request)
        finally:
            room.close()

    @asynccontextmanager
    async def messages(self, content_type: str, body: bytes) -> AsyncIterator[list[bytes]]:
        """Yield the records of a body; what they take beside its bytes is held in the block.

        RefusedError if it is not what its content type says; 503 if there is no room.
        """
        room = Room(self._messages)
        try:
            if body and content_type == JSON:
                most = min(body.count(b",") + 1, MOST_MESSAGES)
                await self._wait(room, most * _MESSAGE_BYTES)
            yield await _split(content_type, body) if body else []
        finally:
            room.close()

    async def _wait(self, room: Room, size_bytes: int) -> None:
        """Hold room for a body once there is some; little never waits."""
        if size_bytes <= SHORT_BYTES:
            room.hold(size_bytes)
            return
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                await room.wait(size_bytes)
        except TimeoutError:
            text = "what all clients send is too much; send the request again"
            raise RefusedError(503, text, {"Retry-After": "1", "Connection": "close"}) from None

    def _cost(self, request: web.Request) -> int:
        """Return about what a body takes in memory, before anything is read of it."""
        most = self._settings.body_bytes
        length = request.content_length
        cost = most if length is None else length
        if hdrs.CONTENT_ENCODING in request.headers:
            cost += most
        return cost * (_JSON_COPIES if request.content_type == JSON else _COPIES)

    async def _read(self, request: web.Request) -> bytes:
        # A short body has come with its headers, as a rule: then no timer is needed.
        seconds = None if request.content.is_eof() else self._settings.body_seconds
        try:
            async with asyncio.timeout(seconds):
                body = await request.read()
        except TimeoutError:
            raise RefusedError(408, "the body took too long", {"Connection": "close"}) from None
        except web.RequestPayloadError as error:
            text = f"the body is malformed: {error}"
            raise RefusedError(400, text, {"Connection": "close"}) from None
        coding = ",".join(request.headers.getall("Content-Encoding", ()))
        if not body or not coding:
            return body
        return await asyncio.get_running_loop().run_in_executor(
            None, decode_body, coding, body, self._settings.body_bytes
        )


async def _split(content_type: str, body: bytes) -> list[bytes]:
    """Take a body apart, on another thread if the event loop would stand still for it."""
    if content_type != JSON or len(body) <= SHORT_CHARS:
        return split_body(content_type, body)
    return await asyncio.get_running_loop().run_in_executor(None, split_body, content_type, body)
