"""RemoteReadonlyWal: a log that is read over a connection, also at a machine that only has a copy of it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

from walstore.format.packed import MOST_OFFSET
from walstore.ports import Clock
from walstore.read.reader import Reader, ReadGuard
from walstore.records import Start
from walstore.remote.appenders import TAG_BYTES
from walstore.remote.client import READ_SERVICE, Client
from walstore.remote.remote_wal import check_places
from walstore.remote.source import LogMirror, RemoteSource
from walstore.runtime.clock import SystemClock
from walstore.runtime.owned import Owned
from walstore.runtime.resource import MustClose, Opening, Unclosed
from walstore.validation.arguments import as_int, as_moment_us

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
    check = check_places(address, log, token, connect_seconds, reconnect_seconds)
    used = clock or SystemClock()

    async def connect_it() -> RemoteReadonlyWal:
        client = Client(
            check.places,
            token=check.token,
            tls=tls,
            log=check.log,
            connect_seconds=check.connect_seconds,
            reconnect_seconds=check.reconnect_seconds,
            clock=used,
            make_tag=lambda: os.urandom(TAG_BYTES),
            service=READ_SERVICE,
        )
        await client.connect()
        return RemoteReadonlyWal(client)

    return Opening(connect_it)


class CopySource(RemoteSource):
    """What a reader of a copy reads from. The copy may lack what the caller knows of: it comes."""

    @property
    def tail(self) -> int:
        """Next offset to be assigned, which a copy does not know."""
        return MOST_OFFSET


class RemoteReadonlyWal(Owned, MustClose):
    """A log in another process, for reading. Made by :func:`walstore.connect_readonly`.

    It has the reading methods of :class:`walstore.ReadonlyWal`. ``head`` and the limits are as last heard,
    with any answer or by :meth:`refresh`; none of them goes back. All methods belong to the event loop that
    connected; from another thread or event loop they raise WrongLoopError, in a forked child WalClosedError.
    """

    def __init__(self, client: Client) -> None:
        """Not for callers; see :func:`walstore.connect_readonly`."""
        self.client = client
        """Not for callers."""
        about = client.welcome["log"]
        self.log_id: str = about["log_id"]
        """Identity of the log, 32 hex digits."""
        self._mirror = LogMirror()
        self._guard = ReadGuard(client.check_home, client.check_owner)
        client.on_welcome = self._welcomed
        self._welcomed(client.welcome)

    @property
    def address(self) -> str:
        """Of the server that is used now."""
        return str(self.client.address)

    @property
    def head(self) -> int:
        """First offset that can be read."""
        self.client.check_home()
        return self._mirror.head

    @property
    def limit(self) -> int:
        """Offset after the last record that can be read."""
        self.client.check_home()
        return self._mirror.visible_limit

    @property
    def visible_limit(self) -> int:
        """Same as :attr:`limit`."""
        return self.limit

    @property
    def replicated_limit(self) -> int | None:
        """Same as :attr:`limit`; None for a log that is not replicated."""
        self.client.check_home()
        return self._mirror.replicated_limit

    async def refresh(self) -> None:
        """Ask the server for the present limits."""
        limits, _ = await self.client.call("refresh")
        self._mirror.hear(limits)

    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
        follow: bool = True,
        read_bytes: int = _READ_BYTES,
    ) -> Reader:
        """Return a reader; options as :meth:`walstore.Wal.reader`. It goes on when the server is replaced."""
        self.client.check_home()
        source = CopySource(self.client, self._mirror, "durable")
        return Reader(
            source,
            start=start,
            stop=stop,
            stream=stream,
            follow=follow,
            read_bytes=read_bytes,
            guard=self._guard,
        )

    async def offset_at(self, timestamp_us: int | datetime) -> int:
        """Return the first offset at or after a time, or :attr:`limit` if all records are older."""
        found: int = await self.client.call("offset_at", as_moment_us(timestamp_us))
        return found

    async def timestamp_at(self, offset: int) -> int:
        """Return the timestamp of a record, in microseconds since 1970 UTC.

        OffsetTrimmedError, OffsetNotWrittenError.
        """
        found: int = await self.client.call("timestamp_at", as_int(offset, "offset"))
        return found

    async def aclose(self) -> None:
        """End the connection. Twice is allowed."""
        self._guard.thread = 0
        await self.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _left_open(self) -> Unclosed | None:
        client = getattr(self, "client", None)
        if client is None or client.is_closing:
            return None
        return Unclosed(f"the connection to {client.address}")

    def __repr__(self) -> str:
        seen = self._mirror
        return f"<RemoteReadonlyWal {self.client.address} [{seen.head}, {seen.visible_limit})>"

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self.client.check_owner()

    def _welcomed(self, welcome: dict[str, Any]) -> None:
        # What is replicated stays so in any epoch: no limit goes back.
        self._mirror.hear(welcome["log"]["limits"])
