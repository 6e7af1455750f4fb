"""RemoteReads: what a log that is read over a connection can do, whoever may write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walstore.core.faces.readable_log import ReadableLog
from walstore.core.format.ledger import StreamInfo
from walstore.core.read.reader import ReadGuard
from walstore.core.runtime.resource import MustClose, Unclosed
from walstore.errors import StorageUnavailableError
from walstore.net.remote.client import Client
from walstore.net.remote.source import LogMirror
from walstore.net.wire.verbs import OFFSET_AT, REFRESH, STREAMS, TIMESTAMP_AT


class RemoteReads(ReadableLog, MustClose):
    """A log in another process. Its offsets and limits are as last heard, with any answer."""

    def __init__(self, client: Client) -> None:
        """Not for callers; see :func:`walstore.connect`."""
        self.client = client
        """Not for callers."""
        self.log_id: str = about_log(client.welcome)["log_id"]
        """Identity of the log, made once when it was created; 32 hex digits."""
        self._mirror = LogMirror()
        self._guard = ReadGuard(client.check_home, client.check_owner)

    @property
    def head(self) -> int:
        """First retained offset, in any tier, as last heard."""
        return self._mirror.head

    @property
    def limit(self) -> int:
        """Offset after the last record that can be read, as last heard."""
        return self._mirror.visible_limit

    @property
    def replicated_limit(self) -> int | None:
        """Every offset below it is on enough machines, as last heard; None if the log is not replicated."""
        return self._mirror.replicated_limit

    async def refresh(self) -> None:
        """Ask the server for the present offsets, limits and registers."""
        limits, registers = await self.client.call(REFRESH)
        self._mirror.hear(limits)
        self._mirror.registers = registers

    async def aclose(self) -> None:
        """End the connection. Twice is allowed. The log stays open at the server."""
        self._guard.thread = 0
        await self.client.aclose()

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self.client.check_owner()

    def __repr__(self) -> str:
        kind, seen = type(self).__name__, self._mirror
        return f"<{kind} {self.client.address} [{seen.head}, {max(seen.tail, seen.visible_limit)})>"

    async def _find_offset(self, time_us: int) -> int:
        found: int = await self.client.call(OFFSET_AT, time_us)
        return found

    async def _find_timestamp(self, offset: int) -> int:
        found: int = await self.client.call(TIMESTAMP_AT, offset)
        return found

    async def _find_streams(self) -> dict[str, StreamInfo]:
        found: dict[str, StreamInfo] = await self.client.call(STREAMS)
        return found

    def _left_open(self) -> Unclosed | None:
        client = getattr(self, "client", None)
        if client is None or client.is_closing:
            return None
        return Unclosed(f"the connection to {client.address}")


def about_log(welcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a server's greeting says of the log."""
    about = welcome.get("log")
    if not isinstance(about, dict):
        raise StorageUnavailableError("the server's greeting says nothing of a log")
    return about
