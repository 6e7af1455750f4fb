"""Access: who may send requests, and what a browser is told of it."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from walstore.errors import InvalidSettingsError
from walstore.http.protocol import PREFIX, TICKET, RefusedError
from walstore.http.tickets import Tickets
from walstore.net.wire.address import is_loopback

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
        token: str | None,
        allow_origins: Sequence[str],
        tickets: Tickets,
        *,
        allow_hosts: Sequence[str] = (),
        is_local: bool,
    ) -> None:
        """``is_local``: only programs of this machine can reach the server, and it has no token.

        ``allow_hosts`` are names by which requests may reach it then, beside those of this machine.
        """
        self._token = token
        self._origins = frozenset(allow_origins)
        self._tickets = tickets
        self._hosts = frozenset(map(_host_of, allow_hosts))
        self._is_local = is_local

    @property
    def needs_token(self) -> bool:
        """Whether requests need a token."""
        return self._token is not None

    def check(self, request: web.Request) -> None:
        """RefusedError for a request that may not be made."""
        if request.method == "OPTIONS":
            return  # browsers ask without a token
        if not (self._has_token(request) or self._has_ticket(request)):
            is_given = "Authorization" in request.headers or TICKET in request.query
            why = "the token is not that of this server" if is_given else "a token is needed"
            raise RefusedError(401, f"{why}; send Authorization: Bearer TOKEN", _CHALLENGE)
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

    def authorization(self) -> dict[str, str]:
        """Return what lets a request that was let in here into the other machines of a cluster, too."""
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

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

    def _has_token(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return hmac.compare_digest(
            given.strip(" ").encode(errors="surrogateescape"), self._token.encode()
        ) and (scheme.lower() == "bearer")

    def _has_ticket(self, request: web.Request) -> bool:
        """Return whether a request may read the stream that it asks for, as its address says."""
        ticket, stream = request.query.get(TICKET), request.match_info.get("log")
        if ticket is None or stream is None or not request.path.startswith(PREFIX):
            return False
        return request.method in {"GET", "HEAD"} and self._tickets.admits(ticket, stream)

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
