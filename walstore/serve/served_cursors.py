"""ServedCursors: the cursors of a log, for one client.

What a handle has seen of its cursor is kept by the client, so the server has no handles that a lost
connection would leave behind.
"""

from __future__ import annotations

from typing import Any

from walstore.log.wal import Wal
from walstore.net.wire.message import ProtocolViolationError
from walstore.positions.cursor import Cursor
from walstore.positions.cursor_state import CursorState


class ServedCursors:
    """Makes a handle for each call."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal

    async def open_cursor(self, name: str, start: Any, lease_seconds: float | None) -> Cursor:
        """Return a new handle."""
        cursor = await self._wal.cursor(name, start=start, lease_seconds=lease_seconds)
        self._wal.watch_cursor(cursor)
        return cursor

    async def move_cursor(
        self, name: str, state: CursorState, writer: bytes, is_unsure: Any, verb: str, offset: int
    ) -> Cursor:
        """Return the handle that has seen ``state``, after what it was asked to do."""
        del (
            is_unsure
        )  # what clients of earlier versions say of a change; the cursor itself shows it
        if not isinstance(writer, bytes):
            raise ProtocolViolationError("a writer of a cursor that is none")
        cursor = self._wal.resume_cursor(name, state, writer)
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
        self._wal.watch_cursor(cursor)
        return cursor
