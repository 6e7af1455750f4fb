"""LogCursor: the cursor of one log, in an object store or a directory, that is moved forward and never back.

It needs neither PySpark nor Java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from typing import TypeAlias

from uploader import CloudCursors, CloudLog
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import find_root
from uploader.stores import ObjectStore, RetryPolicy
from walstore import (
    Cursor,
    CursorMovedError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetTrimmedError,
    ReadonlyWal,
)
from walstore.core.files.locks import this_process
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Worker


class _StorePlace:
    """An object store, where the garbage collector respects its cursors."""

    def __init__(self, cursors: CloudCursors) -> None:
        self._cursors = cursors

    async def find(self, name: str) -> int | None:
        """Return the position of a cursor, or None if it does not exist; InvalidSettingsError for a pin."""
        found = await self._cursors.load(name)
        if found is not None and found.expires_us is not None:
            raise InvalidSettingsError(
                f"{name!r} is a pin, which expires; give the stream's cursor another name"
            )
        return None if found is None else found.position

    async def open(self, name: str, position: int) -> Cursor:
        """Return a handle on a cursor, creating it at ``position`` if it does not exist."""
        return await self._cursors.open(name, start=position)


class _DirectoryPlace:
    """The directory of a log."""

    def __init__(self, log: ReadonlyWal) -> None:
        self._log = log

    async def find(self, name: str) -> int | None:
        """As of :class:`_StorePlace`."""
        for info in await self._log.cursors():
            if info.name == name:
                return (await self._log.cursor(name)).position
        return None

    async def open(self, name: str, position: int) -> Cursor:
        """As of :class:`_StorePlace`."""
        try:
            return await self._log.cursor(name, start=position)
        except OffsetTrimmedError as error:
            error.add_note(
                "a cursor of a log directory cannot stand before what is in the directory"
            )
            raise


_CursorPlace: TypeAlias = _StorePlace | _DirectoryPlace


class LogCursor:
    """A named position in one log, over a handle that is opened when it is needed."""

    def __init__(
        self,
        name: str,
        places: Callable[[], Awaitable[Sequence[_CursorPlace]]],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Not for callers: ``places`` may have it; a new one is made in the first. ``close`` ends them."""
        self._name = name
        self._places = places
        self._close = close
        self._cursor: Cursor | None = None

    @classmethod
    def of_store(
        cls, cursors: CloudCursors, name: str, close: Callable[[], Awaitable[None]] | None = None
    ) -> LogCursor:
        """Return the cursor of a log in a store, which ``close`` closes with it."""

        async def places() -> Sequence[_CursorPlace]:
            return (_StorePlace(cursors),)

        return cls(name, places, close)

    @classmethod
    def without_log(cls, store: ObjectStore, name: str) -> LogCursor:
        """Return the cursor of a log that has no manifest yet; it owns ``store``."""
        clock = SystemClock()
        retry = RetryPolicy(clock=clock)

        async def newest() -> Manifest:
            with closing(Worker("cursor")) as worker:
                return (await find_root(store, retry=retry, worker=worker)).manifest

        cursors = CloudCursors(
            store, newest=newest, retry=retry, clock=clock, writer=this_process()
        )
        return cls.of_store(cursors, name, store.aclose)

    @classmethod
    def of_directory(cls, log: ReadonlyWal, tier_url: str | None, name: str) -> LogCursor:
        """Return the cursor of a local log: in the tier to which it ships, or else in its directory.

        Local retention deletes shipped records, so the tier is what must retain them.
        """
        tier: CloudLog | None = None

        async def places() -> Sequence[_CursorPlace]:
            nonlocal tier
            if tier is None and tier_url is not None:
                with suppress(LogNotFoundError):  # nothing has been shipped yet
                    tier = await CloudLog.open(tier_url)
            local = _DirectoryPlace(log)
            return (local,) if tier is None else (_StorePlace(tier.cursors), local)

        async def close() -> None:
            if tier is not None:
                await tier.aclose()

        return cls(name, places, close)

    async def load(self) -> int | None:
        """Return its position, or None if it does not exist."""
        return (await self._find())[1]

    async def create(self, position: int) -> int:
        """Create it at ``position`` if it does not exist; return its position."""
        return (await self._open(position)).position

    async def advance(self, position: int) -> None:
        """Move it forward to ``position``, or create it there. A cursor beyond that stays."""
        cursor = self._cursor or await self._open(position)
        if cursor.position < position and not await _commit(cursor, position):
            await self._open(position)

    async def aclose(self) -> None:
        """Release what was opened for it."""
        if self._close is not None:
            await self._close()

    # -- inside ------------------------------------------------------------------------------

    async def _open(self, position: int) -> Cursor:
        place, _ = await self._find()
        self._cursor = await place.open(self._name, position)
        return self._cursor

    async def _find(self) -> tuple[_CursorPlace, int | None]:
        """Return where it is, and its position; or where it would be made."""
        places = await self._places()
        for place in places:
            position = await place.find(self._name)
            if position is not None:
                return place, position
        return places[0], None


async def _commit(cursor: Cursor, position: int) -> bool:
    """Move a cursor to ``position``, unless it was moved further; return False if it was deleted."""
    try:
        await cursor.commit(position)
    except CursorMovedError as error:
        if error.actual is None:
            return False
        if await cursor.refresh() < position:
            await cursor.commit(position)
    return True
