"""Tickets: let a browser's EventSource, which sends no headers, read a stream of a server with a token.

A request with the token gets a ticket of one stream, and an address with it begins to read that stream for a
minute. Tickets are in memory only: after a restart there are none.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from walstore.core.ports import Clock
from walstore.http.protocol import NAME_PATTERN, RefusedError

if TYPE_CHECKING:
    from aiohttp import web

TICKET_PREFIX: Final = "/v1/ticket/"
"""Of the path of a stream's tickets; the rest is as in the stream's."""
TICKET_SECONDS: Final = 60.0
"""How long a ticket begins requests; one that was begun goes on."""
MOST_TICKETS: Final = 10_000
_NAME_BYTES: Final = 12
_SECRET_BYTES: Final = 32


class _Ticket(NamedTuple):
    secret: bytes
    stream: str
    until: float


class Tickets:
    """The tickets that a server gave, at most :data:`MOST_TICKETS` that are still good."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # In the order in which they end.
        self._given: dict[str, _Ticket] = {}

    def add_to(self, app: web.Application) -> None:
        """Add the route that gives them."""
        app.router.add_post(f"{TICKET_PREFIX}{{stream:{NAME_PATTERN}}}", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        from walstore.http.json_answer import json_answer

        ticket = self.give(request.match_info["stream"])
        return json_answer({"ticket": ticket, "seconds": TICKET_SECONDS})

    def give(self, stream: str) -> str:
        """Return a new ticket that reads ``stream``. RefusedError with 503 if there are too many."""
        now = self._clock.monotonic()
        while self._given and next(iter(self._given.values())).until <= now:
            del self._given[next(iter(self._given))]
        if len(self._given) >= MOST_TICKETS:
            raise RefusedError(503, "too many tickets at a time", {"Retry-After": "1"})
        name = secrets.token_urlsafe(_NAME_BYTES)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._given[name] = _Ticket(secret.encode(), stream, now + TICKET_SECONDS)
        return f"{name}.{secret}"

    def admits(self, text: str, stream: str) -> bool:
        """Return whether a text is a ticket that reads ``stream`` now."""
        name, _, secret = text.partition(".")
        ticket = self._given.get(name)  # a name is no secret
        expected = b"" if ticket is None else ticket.secret
        is_same = hmac.compare_digest(secret.encode(errors="replace"), expected)
        return (
            ticket is not None
            and is_same
            and ticket.stream == stream
            and ticket.until > self._clock.monotonic()
        )
