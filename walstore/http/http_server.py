"""HttpServer: serves a log, a store of logs, or a cluster to clients that speak HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from walstore.cluster.member import ClusterMember
from walstore.errors import (
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
from walstore.http.access import Access
from walstore.http.connections import Connections
from walstore.http.looking import PAGES, Looking, WatchedCollection
from walstore.http.member_logs import MemberLogs
from walstore.http.protocol import RefusedError
from walstore.http.settings import HttpSettings
from walstore.http.streams import Streams
from walstore.log.wal import Wal
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.extras import needs_extra
from walstore.runtime.metric import Metric, MetricKind, figure
from walstore.runtime.resource import Opening, wait_closed
from walstore.store.wal_store import WalStore
from walstore.validation.arguments import as_token
from walstore.wire.address import is_loopback, parse_listen

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import CollectorRegistry

    from walstore.http.proxy import Proxy

logger = logging.getLogger("walstore")

_SWEEP_SECONDS: Final = 1.0
_SPARE_CONNECTIONS: Final = 16
"""Connections beyond those that are answered: others are told why, and ``/health`` answers."""
_STATUS: Final[Sequence[tuple[type[Exception], int]]] = (
    (OffsetTrimmedError, 410),
    (OffsetError, 400),
    (RecordTooLargeError, 413),
    (LimitExceededError, 413),
    (DiskFullError, 507),
    (OutcomeUnknownError, 500),
    (InvalidSettingsError, 400),
    (LogSuspendedError, 409),  # not 503, which clients repeat until an operator resumes it
    (WalClosedError, 503),
    (StorageUnavailableError, 503),
    (WalError, 500),
    (ValueError, 400),
)


class HttpServer:
    """Serves streams over HTTP: each is a log of a store, or the one log. Made by :meth:`open`.

    Belongs to the event loop of the logs, which stay usable in this process, too. Needs ``walstore[serve]``.
    """

    @classmethod
    def open(
        cls,
        logs: Wal | WalStore | None,
        listen: str,
        *,
        cluster: ClusterMember | None = None,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
        allow_origins: Sequence[str] = (),
        registry: CollectorRegistry | None = None,
        collections: Mapping[str, WatchedCollection] | None = None,
        settings: HttpSettings | None = None,
        clock: Clock | None = None,
    ) -> Opening[HttpServer]:
        """Begin to serve ``logs`` at ``HOST:PORT``; port 0 takes a free one.

        Without ``tls`` and ``token`` only loopback addresses are allowed. A token is sent as
        ``Authorization: Bearer TOKEN``. Pages of other origins are refused unless ``allow_origins`` names
        theirs, such as ``https://app.example``, or is ``["*"]``. ``registry``, one of prometheus_client, is
        shown at ``/metrics``; ``/health`` and ``/ready`` need no token. ``/`` is a page to look at the logs,
        and at ``collections`` by name (:class:`uploader.Collection`, which stay open). ``cluster`` serves all
        logs of the cluster that this member belongs to, with ``logs`` None: requests for a log that another
        machine leads are passed on to the HTTP server of that one, which ``ClusterMember.join(web=)`` names.
        Leaving the block stops the server, and leaves ``logs`` and ``cluster`` open.

        Raises InvalidSettingsError for a place that may not be served, StorageUnavailableError if another
        program is there, MissingExtraError if aiohttp is not installed.
        """
        host, port = parse_listen(listen)
        if not is_loopback(host) and (tls is None or not token):
            raise InvalidSettingsError(
                f"{listen} can be reached from other machines: that needs tls=SSLContext and token=, or "
                "listen at 127.0.0.1"
            )
        if token is not None and not as_token(token):
            raise InvalidSettingsError("a token is never empty")
        if isinstance(allow_origins, str):
            raise TypeError("allow_origins is a sequence of origins, not one text")
        if (logs is None) is (cluster is None):
            raise InvalidSettingsError("an HTTP server serves logs, or cluster= with logs None")
        served = logs if cluster is None else MemberLogs(cluster)
        assert served is not None

        async def open_it() -> HttpServer:
            server = cls(
                served,
                token=token,
                allow_origins=allow_origins,
                registry=registry,
                collections=collections or {},
                settings=settings,
                clock=clock,
                is_local=is_loopback(host) and not token,
            )
            try:
                await server._listen(host, port, tls)
            except BaseException:
                await server.aclose()
                raise
            return server

        return Opening(open_it)

    def __init__(
        self,
        logs: Wal | WalStore | MemberLogs,
        *,
        token: str | None,
        allow_origins: Sequence[str],
        registry: CollectorRegistry | None,
        collections: Mapping[str, WatchedCollection],
        settings: HttpSettings | None,
        clock: Clock | None,
        is_local: bool,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self.settings = settings or HttpSettings()
        """As given to :meth:`open`."""
        self.addresses: list[str] = []
        """Where it is reached, such as ``http://127.0.0.1:7421``."""
        self._logs = logs
        self._access = Access(token, allow_origins, is_local=is_local)
        self._registry = registry
        self._clock = clock or SystemClock()
        self._streams = Streams(logs, self._clock)
        self._looking = Looking(logs, collections, self._clock)
        self._runner: web.AppRunner | None = None
        self._proxy: Proxy | None = None
        self._requests = 0
        self._answered: Counter[tuple[str, str]] = Counter()
        self._is_stopping = False
        self._server: asyncio.Server | None = None
        self._connections: Connections | None = None
        self._sweeping: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None

    @property
    def requests(self) -> int:
        """How many requests are in progress, live readers included."""
        return self._requests

    @property
    def answered(self) -> Mapping[tuple[str, str], int]:
        """How many requests were answered, by method and status; 499 if the client was gone."""
        return self._answered.copy()

    @property
    def metrics(self) -> Sequence[Metric]:
        """What ``PrometheusMetrics.watch`` shows of it."""
        return HTTP_METRICS

    async def aclose(self) -> None:
        """Stop: refuse new requests, end live readers, and finish the rest within ``drain_seconds``.

        Twice is allowed; cancelling the wait does not stop the stopping.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await wait_closed(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<HttpServer at {', '.join(self.addresses) or 'no place'}>"

    # -- listening ---------------------------------------------------------------------------

    async def _listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        # Importing aiohttp reads files.
        await asyncio.get_running_loop().run_in_executor(None, _import)
        from aiohttp import web

        from walstore.http.handlers import Handlers
        from walstore.http.pages import Pages
        from walstore.http.proxy import Proxy
        from walstore.http.server_log import ServerLog

        if isinstance(self._logs, MemberLogs):
            live = max(self.settings.event_seconds, self.settings.poll_seconds)
            self._proxy = Proxy(self._logs.member.tls, live_seconds=live)

        @web.middleware
        async def answer(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            return await self._answer(request, handler)

        app = web.Application(middlewares=[answer], client_max_size=self.settings.body_bytes)
        handlers = Handlers(
            self._streams, self.settings, self._clock, is_private=self._access.needs_token
        )
        handlers.add_to(app)
        Pages(self._looking).add_to(app)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        if self._registry is not None:
            app.router.add_get("/metrics", self._metrics)
        app.on_response_prepare.append(self._add_headers)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            auto_decompress=False,  # it takes a body that is cut for a whole one
            logger=ServerLog(),
            access_log=None,
            shutdown_timeout=self.settings.drain_seconds,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections = Connections(
            self._runner.server,
            most=2 * self.settings.connections + _SPARE_CONNECTIONS,
            idle_seconds=self.settings.idle_seconds,
            clock=self._clock,
        )
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._connections, host, port, ssl=tls, backlog=1024
            )
        except OSError as error:
            raise StorageUnavailableError(
                f"cannot listen at {host}:{port}: {error.strerror or error}", retriable=False
            ) from error
        scheme = "http" if tls is None else "https"
        for place in (one.getsockname() for one in self._server.sockets):
            shown = f"[{place[0]}]" if ":" in place[0] else place[0]
            self.addresses.append(f"{scheme}://{shown}:{place[1]}")
        for sweep in (self._sweep(), self._connections.sweep()):
            self._sweeping.append(loop.create_task(sweep, name="walstore serve http"))

    async def _close(self) -> None:
        self._is_stopping = True
        for sweeping in self._sweeping:
            sweeping.cancel()
        if self._sweeping:
            await asyncio.wait(self._sweeping)
        if self._server is not None:
            self._server.close()
        self._streams.end_all()
        if self._proxy is not None:
            self._proxy.end_all()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._proxy is not None:
            await self._proxy.aclose()

    async def _sweep(self) -> None:
        """Delete streams whose time is over."""
        await self._streams.load()
        while True:
            await self._clock.sleep(_SWEEP_SECONDS)
            with contextlib.suppress(WalError, RefusedError):
                await self._streams.expire()

    # -- around every request ------------------------------------------------------------------

    async def _answer(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Let a request in or refuse it, and say what became of it."""
        assert self._connections is not None
        transport = request.transport
        self._connections.begin(transport)
        self._requests += 1
        status = 499  # the client went away
        try:
            answer = await self._try(request, handler)
            status = answer.status
        finally:
            self._requests -= 1
            self._connections.end(transport)
            method = request.method if request.method in _METHODS else "other"
            self._answered[method, str(status)] += 1
        return answer

    async def _try(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        from aiohttp import web

        try:
            self._check(request)
            if request.method == "OPTIONS":
                return web.Response(status=204)
            if isinstance(self._logs, MemberLogs) and (name := request.match_info.get("log")):
                leader = await self._logs.leader_of(name)
                if leader is not None and self._proxy is not None:
                    return await self._proxy.pass_on(request, *leader)
            return await handler(request)
        except web.HTTPException as error:
            return _problem(error.status, error.reason, {"Allow": error.headers.get("Allow", "")})
        except RefusedError as error:
            return _problem(error.status, str(error), dict(error.headers))
        except (WalError, ValueError) as error:
            return self._failed(error)

    def _failed(self, error: WalError | ValueError) -> web.Response:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        if status >= 500:
            logger.warning("a request over HTTP failed: %s", error)
        fields = {"outcome": str(error.outcome)} if isinstance(error, WalError) else {}
        headers = {"Retry-After": "1"} if status == 503 else {}
        return _problem(status, f"{type(error).__name__}: {error}", headers, **fields)

    def _check(self, request: web.Request) -> None:
        """Refuse a request that may not be made, or not now."""
        if request.path in _OPEN_PATHS:
            return
        self._access.check(request)
        if self._is_stopping:
            raise RefusedError(503, "the server is stopping", {"Retry-After": "1"})
        if self._requests > self.settings.connections:
            raise RefusedError(503, "too many requests at a time", {"Retry-After": "1"})

    async def _add_headers(self, request: web.BaseRequest, answer: web.StreamResponse) -> None:
        """Add what every answer says, also one to a request that is refused."""
        answer.headers.update(self._access.headers(request))

    # -- health ------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        """The process answers."""
        return _json({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        """Streams can be appended to and read."""
        is_ready = not (self._is_stopping or self._logs.is_closing)
        return _json({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        """What Prometheus scrapes."""
        from aiohttp import web
        from prometheus_client import exposition

        assert self._registry is not None
        text = await asyncio.get_running_loop().run_in_executor(
            None, exposition.generate_latest, self._registry
        )
        return web.Response(body=text, headers={"Content-Type": exposition.CONTENT_TYPE_LATEST})


_METHODS: Final = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"})
HTTP_METRICS: Final = (
    figure(
        "http",
        "requests_in_progress",
        "Requests in progress, live readers included.",
        lambda server: {(): server.requests},
        kind=MetricKind.GAUGE,
    ),
    figure(
        "http",
        "requests",
        "Requests answered, by method and status; 499 if the client was gone.",
        lambda server: server.answered,
        labels=("method", "status"),
    ),
)
"""What ``PrometheusMetrics.watch`` shows of a server."""
_OPEN_PATHS: Final = frozenset({"/health", "/ready"} | PAGES.keys())


def _import() -> None:
    """Import what an HTTP server needs; MissingExtraError. Blocking."""
    with needs_extra("serve", "HttpServer"):
        importlib.import_module("walstore.http.handlers")
        importlib.import_module("walstore.http.pages")
        importlib.import_module("walstore.http.server_log")


def _json(fields: dict[str, Any], status: int = 200) -> web.Response:
    from aiohttp import web

    return web.Response(
        status=status,
        body=json.dumps(fields).encode() + b"\n",
        headers={"Content-Type": "application/json", "Cache-Control": "no-store"},
    )


def _problem(status: int, message: str, headers: dict[str, str], **fields: str) -> web.Response:
    """Return an answer that says what is wrong."""
    answer = _json({"error": message, **fields}, status)
    answer.headers.update({name: value for name, value in headers.items() if value})
    return answer
