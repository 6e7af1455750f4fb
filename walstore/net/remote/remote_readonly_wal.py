"""RemoteReadonlyWal: a log that is read over a connection, also at a machine that only has a copy of it."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from walstore.core.faces.readable_log import follow_or_warn
from walstore.core.ports import Clock
from walstore.core.read.reader import Reader
from walstore.core.runtime.resource import Opening
from walstore.net.remote.client import READ_SERVICE, Client
from walstore.net.remote.remote_reads import RemoteReads, about_log
from walstore.net.remote.server_places import check_places
from walstore.net.remote.source import RemoteSource
from walstore.records import Start

_READ_BYTES = 1 << 20


def connect_readonly(
    address: str | Sequence[str],
    *,
    log: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_seconds: float = 10.0,
    reconnect_seconds: float = 30.0,
    clock: Clock | None = None,
) -> Opening[RemoteReadonlyWal]:
    """Connect to a server for reading: to one that owns the log, or one that only has a copy of it.

    Arguments and errors as :func:`walstore.connect`. Of several addresses the first server that answers and
    has the log, or a copy, is used; when it is lost, the next one. Records are those that are replicated, or
    of a log that is not replicated, durable. A copy shows them some milliseconds later than the machine that
    leads the log; one that the leader does not reach shows what it had.
    """
    found = check_places(address, log, token, connect_seconds, reconnect_seconds)

    async def connect_it() -> RemoteReadonlyWal:
        client = found.client(tls, clock, service=READ_SERVICE)
        await client.connect()
        return RemoteReadonlyWal(client)

    return Opening(connect_it)


class RemoteReadonlyWal(RemoteReads):
    """A log in another process, for reading. Made by :func:`walstore.connect_readonly`.

    It has the reading methods of :class:`walstore.ReadonlyWal`. Reading beyond the end of a replicated log
    waits, since another machine may have more than the one that is asked. ``head`` and the limits are as
    last heard, with any answer or by :meth:`refresh`; none of them goes back. All methods belong to the event
    loop that connected; from another thread or event loop they raise WrongLoopError, in a forked child
    WalClosedError.
    """

    def __init__(self, client: Client) -> None:
        """Not for callers; see :func:`walstore.connect_readonly`."""
        super().__init__(client)
        client.on_welcome = self._welcomed
        self._welcomed(client.welcome)

    @property
    def address(self) -> str:
        """Of the server that is used now."""
        return str(self.client.address)

    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
        follow: bool | None = None,
        read_bytes: int = _READ_BYTES,
    ) -> Reader:
        """Return a reader; options as :meth:`walstore.Wal.reader`. It goes on when the server is replaced."""
        return self._read(
            start, stop, stream, follow=follow_or_warn(follow=follow), read_bytes=read_bytes
        )

    def _read(
        self,
        start: Start | str | int | datetime,
        stop: int | None,
        stream: str | None,
        *,
        follow: bool,
        read_bytes: int = _READ_BYTES,
    ) -> Reader:
        self.client.check_home()
        return Reader(
            RemoteSource(self.client, self._mirror, "durable"),
            start=start,
            stop=stop,
            stream=stream,
            follow=follow,
            read_bytes=read_bytes,
            guard=self._guard,
            may_lack=self.replicated_limit is not None,  # this server may, and others have it
        )

    def _welcomed(self, welcome: dict[str, Any]) -> None:
        # What is replicated stays so in any epoch: no limit goes back.
        self._mirror.hear(about_log(welcome)["limits"])
