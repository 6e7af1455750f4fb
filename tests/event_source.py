"""EventSource as browsers have it: comes back by itself, with the id of the last event that it got."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp


class Event(NamedTuple):
    """One event."""

    kind: str
    data: str
    last_id: str


class EventSource:
    """Follows the HTML standard, section 9.2, but comes back at once. It sends no header of its owner's."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.last_id = ""
        self.requests = 0
        """How often it has asked."""
        self.status = 0
        """Of the last answer; anything but 200 ends it."""

    async def events(self) -> AsyncIterator[Event]:
        """Yield events until an answer says that there are no more."""
        while True:
            headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
            if self.last_id:
                headers["Last-Event-ID"] = self.last_id
            self.requests += 1
            async with self._session.get(self._url, headers=headers) as answer:
                self.status = answer.status
                if answer.status != 200 or answer.content_type != "text/event-stream":
                    return
                async for event in self._read(answer):
                    yield event

    async def _read(self, answer: aiohttp.ClientResponse) -> AsyncIterator[Event]:
        kind, data, last_id = "", list[str](), self.last_id
        async for raw in answer.content:
            line = raw.decode().rstrip("\n")
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                self.last_id = last_id
                if data:
                    yield Event(kind or "message", "\n".join(data), last_id)
                kind, data = "", []
            elif field == "event":
                kind = value
            elif field == "data":
                data.append(value)
            elif field == "id" and "\0" not in value:
                last_id = value
