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
from walstore.http.requester import current_principal
from walstore.net.wire.access_scope import READ_ONLY
from walstore.serve.access_tokens import Principal

if TYPE_CHECKING:
    from aiohttp import web

TICKET_PREFIX: Final = "/v1/ticket/"
"""Of the path of a stream's tickets; the rest is as in the stream's."""
TICKET_SECONDS: Final = 60.0
"""How long a ticket begins requests; one that was begun goes on."""
MOST_TICKETS: Final = 10_000
_NAME_BYTES: Final = 12
_SECRET_BYTES: Final = 32


class Ticket(NamedTuple):
    """What lets a request in that has no token."""

    secret: bytes
    stream: str
    until: float
    principal: Principal | None
    """Who got it."""


class Tickets:
    """The tickets that a server gave, at most :data:`MOST_TICKETS` that are still good."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # In the order in which they end.
        self._given: dict[str, Ticket] = {}

    def add_to(self, app: web.Application) -> None:
        """Add the route that gives them."""
        from walstore.http.routes import add_route

        path = f"{TICKET_PREFIX}{{stream:{NAME_PATTERN}}}"
        add_route(app, "POST", path, self._answer, READ_ONLY)

    async def _answer(self, request: web.Request) -> web.Response:
        from walstore.http.json_answer import json_answer

        ticket = self.give(request.match_info["stream"], current_principal())
        return json_answer({"ticket": ticket, "seconds": TICKET_SECONDS})

    def give(self, stream: str, principal: Principal | None = None) -> str:
        """Return a new ticket that reads ``stream``, as long as ``principal`` may.

        RefusedError with 503 if there are too many.
        """
        now = self._clock.monotonic()
        while self._given and next(iter(self._given.values())).until <= now:
            del self._given[next(iter(self._given))]
        if len(self._given) >= MOST_TICKETS:
            raise RefusedError(503, "too many tickets at a time", {"Retry-After": "1"})
        name = secrets.token_urlsafe(_NAME_BYTES)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._given[name] = Ticket(secret.encode(), stream, now + TICKET_SECONDS, principal)
        return f"{name}.{secret}"

    def find(self, text: str, stream: str) -> Ticket | None:
        """Return the ticket that a text is, if it reads ``stream`` now."""
        name, _, secret = text.partition(".")
        ticket = self._given.get(name)  # a name is no secret
        expected = b"" if ticket is None else ticket.secret
        is_same = hmac.compare_digest(secret.encode(errors="replace"), expected)
        if ticket is None or not is_same or ticket.stream != stream:
            return None
        return ticket if ticket.until > self._clock.monotonic() else None
