"""What a connection may ask for: all of a log, only its records, or the copies of a node for a primary."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from walstore.cluster.replication.copy_log import CopyLog
from walstore.cluster.replication.copy_trouble import LoggedOnce
from walstore.cluster.replication.node import ReplicaNode
from walstore.cluster.stored_logs import StoredLog
from walstore.core.read.reader import Reader
from walstore.errors import AccessDeniedError, InvalidSettingsError
from walstore.log.wal import Wal
from walstore.net.wire.arguments import check_arguments
from walstore.net.wire.message import Message
from walstore.net.wire.registers import next_registers
from walstore.serve.answer import PreparedAnswer
from walstore.serve.appending import Appender
from walstore.serve.calls import (
    CALLS,
    LISTINGS,
    READ_CALLS,
    STORED_CALLS,
    describe,
    describe_readable,
    limits,
)
from walstore.serve.members import ServedMembers
from walstore.serve.settings import ServeSettings
from walstore.serve.transaction_room import TransactionRoom
from walstore.serve.transactions import ServedTransactions

_LogT = TypeVar("_LogT", bound=Wal | CopyLog | StoredLog)
_ONLY_LISTS: Final = "this client only asked for the list of logs; use walstore.connect()"
_ONLY_READS: Final = "this client only reads; use walstore.connect() for anything else"


class Asked(NamedTuple):
    """A request that can begin."""

    begin: Callable[[], Awaitable[Any]]
    """Returns the answer. What has an order was begun already."""
    label: str
    """For the figures: one of a few, whatever a client sends."""
    is_kept: bool = False
    """Whether it goes on without its client."""


class Service(Protocol):
    """What one client is served."""

    @property
    def is_over(self) -> bool:
        """Whether the client has to look elsewhere: the log is replicated, and closed here."""

    @property
    def log(self) -> object:
        """The log whose records are read; None if none are."""

    def append(self, message: Message) -> Asked:
        """Begin an append; raises what is wrong with it."""

    def call(self, message: Message, name: str, arguments: list[Any]) -> Asked:
        """Begin a call; ValueError if there is none of that name, AccessDeniedError."""

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """Return a reader at a position; None if that is not known here within the time."""

    def limits(self, shown: str) -> list[Any]:
        """Return the limits of the log, and how far this kind of reader sees."""

    async def aclose(self, *, is_told: bool = False) -> None:
        """Take back what its client left undone. ``is_told``: it goes on at another server, or later here."""


class LogService:
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
        # Of a snapshot, those that the client was not told yet.
        self._registers = iter(wal.registers.items())

    async def describe(self) -> dict[str, Any]:
        """Return what its client needs to know when it connects, and as many registers as a short answer has.

        The client asks for the others: a greeting never waits for room.
        """
        registers, has_more = next_registers(self._registers)
        return {**await describe(self._wal), "registers": registers, "has_more": has_more}

    async def _more_registers(self) -> list[Any]:
        return list(next_registers(self._registers))

    @property
    def log(self) -> object:
        """As of :class:`Service`."""
        return self._wal

    @property
    def is_over(self) -> bool:
        """As of :class:`Service`."""
        return self._wal.replicated_limit is not None and self._wal.is_closing

    def append(self, message: Message) -> Asked:
        """As of :class:`Service`."""
        begun = self._appender.append(message)
        return Asked(lambda: begun, "append", is_kept=True)

    def call(self, message: Message, name: str, arguments: list[Any]) -> Asked:
        """As of :class:`Service`."""
        if name in self._appender.calls:
            append = self._appender.calls[name]
            check_arguments(name, append, arguments, after=1)
            begun = append(message, *arguments)
            return Asked(lambda: begun, name, is_kept=True)
        if name in self._transactions.calls:
            change = self._transactions.calls[name]
            check_arguments(name, change, arguments, after=1)
            return Asked(partial(change, message.payload, *arguments), name, is_kept=True)
        if name in self._members.calls:
            check_arguments(name, self._members.calls[name], arguments, after=1)
            return Asked(partial(self._members.calls[name], message.payload, *arguments), name)
        if name == "registers":
            check_arguments(name, self._more_registers, arguments, after=0)
            return Asked(self._more_registers, name)
        if name in CALLS:
            check_arguments(name, CALLS[name], arguments, after=1)
            begin = partial(CALLS[name], self._wal, *arguments)
            return Asked(partial(_in_turn, begin) if name in LISTINGS else begin, name)
        raise ValueError(f"the server has no call {name[:100]!r}")

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """As of :class:`Service`."""
        return self._wal.follow(
            position, stop=stop, visibility="accepted" if shown == "accepted" else "durable"
        )

    def limits(self, shown: str) -> list[Any]:
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


class ReadService(Generic[_LogT]):
    """The records of a log."""

    _calls = READ_CALLS

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

    def append(self, message: Message) -> Asked:
        """As of :class:`Service`."""
        raise AccessDeniedError(_ONLY_READS)

    def call(self, message: Message, name: str, arguments: list[Any]) -> Asked:
        """As of :class:`Service`."""
        if name not in self._calls:
            raise AccessDeniedError(_ONLY_READS)
        check_arguments(name, self._calls[name], arguments, after=1)
        return Asked(partial(self._calls[name], self._log, *arguments), name)

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """As of :class:`Service`."""
        return self._log.follow(position, stop=stop)

    def limits(self, shown: str) -> list[Any]:
        """As of :class:`Service`."""
        return [limits(self._log), self._log.visible_limit]

    async def aclose(self, *, is_told: bool = False) -> None:
        """As of :class:`Service`."""


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

    _calls = STORED_CALLS

    @property
    def is_over(self) -> bool:
        """As of :class:`Service`."""
        return self._log.is_closing

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """As of :class:`Service`."""
        log = self._log
        return log.follow(position, stop=stop) if await log.wait_more(position, wait) else None

    async def aclose(self, *, is_told: bool = False) -> None:
        """As of :class:`Service`."""
        await self._log.release()


class EmptyService:
    """Nothing: the greeting contains the answer."""

    is_over = False
    log = None

    def append(self, message: Message) -> Asked:
        """As of :class:`Service`."""
        raise AccessDeniedError(_ONLY_LISTS)

    def call(self, message: Message, name: str, arguments: list[Any]) -> Asked:
        """As of :class:`Service`."""
        raise AccessDeniedError(_ONLY_LISTS)

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """As of :class:`Service`."""
        raise AccessDeniedError(_ONLY_LISTS)

    def limits(self, shown: str) -> list[Any]:
        """As of :class:`Service`."""
        return []

    async def aclose(self, *, is_told: bool = False) -> None:
        """As of :class:`Service`."""


class NodeService:
    """The copies of a node, for the primaries of their logs."""

    is_over = False
    log = None

    def __init__(self, node: ReplicaNode, peer: str) -> None:
        """``peer`` names the other side in the log."""
        self._node = node
        self._peer = peer
        self._trouble = LoggedOnce()

    def append(self, message: Message) -> Asked:
        """As of :class:`Service`."""
        raise ValueError("copies are neither appended to nor read by their primary")

    def call(self, message: Message, name: str, arguments: list[Any]) -> Asked:
        """As of :class:`Service`. What a primary asked for is done also if its connection is lost."""
        try:
            begin = self._node.call(message.payload, name, *arguments)
        except InvalidSettingsError as error:
            self._trouble.warn(f"{self._peer} sent {error}")
            raise
        return Asked(begin, "replica", is_kept=True)

    async def reader(
        self, position: int, stop: int | None, shown: str, wait: float
    ) -> Reader | None:
        """As of :class:`Service`."""
        raise ValueError("copies are neither appended to nor read by their primary")

    def limits(self, shown: str) -> list[Any]:
        """As of :class:`Service`."""
        return []

    async def aclose(self, *, is_told: bool = False) -> None:
        """As of :class:`Service`."""
