"""Calls: the methods of a served log by the names that clients send.

Each takes the log and the arguments, which may be anything that msgpack has: the log checks them as it
checks those of any caller. Positions of cursors are kept by the client, so the server has no handles that a
lost connection would leave behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from walstore.net.wire.cursors import pack_cursor, unpack_cursor, unpack_start
from walstore.net.wire.errors import pack_error
from walstore.net.wire.groups import pack_groups
from walstore.net.wire.message import ProtocolViolationError
from walstore.serve.answer import PackedAnswer

if TYPE_CHECKING:
    from walstore.cluster.replication.copy_log import CopyLog
    from walstore.cluster.stored_logs import StoredLog
    from walstore.log.wal import Wal

Call = Callable[..., Awaitable[Any]]


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


async def _limits(wal: Wal | CopyLog | StoredLog) -> list[int | None]:
    return limits(wal)


async def _refresh(wal: Wal) -> list[Any]:
    await wal.refresh()
    return [limits(wal), dict(wal.registers)]


async def _wait_durable(wal: Wal, offset: int, durability: Any) -> list[Any]:
    await wal.wait_durable(offset, durability)
    return limits(wal)


async def _flush(wal: Wal) -> list[Any]:
    await wal.flush()
    return limits(wal)


async def _trim(wal: Wal, before: int) -> int:
    return await wal.trim(before)


async def _rotate(wal: Wal) -> None:
    await wal.rotate()


async def _open_stream(wal: Wal, name: str, metadata: Any) -> None:
    await wal.open_stream(name, metadata=metadata)


async def _close_stream(wal: Wal, name: str) -> None:
    await wal.close_stream(name)


async def _streams(wal: Wal) -> list[Any]:
    await wal.refresh()
    return [
        [name, info.is_open, dict(info.metadata), info.opened_at]
        for name, info in wal.streams().items()
    ]


async def _offset_at(wal: Wal | CopyLog | StoredLog, timestamp_us: int) -> int:
    return await wal.offset_at(timestamp_us)


async def _timestamp_at(wal: Wal | CopyLog | StoredLog, offset: int) -> int:
    return await wal.timestamp_at(offset)


async def _statistics(wal: Wal) -> dict[str, Any]:
    return dataclasses.asdict(wal.statistics())


async def _begin_scrub(wal: Wal) -> int:
    return wal.begin_scrub()


async def _extents(wal: Wal) -> list[Any]:
    found = wal.extents()
    segments, stored = (list(map(list, some)) for some in (found.segments, found.stored))
    return [segments, stored, list(found.retention), found.tier_url]


async def _fence(wal: Wal, owner: str, register: str) -> str:
    return (await wal.fence(owner, register=register)).token


async def _last_sequence(wal: Wal, producer_id: str) -> int:
    return await wal.producer(producer_id).last_sequence()


# -- cursors ---------------------------------------------------------------------------------


async def _open_cursor(wal: Wal, name: str, start: Any, lease_seconds: float | None) -> list[Any]:
    cursor = await wal.cursor(name, start=unpack_start(start), lease_seconds=lease_seconds)
    wal.watch_cursor(cursor)
    return [pack_cursor(cursor.state), cursor.writer]


async def _move_cursor(
    wal: Wal, name: str, state: Any, writer: bytes, is_unsure: Any, verb: str, offset: int
) -> list[Any]:
    del is_unsure  # what clients of earlier versions say of a change; the cursor itself shows it
    cursor = wal.resume_cursor(name, unpack_cursor(state), writer)
    match verb:
        case "commit":
            await cursor.commit(offset)
        case "rewind":
            await cursor.rewind(offset)
        case "renew":
            await cursor.renew()
        case "refresh":
            await cursor.refresh()
        case "delete":
            await cursor.delete()
        case _:
            raise ProtocolViolationError(f"no move of a cursor: {verb!r}")
    wal.watch_cursor(cursor)
    return pack_cursor(cursor.state)


async def _cursors(wal: Wal) -> list[Any]:
    return [
        [
            info.name,
            info.position,
            info.is_expired,
            None if info.state is None else pack_cursor(info.state),
            None if info.problem is None else pack_error(info.problem),
        ]
        for info in await wal.cursors()
    ]


async def _delete_cursor(wal: Wal, name: str) -> bool:
    return await wal.delete_cursor(name)


# -- groups ----------------------------------------------------------------------------------


async def _groups(wal: Wal) -> PackedAnswer:
    return PackedAnswer(*pack_groups(await wal.groups()))


async def _delete_group(wal: Wal, name: str) -> bool:
    return await wal.delete_group(name)


CALLS: Final[Mapping[str, Call]] = {
    "limits": _limits,
    "refresh": _refresh,
    "wait_durable": _wait_durable,
    "flush": _flush,
    "trim": _trim,
    "rotate": _rotate,
    "open_stream": _open_stream,
    "close_stream": _close_stream,
    "streams": _streams,
    "offset_at": _offset_at,
    "timestamp_at": _timestamp_at,
    "statistics": _statistics,
    "extents": _extents,
    "begin_scrub": _begin_scrub,
    "fence": _fence,
    "last_sequence": _last_sequence,
    "open_cursor": _open_cursor,
    "move_cursor": _move_cursor,
    "cursors": _cursors,
    "delete_cursor": _delete_cursor,
    "groups": _groups,
    "delete_group": _delete_group,
}
"""What a client may call besides appending and reading."""

LISTINGS: Final = frozenset({"refresh", "streams", "statistics", "extents", "cursors", "groups"})
"""Those whose answers have no limit of their own."""


async def _refresh_limits(log: Wal | CopyLog | StoredLog) -> list[Any]:
    return [limits(log), {}]


async def _refresh_stored(log: StoredLog) -> list[Any]:
    await log.refresh()
    return [limits(log), {}]


READ_CALLS: Final[Mapping[str, Call]] = {
    "limits": _limits,
    "refresh": _refresh_limits,
    "offset_at": _offset_at,
    "timestamp_at": _timestamp_at,
}
"""What a client that only reads may call."""

STORED_CALLS: Final[Mapping[str, Call]] = {**READ_CALLS, "refresh": _refresh_stored}
"""The same of a log in a store, which is looked at again only when somebody asks."""
