"""What a connection may ask for: all of a log, only its records, or the copies of a node for a primary."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from walstore.cluster.replication.copy_log import CopyLog
from walstore.cluster.replication.copy_trouble import LoggedOnce
from walstore.cluster.replication.node import ReplicaNode
from walstore.cluster.stored_logs import StoredLog
from walstore.core.format.ledger import StreamInfo
from walstore.core.read.reader import Reader
from walstore.errors import AccessDeniedError, InvalidSettingsError
from walstore.log.wal import Wal
from walstore.net.wire.access_scope import ADMIN, ANY, Needs
from walstore.net.wire.message import Message
from walstore.net.wire.registers import next_registers
from walstore.net.wire.verbs import APPEND, VERBS, VerbPlace, find_verb
from walstore.serve.answer import PreparedAnswer
from walstore.serve.appending import Appender
from walstore.serve.calls import carry_out, describe, describe_readable, limits
from walstore.serve.members import ServedMembers
from walstore.serve.serve_settings import ServeSettings
from walstore.serve.served_cursors import ServedCursors
from walstore.serve.transaction_room import TransactionRoom
from walstore.serve.transactions import ServedTransactions

_LogT = TypeVar("_LogT", bound=Wal | CopyLog | StoredLog)
_APPENDS, _TRANSACTIONS = VerbPlace.APPENDS, VerbPlace.TRANSACTIONS
_WITH_PAYLOAD = frozenset((_TRANSACTIONS, VerbPlace.MEMBERS))
"""Of each call: to look up a member takes as long as two calls."""


class Asked(NamedTuple):
    """A request that can begin."""

    begin: Callable[[], Awaitable[Any]]
    """Returns the answer. What has an order was begun already."""
    label: str
    """For the figures: one of a few, whatever a client sends."""
    is_kept: bool = False
    """Whether it goes on without its client."""


class Service:
    """What one client is served. By itself it is nothing."""

    def _refusal(self) -> Exception:
        """Return the error of what is asked in vain."""
        return AccessDeniedError(
            "this client only asked for the list of logs; use walstore.connect()"
        )

    @property
    def is_over(self) -> bool:
        """Whether the client has to look elsewhere: the log is replicated, and closed here."""
        return False

    @property
    def log(self) -> object:
        """The log whose records are read; None if none are."""
        return None

    @property
    def appended(self) -> int:
        """How many records the client has appended."""
        return 0

    def append(self, message: Message) -> Asked:
        """Begin an append; raises what is wrong with it."""
        raise self._refusal()

    def needs(self, name: str, arguments: list[Any]) -> Needs:
        """Return the scopes that a call needs; what is no call is refused anyway."""
        verb = find_verb(name, arguments)
        return ANY if verb is None else verb.needs

    def call(self, message: Message, name: str, arguments: list[Any]) -> Asked:
        """Begin a call; ValueError if there is none of that name, AccessDeniedError."""
        raise self._refusal()

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """Return a reader at a position; None if that is not known here within the time."""
        raise self._refusal()

    def read_limits(self, shown: str) -> list[Any]:
        """Return the limits of the log, and how far this kind of reader sees."""
        return []

    async def aclose(self, *, is_told: bool = False) -> None:
        """Take back what its client left undone. ``is_told``: it goes on at another server, or later here."""


class LogService(Service):
    """All that a program with the log open may do, except closing it."""

    def __init__(
        self,
        wal: Wal,
        settings: ServeSettings,
        room: TransactionRoom,
        on_accepted: Callable[[int], None],
        again: int = 0,
    ) -> None:
        """Serve a log. What open transactions hold takes ``room``.

        ``on_accepted`` is told the number of an append whose records the log holds.
        """
        self._wal = wal
        self._appender = Appender(wal, on_accepted, again)
        self._transactions = ServedTransactions(wal, settings.transactions, room)
        self._members = ServedMembers(wal, settings.read_bytes)
        self._places: Mapping[VerbPlace, object] = {
            VerbPlace.LOG: wal,
            VerbPlace.SERVICE: self,
            VerbPlace.CURSORS: ServedCursors(wal),
            VerbPlace.APPENDS: self._appender,
            VerbPlace.TRANSACTIONS: self._transactions,
            VerbPlace.MEMBERS: self._members,
        }
        # Of a snapshot, those that the client was not told yet.
        self._registers = iter(wal.registers.items())

    async def describe(self) -> dict[str, Any]:
        """Return what its client needs to know when it connects, and as many registers as a short answer has.

        The client asks for the others: a greeting never waits for room.
        """
        registers, has_more = next_registers(self._registers)
        return {**await describe(self._wal), "registers": registers, "has_more": has_more}

    async def limits(self) -> list[int | None]:
        """Return the limits of the log."""
        return limits(self._wal)

    async def refresh(self) -> list[Any]:
        """Return the limits and the registers that the log has for certain."""
        await self._wal.refresh()
        return [limits(self._wal), dict(self._wal.registers)]

    async def registers(self) -> list[Any]:
        """Return as many of the registers that the client was not told yet as a short answer has."""
        return list(next_registers(self._registers))

    async def streams(self) -> Mapping[str, StreamInfo]:
        """Return the streams that the log has for certain."""
        await self._wal.refresh()
        return self._wal.streams()

    async def last_sequence(self, producer_id: str) -> int:
        """Return the number of a producer's newest append."""
        return await self._wal.producer(producer_id).last_sequence()

    @property
    def log(self) -> object:
        """As of :class:`Service`."""
        return self._wal

    @property
    def is_over(self) -> bool:
        """As of :class:`Service`."""
        return self._wal.replicated_limit is not None and self._wal.is_closing

    @property
    def appended(self) -> int:
        """As of :class:`Service`. Those of a transaction count once it is committed."""
        return self._appender.appended + self._transactions.appended

    def append(self, message: Message) -> Asked:
        """As of :class:`Service`."""
        begun = self._appender.append(message)
        return Asked(lambda: begun, APPEND.name, is_kept=True)

    def call(self, message: Message, name: str, arguments: list[Any]) -> Asked:
        """As of :class:`Service`."""
        verb = VERBS.get(name)
        if verb is None:
            raise InvalidSettingsError(
                f"the server has no call {name[:100]!r}: the client may be of a later version"
            )
        method, given = getattr(self._places[verb.place], name), verb.unpack(arguments)
        if verb.place is _APPENDS:
            begun = method(message, *given)
            return Asked(lambda: begun, name, is_kept=True)
        if verb.place in _WITH_PAYLOAD:
            begin = partial(method, message.payload, *given)
            return Asked(begin, name, is_kept=verb.place is _TRANSACTIONS)
        begin = partial(carry_out, verb, method, given, self._wal)
        return Asked(partial(_in_turn, begin) if verb.is_listing else begin, name)

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """As of :class:`Service`."""
        return self._wal.follow(
            position, stop=stop, visibility="accepted" if shown == "accepted" else "durable"
        )

    def read_limits(self, shown: str) -> list[Any]:
        """As of :class:`Service`."""
        wal = self._wal
        return [limits(wal), wal.tail if shown == "accepted" else wal.visible_limit]

    async def aclose(self, *, is_told: bool = False) -> None:
        """As of :class:`Service`."""
        await self._members.lose(is_told=is_told)
        await self._transactions.rollback_all()


async def _in_turn(begin: Callable[[], Awaitable[Any]]) -> PreparedAnswer:
    """Let a listing begin once there is room for it."""
    return PreparedAnswer(lambda _: begin(), 1)


class ReadService(Service, Generic[_LogT]):
    """The records of a log."""

    def __init__(self, log: _LogT) -> None:
        self._log = log

    @property
    def log(self) -> object:
        """As of :class:`Service`."""
        return self._log

    @property
    def is_over(self) -> bool:
        """As of :class:`Service`."""
        return self._log.replicated_limit is not None and self._log.is_closing

    def describe(self) -> dict[str, Any]:
        """Return what the client needs to know of the log."""
        return describe_readable(self._log)

    async def limits(self) -> list[int | None]:
        """Return the limits of the log."""
        return limits(self._log)

    async def refresh(self) -> list[Any]:
        """Return the limits of the log, and no registers."""
        return [limits(self._log), {}]

    async def streams(self) -> Mapping[str, StreamInfo]:
        """Return the streams that the log has for certain."""
        await self._log.refresh()
        return await self._log.streams()

    def _refusal(self) -> Exception:
        return AccessDeniedError("this client only reads; use walstore.connect() for anything else")

    def call(self, message: Message, name: str, arguments: list[Any]) -> Asked:
        """As of :class:`Service`."""
        verb = VERBS.get(name)
        if verb is None or not verb.is_reading:
            raise self._refusal()
        method = getattr(self._log if verb.place is VerbPlace.LOG else self, name)
        return Asked(partial(carry_out, verb, method, verb.unpack(arguments), self._log), name)

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """As of :class:`Service`."""
        return self._log.follow(position, stop=stop)

    def read_limits(self, shown: str) -> list[Any]:
        """As of :class:`Service`."""
        return [limits(self._log), self._log.visible_limit]


class CopyService(ReadService[CopyLog]):
    """The records of a copy. Its client may have been at another one that knew of more."""

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """As of :class:`Service`."""
        log = self._log
        if position > log.visible_limit:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await log.wait_limit(position + 1)
            if position > log.visible_limit:
                return None
        return log.follow(position, stop=stop)


class StoredService(ReadService[StoredLog]):
    """The records of a log in a store."""

    @property
    def is_over(self) -> bool:
        """As of :class:`Service`."""
        return self._log.is_closing

    async def refresh(self) -> list[Any]:
        """As of :class:`ReadService`. The log is looked at again only when somebody asks."""
        await self._log.refresh()
        return await super().refresh()

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """As of :class:`Service`."""
        log = self._log
        return log.follow(position, stop=stop) if await log.wait_more(position, wait) else None

    async def aclose(self, *, is_told: bool = False) -> None:
        """As of :class:`Service`."""
        await self._log.release()


class NodeService(Service):
    """The copies of a node, for the primaries of their logs."""

    def __init__(self, node: ReplicaNode, peer: str) -> None:
        """``peer`` names the other side in the log."""
        self._node = node
        self._peer = peer
        self._trouble = LoggedOnce()

    def _refusal(self) -> Exception:
        return ValueError("copies are neither appended to nor read by their primary")

    def needs(self, name: str, arguments: list[Any]) -> Needs:
        """As of :class:`Service`."""
        return ADMIN

    def call(self, message: Message, name: str, arguments: list[Any]) -> Asked:
        """As of :class:`Service`. What a primary asked for is done also if its connection is lost."""
        try:
            begin = self._node.call(message.payload, name, *arguments)
        except InvalidSettingsError as error:
            self._trouble.warn(f"{self._peer} sent {error}")
            raise
        return Asked(begin, "replica", is_kept=True)
