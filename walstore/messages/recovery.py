"""Recovery: finishes the transactions of a dead publisher in the logs it wrote to."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from walstore.errors import LogNotFoundError
from walstore.log.wal import Wal
from walstore.messages.coordinator_state import CoordinatorState
from walstore.messages.message_clock import MessageClock
from walstore.messages.publisher import append_stamp
from walstore.messages.stamp import Flag, Stamp
from walstore.ports import Clock

logger = logging.getLogger("walstore.messages")


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


async def recover(
    found: CoordinatorState, outputs: Iterable[Wal], *, clock: Clock, forget_missing: bool = False
) -> None:
    """Finish the last committed transaction in all logs, and roll back those begun after it.

    Only after the state was taken over, so that no other program can commit.
    """
    logs = list(outputs)
    await send_intents(logs, found.intents, forget_missing=forget_missing)
    for log in logs:
        intent = found.intents.get(log.log_id)
        settled = Stamp.decode(intent).producer if intent is not None else None
        dead = [producer for producer in found.producers if producer != settled]
        await abort_producers([log], dead, clock=clock)
