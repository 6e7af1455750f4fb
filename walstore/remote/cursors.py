"""RemoteCursor and RemoteCursors: the cursors of a served log.

The client keeps what it last saw of a cursor, and its tag, as any handle does; the server keeps nothing. So
a lost connection changes nothing: the move is sent again, and is refused if somebody else moved the cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from walstore.cursors.directory import CursorInfo, CursorState, check_name
from walstore.errors import OutcomeUnknownError, WalError
from walstore.records import Start
from walstore.remote.client import Client, Fate
from walstore.runtime.owned import Owned
from walstore.validation.arguments import as_int
from walstore.wire.cursors import pack_cursor, pack_start, unpack_cursor
from walstore.wire.errors import unpack_error


class RemoteCursor(Owned):
    """A named position in a served log. Made by :meth:`RemoteWal.cursor`; as :class:`walstore.Cursor`."""

    def __init__(self, client: Client, name: str, state: CursorState, writer: bytes) -> None:
        """Not for callers; see :meth:`RemoteWal.cursor`."""
        self.name = name
        """Its name; unique in the log."""
        self._client = client
        self._seen = state
        self._writer = writer
        self._is_unsure = False
        self._targets: list[int] = []
        # One move after the other: each says what the one before it left.
        self._turn = asyncio.Lock()

    @property
    def position(self) -> int:
        """Offset of the next record to read, as this handle last read or committed it."""
        return self._seen.position

    @property
    def target(self) -> int:
        """Where the cursor will be once the commits in progress have succeeded."""
        return self._targets[-1] if self._targets else self.position

    @property
    def lease_seconds(self) -> float | None:
        """How long a commit or :meth:`renew` keeps the pin; None: without end."""
        return self._seen.lease_us / 1_000_000 or None

    async def commit(self, offset: int) -> None:
        """Move to ``offset``; durable when it returns. As :meth:`walstore.Cursor.commit`.

        If cancelled, or after OutcomeUnknownError, the move may still happen, and may be retried.
        """
        offset = as_int(offset, "the position of a cursor")
        if offset < self.target:
            raise ValueError(
                f"commit({offset}) would move cursor {self.name!r} back from {self.target}; "
                "to read records again, use rewind() or Consumer.seek()"
            )
        await self._move("commit", offset)

    async def rewind(self, offset: int) -> None:
        """Move to ``offset``, also backwards. Otherwise as :meth:`commit`."""
        await self._move("rewind", as_int(offset, "the position of a cursor"))

    async def renew(self) -> None:
        """Extend the lease to its full length from now; does nothing without one."""
        if self._seen.lease_us:
            await self._move("renew")

    async def refresh(self) -> int:
        """Read the cursor again, which others may have moved, and return its position."""
        await self._move("refresh")
        return self.position

    async def delete(self) -> None:
        """Remove the cursor and its pin; does nothing if it is deleted already."""
        await self._move("delete")

    def __repr__(self) -> str:
        return f"<RemoteCursor {self.name!r} at {self.position}>"

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self._client.check_owner()

    async def _move(self, verb: str, offset: int | None = None) -> None:
        self._client.check_home()
        if offset is not None:
            self._targets.append(offset)
        try:
            async with self._turn:
                await self._call(verb, offset)
        finally:
            if offset is not None:
                self._targets.remove(offset)

    async def _call(self, verb: str, offset: int | None) -> None:
        try:
            found = await self._client.call(
                "move_cursor",
                self.name,
                pack_cursor(self._seen),
                self._writer,
                self._is_unsure,
                verb,
                self.position if offset is None else offset,
                is_write=True,
            )
        except WalError as error:
            self._is_unsure |= error.outcome == "unknown"
            raise
        except BaseException:
            self._is_unsure = True
            raise
        self._seen = unpack_cursor(found)
        self._is_unsure = False


class RemoteCursors:
    """The cursors of a served log, for its consumers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def check_home(self) -> Callable[[], None]:
        """Raises in a child process, another thread or another event loop."""
        return self._client.check_home

    async def open(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        lease_seconds: float | None = None,
    ) -> RemoteCursor:
        """Return a handle on the cursor ``name``; see :meth:`RemoteWal.cursor`."""
        state, writer = await self._client.call(
            "open_cursor", check_name(name), pack_start(start), lease_seconds, is_write=True
        )
        return RemoteCursor(self._client, name, unpack_cursor(state), writer)

    async def list(self) -> list[CursorInfo]:
        """Return the cursors by name, damaged ones included."""
        return [
            CursorInfo(
                name,
                position,
                is_expired,
                None if state is None else unpack_cursor(state),
                None if problem is None else _problem(problem),
            )
            for name, position, is_expired, state, problem in await self._client.call("cursors")
        ]

    async def delete(self, name: str) -> bool:
        """Remove a cursor and its pin; return whether there was one."""
        found: bool = await self._client.call(
            "delete_cursor", check_name(name), fate=Fate.UNKNOWN, is_write=True
        )
        return found


def _problem(packed: object) -> WalError:
    error = unpack_error(packed)
    return error if isinstance(error, WalError) else OutcomeUnknownError(str(error))
