"""Answers: the streams, files and cursors of a log, as values of msgpack. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from walstore.core.format.ledger import StreamInfo
from walstore.core.tier_port import Extent, LogExtents
from walstore.errors import StorageUnavailableError
from walstore.net.wire.cursors import pack_cursor, unpack_cursor
from walstore.net.wire.errors import pack_error, unpack_problem
from walstore.positions.cursor_state import CursorInfo


def pack_streams(streams: Mapping[str, StreamInfo]) -> list[Any]:
    """Return the streams of a log in their order."""
    return [
        [name, info.is_open, dict(info.metadata), info.opened_at] for name, info in streams.items()
    ]


def unpack_streams(packed: Sequence[Any], _: memoryview) -> dict[str, StreamInfo]:
    """Return the streams that were packed."""
    return {
        name: StreamInfo(is_open=is_open, metadata=metadata, opened_at=opened_at)
        for name, is_open, metadata, opened_at in packed
    }


def pack_extents(extents: LogExtents) -> list[Any]:
    """Return which file or object holds which records."""
    segments, stored = (list(map(list, some)) for some in (extents.segments, extents.stored))
    return [segments, stored, list(extents.retention), extents.tier_url]


def unpack_extents(packed: object, _: memoryview) -> LogExtents:
    """Return what was packed; StorageUnavailableError if it is none."""
    match packed:
        case [list(segments), list(stored), list(retention), str() | None as tier_url]:
            return LogExtents(
                [Extent(*one) for one in segments],
                [Extent(*one) for one in stored],
                [str(one) for one in retention],
                tier_url,
            )
    raise StorageUnavailableError("the server's answer is none")


def pack_cursors(cursors: Sequence[CursorInfo]) -> list[Any]:
    """Return cursors, damaged ones included."""
    return [
        [
            info.name,
            info.position,
            info.is_expired,
            None if info.state is None else pack_cursor(info.state),
            None if info.problem is None else pack_error(info.problem),
        ]
        for info in cursors
    ]


def unpack_cursors(packed: Sequence[Any], _: memoryview) -> list[CursorInfo]:
    """Return the cursors that were packed."""
    return [
        CursorInfo(
            name,
            position,
            is_expired,
            None if state is None else unpack_cursor(state),
            None if problem is None else unpack_problem(problem),
        )
        for name, position, is_expired, state, problem in packed
    ]
