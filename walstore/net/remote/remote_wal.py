"""RemoteWal: a served log, with the habits of :class:`walstore.Wal`; :func:`connect` returns it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from weakref import WeakSet

from walstore.core.ports import Clock
from walstore.core.read.read_source import ReadSource
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.resource import Opening
from walstore.core.runtime.statistics import GroupInfo, Statistics
from walstore.core.tier_port import LogExtents
from walstore.log.log import Log
from walstore.net.remote.client import Client
from walstore.net.remote.cursors import RemoteCursors
from walstore.net.remote.group import RemoteGroup
from walstore.net.remote.remote_appends import RemoteAppends
from walstore.net.remote.remote_reads import RemoteReads, about_log
from walstore.net.remote.server_places import check_places
from walstore.net.remote.server_search import epoch_of
from walstore.net.remote.source import RemoteSource
from walstore.net.wire.address import Address
from walstore.net.wire.verbs import DELETE_GROUP, EXTENTS, GROUPS, STATISTICS
from walstore.positions.cursor import CursorBackend
from walstore.positions.groups.group_settings import GroupSettings, check_group_name
from walstore.records import Durability

_READ_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 1 << 20
"""Room that a message has for anything but the records of a group."""
_LEAST_HEAD_BYTES: Final = 100
"""The same of a single record without headers."""


def connect(
    address: str | Sequence[str],
    *,
    log: str | None = None,
    create: bool = True,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_seconds: float = 10.0,
    reconnect_seconds: float = 30.0,
    clock: Clock | None = None,
) -> Opening[RemoteWal]:
    """Connect to a log that ``walstore serve`` or :class:`walstore.serve.Server` owns.

    ``async with connect("unix:///run/orders.sock") as wal`` or ``wal = await connect(...)`` with a later
    ``await wal.aclose()``. The address is ``unix:///PATH``, ``tcp://127.0.0.1:PORT`` or
    ``tls://HOST:PORT``. ``log`` names the log of a served store; ``?log=NAME`` at the end of the address
    does so, too. The store makes a log that it does not have; with ``create=False`` that is
    LogNotFoundError, and nothing is made. ``token`` is that of the server. ``tls`` is for servers whose
    certificate the system does not trust. One that cannot be reached is tried again for ``connect_seconds``:
    it may be starting, too.

    A lost connection is made again. Requests wait for that up to ``reconnect_seconds``, then they raise
    StorageUnavailableError; later ones try again. What may be repeated is sent again. An append that
    was on its way raises OutcomeUnknownError, unless it went through :meth:`RemoteWal.producer`. A connection
    is lost, too, if the server says nothing for 20 seconds while requests wait for it.

    Of a replicated log give the addresses of all machines that may become its primary. All are asked at
    once, and the one that has the log is used. If it is lost, or says nothing for two seconds while another
    one has the log with a newer epoch, the client goes on there.

    Raises TypeError or InvalidSettingsError at once for an address, a name or a token that is none.
    Connecting raises StorageUnavailableError if no server answers, AccessDeniedError for a wrong token or
    certificate, FormatVersionError for a server of another version, LogNotFoundError for a log it does not
    have.
    """
    found = check_places(address, log, token, connect_seconds, reconnect_seconds)

    async def connect_it() -> RemoteWal:
        client = found.client(tls, clock, creates=create)
        await client.connect()
        return RemoteWal(client, clock or SystemClock())

    return Opening(connect_it)


class RemoteWal(RemoteReads, Log):
    """A log in another process, over a connection. Made by :func:`walstore.connect`.

    It has the methods of :class:`walstore.Wal`, with the same arguments, results and errors. Different is
    only what cannot be known without asking: :meth:`statistics` and :meth:`streams` are awaited, and offsets,
    limits and ``registers`` are as last heard, with any answer or by :meth:`refresh`. There is no
    ``append_nowait``, since the server assigns the offsets. All methods belong to the event loop that
    connected; from another thread or event loop they raise WrongLoopError, in a forked child WalClosedError.

    Appends of one client are accepted in the order of the calls. Records of all clients share commits.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        """Not for callers; see :func:`walstore.connect`."""
        super().__init__(client)
        self.path = Path()
        """The log's directory at the server."""
        self.appends: RemoteAppends = RemoteAppends(client, self._mirror)
        self._read_bytes = _READ_BYTES
        self._clock = clock
        self._cursors = RemoteCursors(client)
        self._groups = WeakSet[RemoteGroup]()
        client.on_welcome = self._welcomed
        self._welcomed(client.welcome)

    # -- reading -----------------------------------------------------------------------------

    def _source_of(self, visibility: Literal["durable", "accepted"]) -> ReadSource:
        self.client.check_home()
        return RemoteSource(self.client, self._mirror, visibility)

    # -- groups ------------------------------------------------------------------------------

    async def groups(self) -> list[GroupInfo]:
        """Return all groups of the log by name; as :meth:`walstore.Wal.groups`."""
        found: list[GroupInfo] = await self.client.call(GROUPS)
        return found

    async def delete_group(self, name: str) -> bool:
        """Remove a group and all that it remembers; as :meth:`walstore.Wal.delete_group`."""
        found: bool = await self.client.call(DELETE_GROUP, check_group_name(name))
        return found

    # -- looking -----------------------------------------------------------------------------

    @property
    def address(self) -> Address:
        """Where the server is; of several places the one where it was found last."""
        return self.client.address

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now; requests do not depend on it."""
        return self.client.is_connected

    @property
    def is_closing(self) -> bool:
        """Whether this client was closed, or can never reach its log again: requests are refused."""
        return self.client.is_closing

    @property
    def max_record_bytes(self) -> int:
        """Largest record that the log takes, as its settings say."""
        return self.appends.max_record_bytes

    @property
    def most_group_bytes(self) -> int:
        """Largest atomic group; more needs a :meth:`transaction`."""
        return self.appends.most_group_bytes

    @property
    def producer_window(self) -> int:
        """How many appends of a producer the log remembers."""
        return self.appends.producer_window

    @property
    def tail(self) -> int:
        """Next offset to be assigned, as last heard."""
        return self._mirror.tail

    @property
    def durable_limit(self) -> int:
        """Every offset below it is on disk; as last heard."""
        return self._mirror.durable_limit

    @property
    def durability(self) -> Durability:
        """Level of an append that names none, as last heard."""
        return self._mirror.durability

    @property
    def uploaded_limit(self) -> int:
        """Every offset below it is named by the cloud tier's manifest; as last heard."""
        return self._mirror.uploaded_limit

    @property
    def tier_head(self) -> int | None:
        """First offset that can be read from the cloud tier below the local head, as last heard."""
        return self._mirror.tier_head

    @property
    def registers(self) -> Mapping[str, str]:
        """The durable state of the registers, as last heard; a snapshot that does not change."""
        return self._mirror.registers

    async def statistics(self) -> Statistics:
        """Return a snapshot of the counters of the served log."""
        found: Statistics = await self.client.call(STATISTICS)
        return found

    async def extents(self) -> LogExtents:
        """Return which file or object holds which records; as :meth:`walstore.Wal.extents`.

        What is stored can be read without the server: the names of objects are keys below ``tier_url``.
        """
        found: LogExtents = await self.client.call(EXTENTS)
        return found

    # -- closing -----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End the connection once the appends on their way are answered. Twice is allowed.

        Members of groups leave, as at the end of their blocks.
        The log stays open at the server. If cancelled, appends on their way end with an unknown outcome.
        Waiting takes no longer than to notice that the connection is lost, and to connect again.
        """
        self.appends.send_gathered()
        for group in self._groups:
            group.part()
        await super().aclose()
        await self._cursors.queue.settle()

    def _cursor_store(self) -> tuple[CursorBackend, Clock]:
        return self._cursors, self._clock

    async def _find_group(self, name: str, settings: GroupSettings) -> RemoteGroup:
        self.client.check_home()
        group = RemoteGroup(self.client, name, settings)
        self._groups.add(group)
        return group

    def _welcomed(self, welcome: dict[str, Any]) -> None:
        """Take over what a server says of the log; the next one may have other settings, or another disk."""
        about = about_log(welcome)
        self.path = Path(os.fsdecode(about["path"]))
        backend = self.appends
        most = int(welcome["message_bytes"])
        backend.max_record_bytes = min(int(about["max_record_bytes"]), most - _LEAST_HEAD_BYTES)
        backend.most_group_bytes = min(int(about["channel_bytes"]), most - _HEAD_BYTES)
        backend.producer_window = int(about["producer_window"])
        self._mirror.durability = Durability(about["durability"])
        self._mirror.begin(about["limits"], epoch_of(welcome))
        self._mirror.registers = about["registers"]
        for group in self._groups:
            group.stay()
