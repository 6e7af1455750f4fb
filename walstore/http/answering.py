"""Answering: what happens around every request of an HTTP server, and what every answer says."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from walstore.errors import (
    AccessDeniedError,
    DiskFullError,
    InvalidSettingsError,
    LimitExceededError,
    LogSuspendedError,
    OffsetError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    RecordTooLargeError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
)
from walstore.http.json_answer import json_answer
from walstore.http.protocol import (
    CLOSED,
    CONTENT_POLICY,
    PREFIX,
    RefusedError,
    check_once,
    check_path,
    is_true,
)
from walstore.http.requester import current_principal
from walstore.http.routes import log_of, needs_of
from walstore.http.server_log import ServerLog, said_by
from walstore.serve.audit_trail import DONE, REFUSED, AuditTrail

if TYPE_CHECKING:
    from walstore.http.access import Access
    from walstore.http.connections import Connections
    from walstore.http.http_settings import HttpSettings
    from walstore.http.member_logs import MemberLogs
    from walstore.http.proxy import Proxy

logger = logging.getLogger("walstore.http")

SANDBOX: Final = "sandbox; default-src 'none'"
"""Policy of every answer without one of its own: a browser shows what a stream holds, and runs none of it."""
_EVERYWHERE: Final = {
    "Server": "walstore",  # without versions
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_METHODS: Final = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"})
_STATUS: Final[Sequence[tuple[type[Exception], int]]] = (
    (OffsetTrimmedError, 410),
    (OffsetError, 400),
    (RecordTooLargeError, 413),
    (LimitExceededError, 413),
    (DiskFullError, 507),
    (OutcomeUnknownError, 500),
    (AccessDeniedError, 403),
    (InvalidSettingsError, 400),
    (LogSuspendedError, 409),  # not 503, which clients repeat until an operator resumes it
    (WalClosedError, 503),
    (StorageUnavailableError, 503),
    (WalError, 500),
    (ValueError, 400),
)


class Answering:
    """Lets each request in or refuses it, and sets the headers of every answer. Of one event loop."""

    def __init__(
        self,
        access: Access,
        settings: HttpSettings,
        cluster: MemberLogs | None,
        proxy: Proxy | None,
    ) -> None:
        """``cluster``: requests for logs that other machines lead are passed on by ``proxy``."""
        self._access = access
        self._settings = settings
        self._cluster = cluster
        self._proxy = proxy
        self.requests = 0
        """How many are in progress."""
        self.answered: Counter[tuple[str, str]] = Counter()
        """How many were answered, by method and status."""
        self._is_full = False
        """Whether it was said that the disk is full, and nothing was written since then."""
        self.is_stopping = False
        """Whether all further requests are refused."""
        self.connections: Connections | None = None
        """Those that requests come from."""

    def add_to(self, app: web.Application) -> None:
        """Stand around all routes of a server."""

        @web.middleware
        async def answer(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            return await self._answer(request, handler)

        app.middlewares.append(answer)
        app.on_response_prepare.append(self._prepare)

    def protocol(self, server: web.Server) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return _Protocol(server, self.add_headers)

    async def _prepare(self, request: web.Request, answer: web.StreamResponse) -> None:
        self.add_headers(request, answer)

    def add_headers(self, request: web.BaseRequest, answer: web.StreamResponse) -> None:
        """Set what every answer says, also one to a request that is refused or is no HTTP."""
        answer.headers.update(_EVERYWHERE)
        answer.headers.update(self._access.headers(request))
        answer.headers.setdefault(CONTENT_POLICY, SANDBOX)

    async def _answer(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Let a request in or refuse it, and say what became of it."""
        assert self.connections is not None
        transport = request.transport
        trail = self.connections.trail(transport)
        self.connections.begin(transport)
        self._access.begin()
        self.requests += 1
        status = 499  # the client went away
        try:
            answer = await self._try(request, handler)
            status = answer.status
        finally:
            self.requests -= 1
            self.connections.end(transport)
            method = request.method if request.method in _METHODS else "other"
            self.answered[method, str(status)] += 1
            if method in {"PUT", "POST"} and status < 300:
                self._is_full = False
            if trail is not None:
                self._audit(trail, request, status)
        return answer

    async def _try(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        try:
            self._check(request)
            if request.method == "OPTIONS":
                return web.Response(status=204)
            await _ask_for_body(request)
            if self._cluster is not None and (name := request.match_info.get("log")):
                leader = await self._cluster.leader_of(name)
                if leader is not None and self._proxy is not None:
                    return await self._proxy.pass_on(request, *leader)
            return await handler(request)
        except (web.HTTPException, RefusedError, WalError, ValueError) as error:
            answer = _refusal(error)
            if answer.status >= 500 and not isinstance(error, web.HTTPException | RefusedError):
                self._warn(error)
            if request.writer.output_size:
                cut_off(request)
            return answer

    def _warn(self, error: Exception) -> None:
        """Log that a request failed; of a full disk once until something is written."""
        is_full = isinstance(error, DiskFullError)
        if not (is_full and self._is_full):
            logger.warning("a request over HTTP failed: %s", error)
        self._is_full |= is_full

    def _audit(self, trail: AuditTrail, request: web.Request, status: int) -> None:
        """Say what became of a request that makes, closes or removes a log, or whose client is unknown."""
        if needs_of(request) is None:
            return
        if status == 401:
            trail.refused("AccessDeniedError")
        if self._access.needs_token and current_principal() is None:
            return
        trail.connected(_token())
        log = log_of(request)
        if log is None or not request.path.startswith(PREFIX):
            return
        if request.method == "POST" and status < 300:
            trail.appended(log, 1)
        outcome = DONE if status < 300 else REFUSED if status == 403 else f"failed: {status}"
        if request.method == "DELETE":
            trail.acted("delete_log", _token(), outcome, log=log)
        elif request.method == "PUT" and status != 200:  # else it was there
            trail.acted("create_log", _token(), outcome, log=log)
        if request.method in {"PUT", "POST"} and is_true(request.headers.get(CLOSED)):
            trail.acted("close_log", _token(), outcome, log=log)

    def _check(self, request: web.Request) -> None:
        """Refuse a request that may not be made, or not now."""
        check_path(request.raw_path)
        check_once(request.headers)
        coding = request.headers.get(hdrs.TRANSFER_ENCODING)
        if coding is not None and coding.lower() != "chunked":
            text = f"the transfer encoding must be chunked, not {coding[:100]!r}; nothing was read"
            raise RefusedError(501, text, {"Connection": "close"})
        needs = needs_of(request)
        if needs is not None:
            self._access.check(request, needs, log_of(request))
            assert self.connections is not None
            if (trail := self.connections.trail(request.transport)) is not None:
                trail.connected(_token())
            if self.is_stopping:
                raise RefusedError(503, "the server is stopping", {"Retry-After": "1"})
            if self.requests > self._settings.connections:
                raise RefusedError(503, "too many requests at a time", {"Retry-After": "1"})
        most = self._settings.body_bytes
        if (request.content_length or 0) > most:
            text = f"a body has at most {most} bytes; nothing was read of it"
            raise RefusedError(413, text, {"Connection": "close"})


class _Protocol(web.RequestHandler):
    """One connection. What aiohttp answers by itself has the headers and the form of every answer, too."""

    __slots__ = ("_add_headers",)

    def __init__(
        self,
        server: web.Server,
        add_headers: Callable[[web.BaseRequest, web.StreamResponse], None],
    ) -> None:
        options: dict[str, Any] = {
            "auto_decompress": False,  # it takes a body that is cut for a whole one
            "logger": ServerLog(),
            "access_log": None,  # addresses may contain tickets
        }
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._add_headers = add_headers

    def handle_error(
        self, request: web.BaseRequest, *args: Any, **named: Any
    ) -> web.StreamResponse:
        """Answer what is no HTTP, and what failed in an unexpected way.

        Not that the connection has ended: nobody is there to be answered, and nothing is wrong here.
        """
        error = next((one for one in (*args, *named.values()) if isinstance(one, Exception)), None)
        if isinstance(error, ConnectionError) and _is_gone(request):
            raise error
        status = super().handle_error(request, *args, **named).status  # it logs, and may raise
        text = HTTPStatus(status).phrase
        if isinstance(error, HttpProcessingError):
            text = f"the request is no HTTP: {said_by(error)}"
        answer = _problem(status, text, {})
        answer.force_close()
        self._add_headers(request, answer)
        return answer


def _token() -> str | None:
    principal = current_principal()
    return None if principal is None else principal.name


def cut_off(request: web.Request) -> NoReturn:
    """End a connection in the middle of an answer: what was begun cannot be taken back, and has no end."""
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("the answer was cut off")


def _is_gone(request: web.BaseRequest) -> bool:
    return request.transport is None or request.transport.is_closing()


async def expected_later(request: web.Request) -> None:
    """Take ``Expect: 100-continue`` of a request; the body is asked for once the request is let in."""
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        raise web.HTTPExpectationFailed(text="only 100-continue can be expected")


async def _ask_for_body(request: web.Request) -> None:
    """Tell a client that waits for it that its body is wanted."""
    if request.headers.get(hdrs.EXPECT) and request.can_read_body:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun


def _problem(status: int, message: str, headers: Mapping[str, str], **fields: str) -> web.Response:
    """Return an answer that says what is wrong."""
    answer = json_answer({"error": message, **fields}, status)
    answer.headers.update({name: value for name, value in headers.items() if value})
    return answer


def _refusal(error: web.HTTPException | RefusedError | WalError | ValueError) -> web.Response:
    """Return an answer that says what an error means."""
    if isinstance(error, web.HTTPException):
        return _problem(error.status, error.reason, {"Allow": error.headers.get("Allow", "")})
    if isinstance(error, RefusedError):
        return _problem(error.status, str(error), error.headers)
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    fields = {"outcome": str(error.outcome)} if isinstance(error, WalError) else {}
    headers = {"Retry-After": "1"} if status == 503 else {}
    return _problem(status, f"{type(error).__name__}: {error}", headers, **fields)
