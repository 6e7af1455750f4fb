"""Calls: what a server says of a log, and how a verb becomes a call of a method.

The arguments may be anything that msgpack has: the log checks them as it checks those of any caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from walstore.net.wire.verbs import Verb, VerbPlace

if TYPE_CHECKING:
    from walstore.cluster.replication.copy_log import CopyLog
    from walstore.cluster.stored_logs import StoredLog
    from walstore.log.wal import Wal


def limits(wal: Wal | CopyLog | StoredLog) -> list[int | None]:
    """Return what each answer of a read says of the log: the client's view of its limits."""
    return [
        wal.head,
        wal.tail,
        wal.durable_limit,
        wal.visible_limit,
        wal.uploaded_limit,
        wal.tier_head,
        wal.replicated_limit,
    ]


def describe_readable(log: Wal | CopyLog | StoredLog) -> dict[str, Any]:
    """Return what a client needs to know of a log that it reads only."""
    return {
        "log_id": log.log_id,
        "epoch": log.epoch,
        "path": str(log.path).encode(errors="surrogateescape"),
        "limits": limits(log),
    }


async def describe(wal: Wal) -> dict[str, Any]:
    """Return what a client needs to know of the log when it connects."""
    settings = wal.settings
    return {
        **describe_readable(wal),
        "durability": wal.durability.value,
        "max_record_bytes": settings.max_record_bytes,
        "channel_bytes": settings.channel_bytes,
        "producer_window": settings.producer_window,
    }


async def carry_out(
    verb: Verb,
    method: Callable[..., Any],
    given: Sequence[Any],
    log: Wal | CopyLog | StoredLog,
) -> Any:
    """Let a method do what a client asks, and return the answer."""
    if verb.place is VerbPlace.LOG:
        found = method(**dict(zip(verb.parameters, given, strict=True)))
    else:
        found = method(*given)
    if isawaitable(found):
        found = await found
    return limits(log) if verb.tells_limits else verb.answer.pack(found)
