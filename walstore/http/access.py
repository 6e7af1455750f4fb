"""Access: who may send requests, and what a browser is told of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from walstore.errors import AccessDeniedError, InvalidSettingsError
from walstore.http.protocol import PREFIX, TICKET, RefusedError
from walstore.http.requester import set_principal
from walstore.http.tickets import Ticket, Tickets
from walstore.net.wire.access_scope import Needs
from walstore.net.wire.address import is_loopback
from walstore.serve.access_tokens import REFUSED, AccessTokens, Principal

if TYPE_CHECKING:
    from aiohttp import web

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_EXPOSED: Final = (
    "Stream-Next-Offset, Stream-Up-To-Date, Stream-Closed, Stream-Cursor, Stream-TTL, Stream-Expires-At, "
    "Stream-SSE-Data-Encoding, Producer-Epoch, Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, "
    "ETag, Location"
)
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/@\[\]]+))(?::[0-9]{1,5})?")
_HOSTS: Final = 64
"""How many texts of the header Host are remembered: clients send the same one again and again."""
_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
_ALLOWED: Final = (
    "Authorization, Content-Type, If-None-Match, Last-Event-ID, Stream-Seq, Stream-TTL, Stream-Expires-At, "
    "Stream-Closed, Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, Stream-Durability, "
    "Producer-Id, Producer-Epoch, Producer-Seq"
)


class Access:
    """Lets requests in or refuses them.

    A browser sends requests to this machine for any page that asks it to. So a server without a token answers
    only those that name this machine, and changes streams only for pages of its own or of allowed origins.
    """

    def __init__(
        self,
        tokens: AccessTokens | None,
        allow_origins: Sequence[str],
        tickets: Tickets,
        *,
        allow_hosts: Sequence[str] = (),
        is_local: bool,
    ) -> None:
        """``is_local``: only programs of this machine can reach the server, and it has no token.

        ``allow_hosts`` are names by which requests may reach it then, beside those of this machine.
        """
        self._tokens = tokens
        self._origins = frozenset(allow_origins)
        self._tickets = tickets
        self._hosts = frozenset(map(_host_of, allow_hosts))
        self._is_local = is_local

    @property
    def needs_token(self) -> bool:
        """Whether requests need a token."""
        return self._tokens is not None

    def begin(self) -> None:
        """Forget whose the last request of this connection was."""
        set_principal(None)

    def check(self, request: web.Request, needs: Needs, log: str | None) -> None:
        """Let a request in that needs some scopes, of a log; ``current_principal()`` returns whose it is.

        RefusedError for one that may not be made, AccessDeniedError if its token does not allow it.
        """
        if request.method == "OPTIONS":
            return  # browsers ask without a token
        principal = None if self._tokens is None else self._admit(request, self._tokens)
        set_principal(principal)
        if principal is not None:
            principal.check(needs, log)
        if self._is_local and not _is_this_machine(request.host):
            host = _host_of(request.host)
            if host not in self._hosts:
                # A page of somebody else, whose name was made to mean this machine.
                raise RefusedError(421, f"this server is not {host[:200]!r}; see --allow-host")
        origin = request.headers.get("Origin")
        if (
            origin is not None
            and request.method not in _SAFE
            and not self._is_allowed(origin)
            and urlsplit(origin).netloc != request.host
        ):
            raise RefusedError(403, "pages of that origin are not allowed to change streams")

    def headers(self, request: web.BaseRequest) -> dict[str, str]:
        """Return what an answer tells a browser about pages of other origins."""
        headers = {
            "Cross-Origin-Resource-Policy": "cross-origin" if self._origins else "same-origin",
        }
        if self._origins:
            headers["Vary"] = "Origin"
        origin = request.headers.get("Origin")
        if origin is not None and self._is_allowed(origin):
            headers["Access-Control-Allow-Origin"] = "*" if "*" in self._origins else origin
            headers["Access-Control-Expose-Headers"] = _EXPOSED
            if request.method == "OPTIONS":
                headers["Access-Control-Allow-Methods"] = "GET, HEAD, PUT, POST, DELETE"
                headers["Access-Control-Allow-Headers"] = _ALLOWED
                headers["Access-Control-Max-Age"] = "600"
        return headers

    def _admit(self, request: web.Request, tokens: AccessTokens) -> Principal:
        """Return whose request it is, by its token or else by its ticket; RefusedError with 401."""
        header, why = request.headers.get("Authorization"), "a token is needed"
        scheme, _, given = (header or "").partition(" ")
        if header is not None or TICKET in request.query:
            why = "the token is not that of this server"
        if scheme.lower() == "bearer":
            try:
                return tokens.admit(given.strip(" "))
            except AccessDeniedError as error:
                why = why if str(error) == REFUSED else str(error)
        ticket = self._ticket(request)
        if ticket is None or ticket.principal is None:
            raise RefusedError(401, f"{why}; send Authorization: Bearer TOKEN", _CHALLENGE)
        return ticket.principal

    def _ticket(self, request: web.Request) -> Ticket | None:
        """Return the ticket of a request that reads the stream that it asks for, as its address says."""
        text, stream = request.query.get(TICKET), request.match_info.get("log")
        if text is None or stream is None or not request.path.startswith(PREFIX):
            return None
        return self._tickets.find(text, stream) if request.method in {"GET", "HEAD"} else None

    def _is_allowed(self, origin: str) -> bool:
        return "*" in self._origins or origin in self._origins


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise InvalidSettingsError for what is no name or address of a host, without a port."""
    for text in hosts:
        found = _HOST.fullmatch(text)
        if found is None or text not in (found[2], f"[{found[1]}]"):
            raise InvalidSettingsError(
                f"allow_hosts takes names of hosts such as log.example, not {text!r}"
            )


@lru_cache(_HOSTS)
def _is_this_machine(text: str) -> bool:
    return is_loopback(_host_of(text))


def _host_of(text: str) -> str:
    """Return the host that a request is for; all of the text if it is more than a host and a port."""
    found = _HOST.fullmatch(text)
    return text if found is None else (found[1] or found[2]).lower().removesuffix(".")
