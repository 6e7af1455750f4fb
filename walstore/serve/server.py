"""Server: owns a log, or a store of logs, for the clients of :func:`walstore.connect`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import walstore
from walstore.cluster.member import ClusterMember
from walstore.cluster.replication.node import ReplicaNode
from walstore.core.append.budgets import ChannelBudget, answer_budget
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.metric import Metric
from walstore.core.runtime.resource import LoopGuard, MustClose, Opening, Unclosed, wait_closed
from walstore.core.runtime.tasks import start_task
from walstore.errors import (
    AccessDeniedError,
    InvalidSettingsError,
    LogNotFoundError,
    WalClosedError,
    WalError,
)
from walstore.log.wal import Wal
from walstore.net.wire.address import Address, check_socket_path
from walstore.serve.access_tokens import AccessTokens, tokens_of
from walstore.serve.client_connection import ClientConnection
from walstore.serve.fetching import Fetching
from walstore.serve.figures import SERVER_METRICS, ServerFigures
from walstore.serve.listening import BACKLOG, Listening, check_listen
from walstore.serve.serve_settings import ServeSettings
from walstore.serve.services import CopyService, ReadService, StoredService
from walstore.serve.transaction_room import TransactionRoom
from walstore.serve.turns import Turns
from walstore.store.log_catalog import catalog_of
from walstore.store.wal_store import WalStore

logger = logging.getLogger("walstore.serve")

_SWEEP_SECONDS: Final = 1.0
_ACCEPT_TURNS: Final = 5
"""Turns of the event loop after which a connection that was being accepted is refused and closed."""
_SPARE_BYTES: Final = 16 << 20
"""Room for requests beside a message of the largest size."""


class Server(MustClose):
    """Serves one log, or all logs of a store, to other processes. Made by :meth:`open`.

    The log stays usable in this process, too. Belongs to the event loop of the log. What a client may do is
    all that a program with the log open may do, except closing it.
    """

    @classmethod
    def open(
        cls,
        logs: Wal | WalStore | None,
        *,
        replicas: ReplicaNode | None = None,
        cluster: ClusterMember | None = None,
        unix: str | os.PathLike[str] | None = None,
        tcp: str | None = None,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
        tokens: AccessTokens | None = None,
        behind_proxy: bool = False,
        settings: ServeSettings | None = None,
        listening: Listening | None = None,
        clock: Clock | None = None,
    ) -> Opening[Server]:
        """Begin to serve ``logs`` at a unix socket, at ``HOST:PORT``, or at both.

        A socket at ``unix`` is made with mode 0600, so only this user may connect; one left by a server that
        was killed is replaced. ``tcp`` without ``tls`` must be a loopback address; any other needs ``tls``
        and a ``token``, which clients pass to ``connect``, or ``tokens``, of which each has scopes and logs.
        With ``behind_proxy`` it needs only the token: a proxy, such as a container's, ends TLS and is the
        only one that reaches the place. A store's log is
        opened, or made, when the first client asks for it. ``replicas`` are copies of other machines' logs,
        for their primaries; ``logs`` may be None then. ``cluster`` serves the copies and the logs that this
        member leads, and passes clients of other logs on to the machines that lead them. ``listening`` has
        sockets that listen at these places already, which this server closes. Leaving the block stops the
        server, and leaves ``logs``, ``replicas`` and ``cluster`` open.

        Raises InvalidSettingsError for a place that may not be served, StorageUnavailableError if another
        program is there.
        """
        if cluster is not None and (logs is not None or replicas is not None):
            raise InvalidSettingsError(
                "cluster= serves logs and copies; leave logs and replicas= out"
            )
        if logs is None and replicas is None and cluster is None:
            raise InvalidSettingsError("a server serves logs=, replicas=, or cluster=")
        if unix is None and tcp is None:
            raise InvalidSettingsError(
                "a server needs a place: unix=PATH, tcp='HOST:PORT', or both"
            )
        accepted = tokens_of(token, tokens)
        listen = None
        if tcp is not None:
            listen = check_listen(
                tcp, tls, has_tokens=accepted is not None, behind_proxy=behind_proxy
            )
        path = None if unix is None else check_socket_path(os.fspath(unix))

        async def open_it() -> Server:
            server = cls(
                logs,
                replicas=replicas if cluster is None else cluster.node,
                cluster=cluster,
                tokens=accepted,
                settings=settings,
                listening=listening or Listening(),
                clock=clock,
            )
            try:
                await server._listening.listen(path, listen)
                await server._serve(listen[0] if listen else "", tls)
                await server._announce(" and ".join(map(str, server.addresses)))
            except BaseException:
                await server.aclose()
                raise
            return server

        return Opening(open_it)

    def __init__(
        self,
        logs: Wal | WalStore | None,
        *,
        replicas: ReplicaNode | None = None,
        cluster: ClusterMember | None = None,
        tokens: AccessTokens | None,
        settings: ServeSettings | None,
        listening: Listening,
        clock: Clock | None,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self.settings = settings or ServeSettings()
        """As given to :meth:`open`."""
        self.tokens = tokens
        """Of which clients must send one; None if they need none."""
        self.version = walstore.__version__
        """Version of this package, for clients."""
        self.addresses: list[Address] = []
        """Where it is reached; a port of 0 is replaced by the one it got."""
        most_bytes = max(self.settings.request_bytes, self.settings.message_bytes + _SPARE_BYTES)
        self.incoming = ChannelBudget(most_bytes)
        """Bytes of requests of all clients."""
        part_bytes = (most_bytes - self.settings.message_bytes) // 2
        self.transaction_room = TransactionRoom(self.incoming, part_bytes)
        """The part of it that open transactions may take; a message of the largest size fits beside it."""
        self.turns = Turns(asyncio.get_running_loop().call_soon)
        """When requests of clients begin."""
        self.outgoing = answer_budget(self.settings.answer_bytes)
        """Bytes of answers of all clients."""
        self.fetching = Fetching()
        """Reads for all clients."""
        self.figures = ServerFigures()
        """What was counted."""
        self._logs = None if logs is None else catalog_of(logs)
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._servers: list[asyncio.Server] = []
        self._connections: set[ClientConnection] = set()
        self._listening = listening
        self._is_stopping = False
        self._sweeping = start_task(self._sweep(), name="walstore serve")
        self._home = LoopGuard("server")
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether the server takes no more requests."""
        return self._is_stopping

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    @property
    def requests_in_progress(self) -> int:
        """How many requests have no answer yet."""
        return sum(connection.requests for connection in self._connections.copy())

    @property
    def metrics(self) -> Sequence[Metric]:
        """What ``PrometheusMetrics.watch`` shows of it."""
        return SERVER_METRICS

    @property
    def monotonic(self) -> Callable[[], float]:
        """Seconds that never go back."""
        return self._clock.monotonic

    # -- for connections ---------------------------------------------------------------------

    @property
    def trust(self) -> ssl.SSLContext | None:
        """Trust for the other machines of the cluster."""
        return None if self._cluster is None else self._cluster.tls

    async def log(
        self, name: str | None, *, after: int = 0, creates: bool = False
    ) -> Wal | Address:
        """Return the log that a client asked for, or where it is led: above epoch ``after``, if it soon is.

        ``creates``: a store makes one that it does not have. LogNotFoundError if there is none of that name,
        InvalidSettingsError if it has to be named.
        """
        if self._cluster is not None:
            return await self._cluster.find(name, after=after)
        logs = self._logs
        if logs is None:
            raise LogNotFoundError("this server serves copies only", location=str(name)[:200])
        if name is None:
            name = logs.default
        if name is None:
            raise InvalidSettingsError(
                "this server serves many logs; name one: connect(address, log=NAME)"
            )
        wal = await (logs.wal(name) if creates or not logs.can_create else logs.find(name))
        if wal is None:
            raise LogNotFoundError(f"this server has no log {name[:200]!r}", location=name[:200])
        if wal.is_closing:
            why = wal.statistics().failure
            raise WalClosedError(
                "the served log is closed" + (f": {why}" if why else ""),
                reason="failed" if why else "clean",
            )
        return wal

    def name_of(self, name: str | None) -> str | None:
        """Return the name of the log that a client asked for; None if it has to name one."""
        return self._logs.default if name is None and self._logs is not None else name

    async def readable(self, name: str | None) -> ReadService[Any]:
        """Return the records of a log that can be read here: of a copy, of a log in a store, or of the log.

        As :meth:`log` raises. It is to be closed.
        """
        if self._cluster is not None:
            led = None if name is None else self._cluster.led.get(name)
            if led is not None:
                return ReadService(led)
            await self._cluster.check_has_copy(name)
            stored = None if name is None else await self._cluster.use_stored(name)
            if stored is not None:
                return StoredService(stored)
        if self._replicas is None or self._logs is not None:
            found = await self.log(name)
            assert not isinstance(found, Address)
            return ReadService(found)
        if name is None:
            raise InvalidSettingsError("name the log whose copy is read: log=NAME")
        return CopyService(await self._replicas.log(name))

    async def listed(self) -> list[list[Any]]:
        """Return the logs that clients may name: name and labels; in a cluster also leader, epoch,
        whether it is suspended, and whether it is only read."""
        if self._cluster is not None:
            view = self._cluster.view
            found = []
            for name, spec in sorted(view.specs.items()):
                leader = view.leaders.get(name)
                led = (leader.address, leader.epoch) if leader and leader.epoch else (None, None)
                found.append([name, dict(spec.labels), *led, spec.suspended, bool(spec.source)])
            return found
        names = [] if self._logs is None else await self._logs.logs()
        return [[name, {}, None, None, False, False] for name in sorted(names)]

    async def moved(self, name: str | None, address: Address) -> None:
        """Return when another machine than the one at an address leads a log."""
        assert self._cluster is not None
        await self._cluster.moved(str(name), address)

    def replicas(self) -> ReplicaNode:
        """Return the copies that are served; AccessDeniedError if there are none."""
        if self._replicas is None:
            raise AccessDeniedError("this server takes no copies; start it with --replicate")
        return self._replicas

    def joined(self, connection: ClientConnection) -> bool:
        """Take a connection in; False if there are too many, or the server stops."""
        if len(self._connections) >= self.settings.connections or self._is_stopping:
            self.figures.refused += 1
            return False
        self.figures.connected += 1
        self._connections.add(connection)
        return True

    def left(self, connection: ClientConnection) -> None:
        """Forget a connection that is lost."""
        self._connections.discard(connection)

    # -- closing -----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Stop: refuse new requests, finish those in progress, and disconnect the clients.

        Requests in progress have ``drain_seconds``; clients of this package send what was not begun to the
        next server at the same address. Twice is allowed; cancelling the wait does not stop the stopping.
        """
        if self._closing is None:
            self._closing = start_task(self._close())
        await wait_closed(self._closing)

    def _left_open(self) -> Unclosed | None:
        if getattr(self, "_closing", True) or self._home.is_inherited:
            return None
        return Unclosed(f"the server at {' and '.join(map(str, self.addresses))}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Server at {', '.join(map(str, self.addresses)) or 'no place'}>"

    async def _close(self) -> None:
        self._is_stopping = True
        self._sweeping.cancel()
        await self._stop_accepting()
        await self._listening.aclose()
        await self._announce(None)
        connections = list(self._connections)
        for connection in connections:
            connection.say_goodbye()
        ended = [connection.ended() for connection in connections]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds):
                await asyncio.gather(*ended)
        for connection in connections:
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self._connections:
                    await self._clock.sleep(0.01)
        for connection in list(self._connections):
            connection.drop("the server stopped")
        await asyncio.wait([self._sweeping])
        for _ in range(_ACCEPT_TURNS):
            await self._clock.sleep(0)

    async def _stop_accepting(self) -> None:
        """Close the listening sockets, once the connections that were just accepted have been refused.

        Before Python 3.12 a server that is closed in between leaves their sockets to the garbage collector.
        """
        loop = asyncio.get_running_loop()
        for server in self._servers:
            for listening in server.sockets:
                with contextlib.suppress(RuntimeError, NotImplementedError):  # other event loops
                    loop.remove_reader(listening.fileno())
        for _ in range(_ACCEPT_TURNS):
            await self._clock.sleep(0)
        for server in self._servers:
            server.close()

    async def _announce(self, where: str | None) -> None:
        """Tell those who find the log locked. Not being able to is no reason not to serve."""
        if self._logs is None:
            return
        with contextlib.suppress(OSError, WalError):
            await self._logs.announce(where)

    # -- listening ---------------------------------------------------------------------------

    async def _serve(self, host: str, tls: ssl.SSLContext | None) -> None:
        """Accept connections at the sockets that listen."""
        loop = asyncio.get_running_loop()
        unix = self._listening.unix
        if unix is not None:
            self._servers.append(
                await loop.create_unix_server(
                    lambda: ClientConnection(self), sock=unix.socket, backlog=BACKLOG
                )
            )
            self.addresses.append(Address("unix", str(unix.path)))
        for one in self._listening.ports:
            port = one.getsockname()[1]
            self._servers.append(
                await loop.create_server(
                    lambda: ClientConnection(self),
                    sock=one,
                    ssl=tls,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=self.settings.stall_seconds if tls else None,
                )
            )
            self.addresses.append(Address("tls" if tls else "tcp", host=host, port=port))

    async def _sweep(self) -> None:
        """Disconnect clients that stopped in the middle of something, and reassure those that wait."""
        pause = min(_SWEEP_SECONDS, self.settings.stall_seconds / 2)
        while True:
            await self._clock.sleep(pause)
            now = self._clock.monotonic()
            self.fetching.tidy()
            for connection in list(self._connections):
                why = connection.stall(now)
                if why is not None:
                    connection.drop(why)
                else:
                    connection.reassure(now)
