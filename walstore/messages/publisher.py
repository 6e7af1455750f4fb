"""Publisher: stamps messages and appends them in clock order to each log.

:func:`send_intents` and :func:`abort_producers` finish the transactions of a dead one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.settings import parse_durability
from walstore.errors import ExpectationError, LogNotFoundError, WalError
from walstore.log.wal import Wal
from walstore.messages.stamp import HEADER, Flag, MessageClock, Stamp, new_producer_id, stamped
from walstore.records import AnyDurability, Durability

logger = logging.getLogger("walstore.messages")

AckIntents = dict[str, bytes]
"""Acknowledgements to send: the stamp for each log, by its ``log_id``."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One log and the state of this publisher in it."""

    log: Wal
    is_transactional: bool
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from the stamp to its acceptance, so that clock order is offset order."""
    in_flight: int = 0
    last_offset: int = 0
    """Clock of the last accepted message; 0 if none."""
    is_pending: bool = False
    """Whether it contains messages of the current transaction."""


class Publisher:
    """Publishes messages to any number of logs under one producer id.

    There are two ways, and each log uses one of them: :meth:`publish_committed` for independent
    messages, and :meth:`publish_uncommitted` for those of a transaction, which readers of committed
    messages see after :meth:`ack`. The order of a transaction is: publish, :meth:`wait_durable`,
    :meth:`build_ack_intents`, store the intents, :meth:`ack`. After a crash between the last two,
    :func:`walstore.messages.send_intents` finishes the transaction; :class:`Coordinator` does all of
    that.

    Belongs to one event loop. There is nothing to release.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        make_id: Callable[[], bytes] = new_producer_id,
    ) -> None:
        """Take a new producer id from ``make_id``; it must never have been used before."""
        self.producer = make_id()
        """The producer id, 6 bytes."""
        self._clock = MessageClock(clock or SystemClock())
        self._lanes: dict[str, _Lane] = {}
        self._intents: AckIntents = {}  # built and not yet sent

    # -- publishing --------------------------------------------------------------------------

    async def publish_committed(
        self,
        log: Wal,
        value: bytes,
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append a message that is committed as soon as it is durable; return its offset.

        Options, errors and cancellation as for :meth:`walstore.Wal.append`. Any number of tasks may
        publish at the same time. ExpectationError if this publisher uses transactions in the log.
        """
        level = log.settings.durability if durability is None else parse_durability(durability)
        lane = self._lane(log, is_transactional=False)
        options = key, stream, headers, timestamp_us
        offset = await self._append(lane, Flag.OUTSIDE, value, *options)
        await log.wait_durable(offset, level)
        return offset

    async def publish_uncommitted(
        self,
        log: Wal,
        value: bytes,
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
    ) -> int:
        """Append a message of the current transaction; return its offset when it is accepted.

        Committed readers see it after :meth:`ack`, which must follow :meth:`wait_durable`. Errors and
        cancellation as for :meth:`walstore.Wal.append`; after either, the message may be in the log,
        and the transaction should be rolled back with :meth:`abort`. ExpectationError between
        :meth:`build_ack_intents` and :meth:`ack`, and if this publisher uses :meth:`publish_committed`
        in the log: mixing would roll the transaction back.
        """
        self._check_open()
        lane = self._lane(log, is_transactional=True)
        lane.is_pending = True
        lane.in_flight += 1
        try:
            return await self._append(
                lane, Flag.CONTINUE, value, key, stream, headers, timestamp_us
            )
        finally:
            lane.in_flight -= 1

    # -- transactions ------------------------------------------------------------------------

    async def wait_durable(self, durability: AnyDurability = Durability.DISK) -> None:
        """Return when all messages of the current transaction are as safe as ``durability`` says."""
        for lane in self._pending():
            if lane.last_offset:
                await lane.log.wait_durable(lane.last_offset, durability)

    def build_ack_intents(self) -> AckIntents:
        """Return the acknowledgements of the current transaction: one for each of its logs.

        Store them before :meth:`ack`, in one step with the input position of the transaction: once that
        has succeeded the transaction is committed, whatever happens to this program. Until :meth:`ack`
        nothing more can be published uncommitted. ExpectationError while a message is being published,
        and if there are unsent intents.
        """
        self._check_open()
        if any(lane.in_flight for lane in self._lanes.values()):
            raise ExpectationError(
                "a message of the transaction is still being published; await it first",
                expected=0,
                actual=sum(lane.in_flight for lane in self._lanes.values()),
            )
        self._intents = {
            lane.log.log_id: self._stamp(Flag.ACK).encode() for lane in self._pending()
        }
        return dict(self._intents)

    async def ack(self) -> dict[str, int]:
        """Send the acknowledgements; return their offsets by ``log_id`` when all are accepted.

        Readers see the transaction in a log when its acknowledgement is durable there. Wait for that
        before replacing the stored intents. If a log fails, call this again to send the rest; an
        acknowledgement sent twice has no further effect. ExpectationError for a transaction whose
        intents were not built.
        """
        pending = len(self._pending())
        if pending and not self._intents:
            text = "build_ack_intents() first, and store them"
            raise ExpectationError(text, expected=pending, actual=0)
        offsets: dict[str, int] = {}
        for log_id, data in list(self._intents.items()):
            lane = self._lanes[log_id]
            offsets[log_id] = lane.last_offset = await append_stamp(lane.log, data)
            lane.is_pending = False
            del self._intents[log_id]
        return offsets

    async def abort(self) -> None:
        """Roll the current transaction back in all of its logs; drop unsent intents.

        Not allowed once the intents may have been stored: then the transaction is committed. If logs
        fail, the others are done first and the first error is raised; pending messages in the failed
        logs stay invisible.
        """
        self._intents.clear()
        first: WalError | None = None
        for lane in self._pending():
            try:
                async with lane.turn:
                    stamp = self._stamp(Flag.ABORT)
                    lane.last_offset = await append_stamp(lane.log, stamp.encode())
            except WalError as error:
                first = first or error
            else:
                lane.is_pending = False
        if first is not None:
            raise first

    # -- inside ------------------------------------------------------------------------------

    async def _append(
        self,
        lane: _Lane,
        flag: Flag,
        value: bytes,
        key: bytes | None,
        stream: str | None,
        headers: Mapping[str, bytes] | None,
        timestamp_us: int | datetime | None,
    ) -> int:
        async with lane.turn:
            stamped_headers = stamped(headers, self._stamp(flag))
            offset = await lane.log.append(
                value, key, stream, stamped_headers, timestamp_us, Durability.MEMORY
            )
            lane.last_offset = offset
            return offset

    def _stamp(self, flag: Flag) -> Stamp:
        return Stamp(self.producer, self._clock.tick(), flag)

    def _lane(self, log: Wal, *, is_transactional: bool) -> _Lane:
        lane = self._lanes.get(log.log_id)
        if lane is None:
            lane = self._lanes[log.log_id] = _Lane(log, is_transactional)
        if lane.is_transactional != is_transactional:
            names = {True: "uncommitted", False: "committed"}
            raise ExpectationError(
                f"this publisher publishes {names[lane.is_transactional]} messages to the log; "
                "use another Publisher for the other kind",
                expected=names[lane.is_transactional],
                actual=names[is_transactional],
            )
        return lane

    def _pending(self) -> list[_Lane]:
        return [lane for lane in self._lanes.values() if lane.is_pending]

    def _check_open(self) -> None:
        if self._intents:
            raise ExpectationError(
                "the transaction has intents that were not sent; ack() or abort() it first",
                expected=0,
                actual=len(self._intents),
            )


async def append_stamp(log: Wal, stamp: bytes) -> int:
    """Append a record that contains only an encoded stamp; return its offset when accepted."""
    return await log.append(b"", None, None, {HEADER: stamp}, None, Durability.MEMORY)


async def send_intents(
    logs: Iterable[Wal], intents: Mapping[str, bytes], *, forget_missing: bool = False
) -> None:
    """Append stored acknowledgements again, unchanged, and return when they are on disk.

    Correct and idempotent once the publisher that made them is dead: if a log never got its
    acknowledgement, this commits the transaction there; if it did, this rolls back only what the
    publisher left unfinished after it.

    LogNotFoundError if an intent is for a log not among ``logs``, before anything is sent; with
    ``forget_missing`` it is logged instead, for logs that were deleted on purpose.
    """
    by_id = {log.log_id: log for log in logs}
    missing = sorted(intents.keys() - by_id.keys())
    if missing and not forget_missing:
        raise LogNotFoundError(
            f"there are acknowledgements for the log {missing[0]}, which was not given; open it "
            "too, or say forget_missing=True if it is gone",
            location=missing[0],
        )
    for log_id in missing:
        logger.warning("an acknowledgement for the log %s is dropped: there is no such log", log_id)
    sent = [
        (by_id[log_id], await append_stamp(by_id[log_id], stamp))
        for log_id, stamp in intents.items()
        if log_id in by_id
    ]
    for log, offset in sent:
        await log.wait_durable(offset)


async def abort_producers(logs: Iterable[Wal], producers: Iterable[bytes], *, clock: Clock) -> None:
    """Roll back the pending messages of dead producers in the logs, and return when that is on disk.

    Appends one record to each log for each producer, even if it has nothing pending there. Only for
    producers that are dead and whose stored intents were sent to the log, or never were for it: a
    transaction that was committed by storing its intents must not be aborted.
    """
    ticks = MessageClock(clock)
    dead = list(producers)
    sent = [
        (log, await append_stamp(log, Stamp(producer, ticks.tick(), Flag.ABORT).encode()))
        for log in logs
        for producer in dead
    ]
    for log, offset in sent:
        await log.wait_durable(offset)
