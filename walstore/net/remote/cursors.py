"""RemoteCursors: the cursors of a served log.

The client keeps what it last saw of a cursor, and its tag, as any handle does; the server keeps nothing. So
a lost connection changes nothing: the move is sent again, and is refused if somebody else moved the cursor.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial

from walstore.net.remote.client import Client
from walstore.net.wire.verbs import CURSORS, DELETE_CURSOR, MOVE_CURSOR, OPEN_CURSOR
from walstore.positions.change import CursorChange
from walstore.positions.cursor import Cursor, CursorBackend
from walstore.positions.cursor_state import CursorInfo, CursorState, check_name
from walstore.positions.queue import TaskQueue
from walstore.records import Start


class RemoteCursors(CursorBackend):
    """The cursors of a served log. Each change is a call of the server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.check_home = client.check_home
        self.queue = TaskQueue(str(client.address))

    async def open(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        lease_seconds: float | None = None,
    ) -> Cursor:
        """Return a handle on the cursor ``name``; see :meth:`RemoteWal.cursor`."""
        state, writer = await self._client.call(OPEN_CURSOR, check_name(name), start, lease_seconds)
        return Cursor(name, state, writer=writer, backend=self)

    def swap(self, change: CursorChange) -> Callable[[], Awaitable[CursorState]]:
        """As of :class:`CursorBackend`."""
        return partial(self._swap, change)

    async def list(self) -> list[CursorInfo]:
        """Return the cursors by name, damaged ones included."""
        found: list[CursorInfo] = await self._client.call(CURSORS)
        return found

    async def delete(self, name: str) -> bool:
        """Remove a cursor and its pin; return whether there was one."""
        found: bool = await self._client.call(DELETE_CURSOR, check_name(name))
        return found

    async def _swap(self, change: CursorChange) -> CursorState:
        found: CursorState = await self._client.call(
            MOVE_CURSOR,
            change.name,
            change.seen,
            change.writer,
            True,  # servers of earlier versions look less closely without it  # noqa: FBT003
            change.verb,
            change.position,
        )
        return found


def __getattr__(name: str) -> type[Cursor]:
    if name != "RemoteCursor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("RemoteCursor is walstore.Cursor now", DeprecationWarning, stacklevel=2)
    return Cursor
