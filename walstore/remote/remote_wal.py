"""RemoteWal: a served log, with the habits of :class:`walstore.Wal`; :func:`connect` returns it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self
from weakref import WeakSet

from walstore.batches.append_request import make_record
from walstore.batches.batch_builder import RECORD_OVERHEAD_BYTES
from walstore.batches.conditions import Expected, check_metadata, check_name
from walstore.cursors.cursor_mixin import CursorMixin
from walstore.errors import InvalidSettingsError, StorageUnavailableError
from walstore.format.ledger import StreamInfo
from walstore.groups.group_mixin import GroupMixin
from walstore.groups.settings import GroupSettings, check_group_name
from walstore.ports import Clock
from walstore.positions.cursor import CursorBackend
from walstore.read.reader import Reader, ReadGuard
from walstore.records import AnyDurability, Durability, Start
from walstore.remote.append_port import Conditions
from walstore.remote.appenders import TAG_BYTES, RemoteFence, RemoteProducer, append_group
from walstore.remote.client import Client
from walstore.remote.cursors import RemoteCursors
from walstore.remote.group import RemoteGroup
from walstore.remote.outbox import Outbox
from walstore.remote.server_search import epoch_of
from walstore.remote.source import LogMirror, RemoteSource
from walstore.remote.transaction import RemoteTransaction, check_size
from walstore.runtime.clock import SystemClock
from walstore.runtime.resource import MustClose, Opening, Unclosed
from walstore.runtime.statistics import GroupInfo, GroupStatistics, Statistics, unpack_statistics
from walstore.settings import parse_durability
from walstore.tier_port import Extent, LogExtents
from walstore.validation.arguments import as_int, as_moment_us, as_seconds, as_text, as_token
from walstore.wire.address import Address, parse_address

_READ_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 1 << 20
"""Room that a message has for anything but the records of a group."""


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
    used = clock or SystemClock()

    async def connect_it() -> RemoteWal:
        client = Client(
            found.places,
            token=found.token,
            tls=tls,
            log=found.log,
            connect_seconds=found.connect_seconds,
            reconnect_seconds=found.reconnect_seconds,
            clock=used,
            make_tag=lambda: os.urandom(TAG_BYTES),
            creates=create,
        )
        await client.connect()
        return RemoteWal(client, used)

    return Opening(connect_it)


class ServerPlaces(NamedTuple):
    """Where the servers of a log may be, and how they are reached; checked."""

    places: list[Address]
    log: str | None
    token: str | None
    connect_seconds: float
    reconnect_seconds: float


def check_places(
    address: str | Sequence[str],
    log: str | None,
    token: str | None,
    connect_seconds: float,
    reconnect_seconds: float,
) -> ServerPlaces:
    """Return the arguments of :func:`connect`; TypeError or InvalidSettingsError if they cannot be."""
    places, named = _places(address, log)
    token = None if token is None else as_token(token)
    for place in places:
        if token is not None and not place.is_local and place.scheme != "tls":
            raise InvalidSettingsError(
                f"a token would be readable on the way to {place}: use tls://"
            )
    seconds = as_seconds(connect_seconds, "connect_seconds")
    patience = as_seconds(reconnect_seconds, "reconnect_seconds")
    if not seconds > 0 or patience < 0:
        raise InvalidSettingsError(
            "connect_seconds must be more than 0, reconnect_seconds at least 0"
        )
    return ServerPlaces(places, named, token, seconds, patience)


def _places(address: str | Sequence[str], log: str | None) -> tuple[list[Address], str | None]:
    """Return where the log may be, and its name if there is one."""
    given = [address] if isinstance(address, str) or not isinstance(address, Sequence) else address
    places = [parse_address(one) for one in given]
    if not places or len(set(map(str, places))) < len(places):
        raise InvalidSettingsError("give one address, or several different ones")
    given_names = [*(place.log for place in places), log]
    try:
        names = {as_text(name, "a name of a log") for name in given_names if name is not None}
    except ValueError as error:
        raise InvalidSettingsError(str(error)) from None
    if len(names) > 1:
        first, second, *_ = sorted(map(repr, names))
        raise InvalidSettingsError(f"two logs: {first}, and {second} in the address")
    return places, names.pop() if names else None


class RemoteWal(CursorMixin, GroupMixin, MustClose):
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
        about = _about(client.welcome)
        self.client = client
        """Not for callers."""
        self.mirror = LogMirror()
        """Not for callers."""
        self.log_id: str = about["log_id"]
        """Identity of the log, made once when it was created; 32 hex digits."""
        self.path = Path()
        """The log's directory at the server."""
        self.max_record_bytes = 0
        """Largest record that the log takes, as its settings say."""
        self.most_group_bytes = 0
        """Largest atomic group; more needs a :meth:`transaction`."""
        self.producer_window = 0
        """How many appends of a producer the log remembers."""
        self.outbox = Outbox(client, budget_bytes=int(client.welcome["credit_bytes"]))
        """Not for callers."""
        self._clock = clock
        self._cursors = RemoteCursors(client)
        self._groups = WeakSet[RemoteGroup]()
        self._guard = ReadGuard(client.check_home, client.check_owner)
        client.on_welcome = self._welcomed
        self._welcomed(client.welcome)

    # -- appending ---------------------------------------------------------------------------

    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append one record and return its offset once it is as safe as ``durability`` says.

        As :meth:`walstore.Wal.append`. OutcomeUnknownError if the connection is lost before the answer.
        """
        level = None if durability is None else parse_durability(durability)
        self.client.check_home()
        record = make_record(value, key, stream, headers, timestamp_us)
        check_size(record.size_bytes - RECORD_OVERHEAD_BYTES, self.max_record_bytes)
        offset = await self.outbox.append(record, level)
        self.mirror.note_appended(offset + 1, level)
        return offset

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
        expect_offset: int | None = None,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
    ) -> range:
        """Append records as one atomic group and return their offsets.

        As :meth:`walstore.Wal.append_many`. OutcomeUnknownError if the connection is lost before the answer.
        """
        return await append_group(
            self,
            values,
            key=key,
            stream=stream,
            headers=headers,
            timestamp_us=timestamp_us,
            durability=durability,
            conditions=Conditions(expect_offset, expect, update),
        )

    def transaction(
        self,
        *,
        expect_offset: int | None = None,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
        durability: AnyDurability | None = None,
    ) -> RemoteTransaction:
        """Return a transaction: records of any total size that enter the log together or not at all.

        As :meth:`walstore.Wal.transaction`. A connection lost before the commit rolls it back.
        """
        return RemoteTransaction(self, Conditions(expect_offset, expect, update), durability)

    def producer(self, producer_id: str) -> RemoteProducer:
        """Return an idempotent producer: its appends are in the log once, whatever the connection does."""
        return RemoteProducer(self, check_name(producer_id, "producer"))

    async def fence(self, owner: str, *, register: str = "fence") -> RemoteFence:
        """Take the log over for ``owner``: appends through earlier fences fail with FencedError."""
        owner, register = check_name(owner, "owner"), check_name(register, "register")
        token: str = await self.client.call("fence", owner, register, is_write=True)
        self.mirror.registers = {**self.mirror.registers, register: token}
        return RemoteFence(self, owner, register, token)

    async def wait_durable(self, offset: int, durability: AnyDurability = "disk") -> None:
        """Return when the record at ``offset`` is as safe as ``durability`` says."""
        level = parse_durability(durability)
        self.outbox.flush()
        self.mirror.hear(await self.client.call("wait_durable", as_int(offset, "offset"), level))

    async def flush(self) -> None:
        """Return when everything accepted before the call, of all clients, is on disk."""
        self.outbox.flush()
        self.mirror.hear(await self.client.call("flush"))

    # -- upkeep ------------------------------------------------------------------------------

    async def trim(self, before: int) -> int:
        """Remove all records below ``before`` from the server's disk and return the new head."""
        head: int = await self.client.call("trim", as_int(before, "before"), is_write=True)
        self.mirror.head = max(self.mirror.head, head)
        return head

    async def rotate(self) -> None:
        """Seal the active segment now, if it holds records, and begin the next."""
        await self.client.call("rotate", is_write=True)

    async def open_stream(self, name: str, *, metadata: Mapping[str, str] | None = None) -> None:
        """Open a stream, or open it again, with ``metadata``; durable when this returns."""
        checked = check_metadata({} if metadata is None else metadata)
        await self.client.call(
            "open_stream", check_name(name, "stream"), dict(checked), is_write=True
        )

    async def close_stream(self, name: str) -> None:
        """Close a stream: appends to it raise StreamClosedError until it is opened again."""
        self.outbox.flush()
        await self.client.call("close_stream", as_text(name, "a stream name"), is_write=True)

    async def streams(self) -> dict[str, StreamInfo]:
        """Return every stream that was opened or appended to, by name, in the order of opening."""
        return {
            name: StreamInfo(is_open=is_open, metadata=metadata, opened_at=opened_at)
            for name, is_open, metadata, opened_at in await self.client.call("streams")
        }

    # -- reading -----------------------------------------------------------------------------

    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
        follow: bool = True,
        visibility: Literal["durable", "accepted"] = "durable",
    ) -> Reader:
        """Return a reader of durable records; as :meth:`walstore.Wal.reader`.

        ``"latest"`` is the end of the log as last heard: no record appended later is missed. One stream is
        picked out at the client, so the others' records travel, too.
        """
        if visibility not in ("durable", "accepted"):
            raise ValueError(f"visibility must be 'durable' or 'accepted', not {visibility!r}")
        self.client.check_home()
        return Reader(
            RemoteSource(self.client, self.mirror, visibility),
            start=start,
            stop=stop,
            stream=stream,
            follow=follow,
            read_bytes=_READ_BYTES,
            guard=self._guard,
        )

    async def offset_at(self, timestamp_us: int | datetime) -> int:
        """Return the first offset at or after a time, or the visible limit if all records are older."""
        found: int = await self.client.call("offset_at", as_moment_us(timestamp_us))
        return found

    async def timestamp_at(self, offset: int) -> int:
        """Return the timestamp of a visible record, in microseconds since 1970 UTC."""
        found: int = await self.client.call("timestamp_at", as_int(offset, "offset"))
        return found

    # -- groups ------------------------------------------------------------------------------

    async def groups(self) -> list[GroupInfo]:
        """Return all groups of the log by name; as :meth:`walstore.Wal.groups`."""
        return [
            GroupInfo(name, floor, behind, None if now is None else GroupStatistics(**now))
            for name, floor, behind, now in await self.client.call("groups")
        ]

    async def delete_group(self, name: str) -> bool:
        """Remove a group and all that it remembers; as :meth:`walstore.Wal.delete_group`."""
        found: bool = await self.client.call("delete_group", check_group_name(name), is_write=True)
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
    def head(self) -> int:
        """First retained offset, in any tier, as last heard."""
        return self.mirror.head

    @property
    def tail(self) -> int:
        """Next offset to be assigned, as last heard."""
        return self.mirror.tail

    @property
    def durable_limit(self) -> int:
        """Every offset below it is on disk; as last heard."""
        return self.mirror.durable_limit

    @property
    def visible_limit(self) -> int:
        """Where readers stop, as last heard."""
        return self.mirror.visible_limit

    @property
    def limit(self) -> int:
        """Offset after the last record that can be read: same as :attr:`visible_limit`."""
        return self.visible_limit

    @property
    def durability(self) -> Durability:
        """Level of an append that names none, as last heard."""
        return self.mirror.durability

    @property
    def replicated_limit(self) -> int | None:
        """Every offset below it is on enough machines, as last heard; None if the log is not replicated."""
        return self.mirror.replicated_limit

    @property
    def uploaded_limit(self) -> int:
        """Every offset below it is named by the cloud tier's manifest; as last heard."""
        return self.mirror.uploaded_limit

    @property
    def tier_head(self) -> int | None:
        """First offset that can be read from the cloud tier below the local head, as last heard."""
        return self.mirror.tier_head

    @property
    def registers(self) -> Mapping[str, str]:
        """The durable state of the registers, as last heard; a snapshot that does not change."""
        return self.mirror.registers

    async def refresh(self) -> None:
        """Ask the server for the present offsets, limits and registers."""
        limits, registers = await self.client.call("refresh")
        self.mirror.hear(limits)
        self.mirror.registers = registers

    async def statistics(self) -> Statistics:
        """Return a snapshot of the counters of the served log."""
        return unpack_statistics(await self.client.call("statistics"))

    async def extents(self) -> LogExtents:
        """Return which file or object holds which records; as :meth:`walstore.Wal.extents`.

        What is stored can be read without the server: the names of objects are keys below ``tier_url``.
        """
        match await self.client.call("extents"):
            case [list(segments), list(stored), list(retention), str() | None as tier_url]:
                return LogExtents(
                    [Extent(*one) for one in segments],
                    [Extent(*one) for one in stored],
                    [str(one) for one in retention],
                    tier_url,
                )
        raise StorageUnavailableError("the server's answer is none")

    # -- closing -----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End the connection once the appends on their way are answered. Twice is allowed.

        The log stays open at the server. If cancelled, appends on their way end with an unknown outcome.
        Waiting takes no longer than to notice that the connection is lost, and to connect again.
        """
        self._guard.thread = 0
        self.outbox.flush()
        await self.client.aclose()
        await self._cursors.queue.settle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _cursor_store(self) -> tuple[CursorBackend, Clock]:
        return self._cursors, self._clock

    def _left_open(self) -> Unclosed | None:
        client = getattr(self, "client", None)
        if client is None or client.is_closing:
            return None
        return Unclosed(f"the connection to {client.address}")

    def __repr__(self) -> str:
        return f"<RemoteWal {self.client.address} [{self.head}, {self.tail})>"

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self.client.check_owner()

    async def _find_group(self, name: str, settings: GroupSettings) -> RemoteGroup:
        self.client.check_home()
        group = RemoteGroup(self.client, name, settings)
        self._groups.add(group)
        return group

    def _welcomed(self, welcome: dict[str, Any]) -> None:
        """Take over what a server says of the log; the next one may have other settings, or another disk."""
        about = _about(welcome)
        self.path = Path(os.fsdecode(about["path"]))
        self.max_record_bytes = int(about["max_record_bytes"])
        self.most_group_bytes = min(
            int(about["channel_bytes"]), int(welcome["message_bytes"]) - _HEAD_BYTES
        )
        self.producer_window = int(about["producer_window"])
        self.mirror.durability = Durability(about["durability"])
        self.mirror.begin(about["limits"], epoch_of(welcome))
        self.mirror.registers = about["registers"]
        for group in self._groups:
            group.stay()


def _about(welcome: Mapping[str, Any]) -> dict[str, Any]:
    about = welcome.get("log")
    if not isinstance(about, dict):
        raise StorageUnavailableError("the server's greeting says nothing of a log")
    return about
