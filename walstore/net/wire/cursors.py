"""Cursors and places in a log over a connection. Pure."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

from walstore.net.wire.message import ProtocolViolationError
from walstore.positions.cursor_state import CursorState
from walstore.records import from_timestamp_us, to_timestamp_us


def pack_cursor(state: CursorState) -> list[Any]:
    """Return the content of a cursor for a client."""
    return list(dataclasses.astuple(state))


def unpack_cursor(packed: object) -> CursorState:
    """Return the content of a cursor that a client has seen; ProtocolViolationError if it is none."""
    match packed:
        case [
            int(at),
            int(revision),
            bytes(tag),
            int(updated),
            int(lease),
            int(deadline),
            str(owner),
        ]:
            return CursorState(at, revision, tag, updated, lease, deadline, owner)
    raise ProtocolViolationError("a cursor that is none")


def unpack_start(start: Any) -> str | int | datetime:
    """Return a place in the log: a word, an offset, or ``["at", microseconds]``."""
    match start:
        case ["at", int(timestamp_us)]:
            return from_timestamp_us(timestamp_us)
        case _:
            return start  # type: ignore[no-any-return]


def pack_start(start: object) -> object:
    """Return a place in the log as :func:`unpack_start` takes it; ValueError for a naive datetime."""
    if not isinstance(start, datetime):
        return start
    return ["at", to_timestamp_us(start)]
