"""HttpServer: serves a log, a store of logs, or a cluster to clients that speak HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from walstore.cluster.member import ClusterMember
from walstore.core.append.budgets import ChannelBudget, answer_budget
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.extras import needs_extra
from walstore.core.runtime.metric import Metric, MetricKind, figure
from walstore.core.runtime.resource import LoopGuard, MustClose, Opening, Unclosed, wait_closed
from walstore.core.runtime.tasks import start_task
from walstore.core.validation.arguments import as_texts
from walstore.errors import InvalidSettingsError, WalError
from walstore.http.access import Access, check_hosts
from walstore.http.connections import Connections
from walstore.http.http_settings import HttpSettings
from walstore.http.looking import Looking, WatchedCollection
from walstore.http.member_logs import MemberLogs
from walstore.http.protocol import RefusedError
from walstore.http.streams import Streams
from walstore.http.tickets import Tickets
from walstore.log.wal import Wal
from walstore.net.wire.address import is_loopback
from walstore.serve.access_tokens import AccessTokens, tokens_of
from walstore.serve.fetching import Fetching
from walstore.serve.listening import BACKLOG, Listening, check_listen
from walstore.store.log_catalog import LogCatalog, catalog_of
from walstore.store.wal_store import WalStore

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import CollectorRegistry

    from walstore.http.answering import Answering
    from walstore.http.proxy import Proxy
    from walstore.serve.server import Server

_SWEEP_SECONDS: Final = 1.0
_NO_END: Final = 1e9
_SPARE_CONNECTIONS: Final = 16
"""Connections beyond those that are answered: others are told why, and ``/health`` answers."""


class HttpServer(MustClose):
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
        tokens: AccessTokens | None = None,
        behind_proxy: bool = False,
        allow_hosts: Sequence[str] = (),
        allow_origins: Sequence[str] = (),
        registry: CollectorRegistry | None = None,
        collections: Mapping[str, WatchedCollection] | None = None,
        settings: HttpSettings | None = None,
        beside: Server | None = None,
        listening: Listening | None = None,
        clock: Clock | None = None,
    ) -> Opening[HttpServer]:
        """Begin to serve ``logs`` at ``HOST:PORT``; port 0 takes a free one.

        Without ``tls`` and ``token`` only loopback addresses are allowed; with ``behind_proxy`` a ``token``
        is enough, where a proxy ends TLS and is the only one that reaches the place. A token is sent as
        ``Authorization: Bearer TOKEN``; ``tokens`` are several, each with scopes and logs. A server without
        one answers only requests whose header Host names this machine or is one of ``allow_hosts``, as a
        proxy on this machine sends it. Pages of other origins are refused unless ``allow_origins`` names
        theirs, such as ``https://app.example``, or is ``["*"]``.
        ``registry``, one of prometheus_client, is shown at ``/metrics``; ``/health`` and ``/ready`` need no
        token. ``/`` is a page to look at the logs, and at ``collections`` by name
        (:class:`uploader.Collection`, which stay open). ``cluster`` serves all logs of the cluster that this
        member belongs to, with ``logs`` None: requests for a log that another machine leads are passed on to
        the HTTP server of that one, which ``ClusterMember.join(web=)`` names. With ``beside``, a server of
        the same process, the two share its limits on requests and answers. ``listening`` has sockets that
        listen there already, which this server closes. Leaving the block stops the server, and leaves
        ``logs`` and ``cluster`` open.

        Raises InvalidSettingsError for a place that may not be served, StorageUnavailableError if another
        program is there, MissingExtraError if aiohttp is not installed.
        """
        accepted = tokens_of(token, tokens)
        place = check_listen(
            listen, tls, has_tokens=accepted is not None, behind_proxy=behind_proxy
        )
        allow_origins = as_texts(allow_origins, "allow_origins")
        allow_hosts = as_texts(allow_hosts, "allow_hosts")
        check_hosts(allow_hosts)
        if (logs is None) is (cluster is None):
            raise InvalidSettingsError("an HTTP server serves logs, or cluster= with logs None")
        members = None if cluster is None else MemberLogs(cluster)
        served: LogCatalog
        if members is not None:
            served = members
        else:
            assert logs is not None
            served = catalog_of(logs)

        async def open_it() -> HttpServer:
            server = cls(
                served,
                members,
                token=token,
                tokens=accepted,
                allow_hosts=allow_hosts,
                allow_origins=allow_origins,
                registry=registry,
                collections=collections or {},
                settings=settings,
                beside=beside,
                listening=listening or Listening(),
                clock=clock,
                is_local=is_loopback(place[0]) and accepted is None,
            )
            try:
                await server._listen(place, tls)
            except BaseException:
                await server.aclose()
                raise
            return server

        return Opening(open_it)

    def __init__(
        self,
        logs: LogCatalog,
        members: MemberLogs | None,
        *,
        token: str | None,
        tokens: AccessTokens | None,
        allow_hosts: Sequence[str],
        allow_origins: Sequence[str],
        registry: CollectorRegistry | None,
        collections: Mapping[str, WatchedCollection],
        settings: HttpSettings | None,
        beside: Server | None,
        listening: Listening,
        clock: Clock | None,
        is_local: bool,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self.settings = settings or HttpSettings()
        """As given to :meth:`open`."""
        self.incoming = beside.incoming if beside else ChannelBudget(self.settings.request_bytes)
        """Bytes of the requests in progress."""
        self.outgoing = beside.outgoing if beside else answer_budget(self.settings.answer_bytes)
        """Bytes of the answers that clients have not taken."""
        self.addresses: list[str] = []
        """Where it is reached, such as ``http://127.0.0.1:7421``."""
        self._logs = logs
        self._members = members
        self._clock = clock or SystemClock()
        self._tickets = Tickets(self._clock)
        self._token = token
        self._access = Access(
            tokens, allow_origins, self._tickets, allow_hosts=allow_hosts, is_local=is_local
        )
        self._registry = registry
        self._is_alone = beside is None
        self._fetching = beside.fetching if beside else Fetching()
        self._streams = Streams(logs, self._clock, self._fetching)
        self._looking = Looking(logs, collections, self._clock)
        self._runner: web.AppRunner | None = None
        self._proxy: Proxy | None = None
        self._answering: Answering | None = None
        self._listening = listening
        self._servers: list[asyncio.Server] = []
        self._connections: Connections | None = None
        self._sweeping: list[asyncio.Task[None]] = []
        self._home = LoopGuard("server")
        self._closing: asyncio.Task[None] | None = None

    @property
    def requests(self) -> int:
        """How many requests are in progress, live readers included."""
        return 0 if self._answering is None else self._answering.requests

    @property
    def answered(self) -> Mapping[tuple[str, str], int]:
        """How many requests were answered, by method and status; 499 if the client was gone."""
        return Counter() if self._answering is None else self._answering.answered.copy()

    @property
    def metrics(self) -> Sequence[Metric]:
        """What ``PrometheusMetrics.watch`` shows of it."""
        return HTTP_METRICS

    async def aclose(self) -> None:
        """Stop: refuse new requests, end live readers, and finish the rest within ``drain_seconds``.

        A live reader continues at another server, or at this one later, where it was told that it is. Stop
        a server that this one is ``beside`` at the same time, or its ``drain_seconds`` come after these.
        Twice is allowed; cancelling the wait does not stop the stopping.
        """
        if self._closing is None:
            self._closing = start_task(self._close())
        await wait_closed(self._closing)

    def _left_open(self) -> Unclosed | None:
        if getattr(self, "_closing", True) or self._home.is_inherited:
            return None
        return Unclosed(f"the server at {', '.join(self.addresses)}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<HttpServer at {', '.join(self.addresses) or 'no place'}>"

    # -- listening ---------------------------------------------------------------------------

    async def _listen(self, place: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        # Importing aiohttp reads files.
        await asyncio.get_running_loop().run_in_executor(None, import_server)
        from aiohttp import web

        from walstore.http.answering import Answering
        from walstore.http.answers import Answers
        from walstore.http.bodies import Bodies
        from walstore.http.handlers import Handlers
        from walstore.http.health import Health
        from walstore.http.pages import Pages
        from walstore.http.proxy import Proxy

        cluster = self._members
        if cluster is not None:
            live = max(self.settings.event_seconds, self.settings.poll_seconds)
            self._proxy = Proxy(
                cluster.member.tls,
                token=self._token or cluster.member.token,
                live_seconds=live,
            )
        self._answering = Answering(self._access, self.settings, cluster, self._proxy)
        answers = Answers(
            self.outgoing, self.settings.read_bytes, self.settings.body_seconds, self._clock
        )
        app = web.Application(client_max_size=self.settings.body_bytes)
        for routes in (
            self._answering,
            Handlers(
                self._streams,
                Bodies(self.settings, self.incoming),
                answers,
                self.settings,
                self._clock,
                is_private=self._access.needs_token,
            ),
            self._tickets,
            Pages(self._looking),
            Health(self._logs, lambda: self._is_stopping, self._registry),
        ):
            routes.add_to(app)
        # How long it waits is the matter of _close: aiohttp waits twice, and for ever where 0 is given.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_NO_END)
        await self._runner.setup()
        assert self._runner.server is not None
        connections = Connections(
            partial(self._answering.protocol, self._runner.server),
            most=2 * self.settings.connections + _SPARE_CONNECTIONS,
            idle_seconds=self.settings.idle_seconds,
            clock=self._clock,
        )
        self._answering.connections = self._connections = connections
        await self._listening.listen(None, place)
        loop = asyncio.get_running_loop()
        scheme = "http" if tls is None else "https"
        for one in self._listening.ports:
            host, port = one.getsockname()[:2]
            made = await loop.create_server(connections, sock=one, ssl=tls, backlog=BACKLOG)
            self._servers.append(made)
            self.addresses.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        for sweep in (self._sweep(), connections.sweep(), answers.sweep()):
            self._sweeping.append(loop.create_task(sweep, name="walstore serve http"))

    async def _close(self) -> None:
        if self._answering is not None:
            self._answering.is_stopping = True
        for sweeping in self._sweeping:
            sweeping.cancel()
        if self._sweeping:
            await asyncio.wait(self._sweeping)
        for server in self._servers:
            server.close()
        await self._listening.aclose()
        self._streams.end_all()
        if self._proxy is not None:
            self._proxy.end_all()
        if self._runner is not None:
            await self._finish(self._runner)
        if self._proxy is not None:
            await self._proxy.aclose()

    async def _finish(self, runner: web.AppRunner) -> None:
        """Let the requests in progress end; after ``drain_seconds`` those that did not are cut off."""
        if self._connections is None:
            await runner.cleanup()
            return
        ending = start_task(self._connections.end_after(self.settings.drain_seconds))
        try:
            await runner.cleanup()
        finally:
            ending.cancel()
            await asyncio.wait([ending])

    @property
    def _is_stopping(self) -> bool:
        return self._answering is None or self._answering.is_stopping

    async def _sweep(self) -> None:
        """Delete streams whose time is over."""
        await self._streams.load()
        while True:
            await self._clock.sleep(_SWEEP_SECONDS)
            if self._is_alone:
                self._fetching.tidy()
            with contextlib.suppress(WalError, RefusedError):
                await self._streams.expire()


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


def import_server() -> None:
    """Import what an HTTP server needs; MissingExtraError. Blocking."""
    with needs_extra("serve", "HttpServer"):
        for name in ("answering", "bodies", "handlers", "health", "pages", "proxy"):
            importlib.import_module(f"walstore.http.{name}")
