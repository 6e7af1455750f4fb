"""The cursor of one log, in an object store or a directory, that is moved forward and never back.

It needs neither PySpark nor Java.
"""

from __future__ import annotations

from contextlib import closing
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


class StoreCursor:
    """A cursor in an object store, where the garbage collector respects it."""

    def __init__(
        self, cursors: CloudCursors, name: str, *, store: ObjectStore | None = None
    ) -> None:
        """``store`` is closed with it."""
        self._cursors = cursors
        self._name = name
        self._store = store

    @classmethod
    def without_log(cls, store: ObjectStore, name: str) -> StoreCursor:
        """Return the cursor of a log that has no manifest yet; it owns ``store``."""
        clock = SystemClock()
        retry = RetryPolicy(clock=clock)

        async def newest() -> Manifest:
            with closing(Worker("cursor")) as worker:
                return (await find_root(store, retry=retry, worker=worker)).manifest

        cursors = CloudCursors(
            store, newest=newest, retry=retry, clock=clock, writer=this_process()
        )
        return cls(cursors, name, store=store)

    async def load(self) -> int | None:
        """Return its position, or None if it does not exist."""
        found = await self._cursors.load(self._name)
        if found is not None and found.expires_us is not None:
            raise InvalidSettingsError(
                f"{self._name!r} is a pin, which expires; give the stream's cursor another name"
            )
        return None if found is None else found.position

    async def create(self, position: int) -> int:
        """Create it at ``position`` if it does not exist; return its position."""
        return (await self._cursors.create(self._name, position)).position

    async def advance(self, position: int) -> None:
        """Move it forward to ``position``, or create it there. A cursor beyond that stays."""
        found = await self.load()
        if found is None or found < position:
            try:
                await self._cursors.commit(self._name, position)
            except ValueError:
                if (await self.load() or 0) < position:
                    raise

    async def aclose(self) -> None:
        """Release the store, if it was opened for this."""
        if self._store is not None:
            await self._store.aclose()


class DirectoryCursor:
    """A cursor of a local log: in the tier to which it ships, or else in its directory.

    Local retention deletes shipped records, so the tier is what must retain them.
    """

    def __init__(self, log: ReadonlyWal, tier_url: str | None, name: str) -> None:
        """Use a cursor of ``log``, which ships to ``tier_url``, or nowhere if that is None."""
        self._log = log
        self._tier_url = tier_url
        self._name = name
        self._tier: CloudLog | None = None
        self._local: Cursor | None = None

    async def load(self) -> int | None:
        """Return its position, or None if it does not exist."""
        tier = await self._open_tier()
        found = None if tier is None else await StoreCursor(tier.cursors, self._name).load()
        if found is not None:
            return found
        for info in await self._log.cursors():
            if info.name == self._name:
                self._local = await self._log.cursor(self._name)
                return self._local.position
        return None

    async def create(self, position: int) -> int:
        """Create it at ``position`` if it does not exist; return its position."""
        found = await self.load()
        if found is not None:
            return found
        if self._tier is not None:
            return await StoreCursor(self._tier.cursors, self._name).create(position)
        try:
            self._local = await self._log.cursor(self._name, start=position)
        except OffsetTrimmedError as error:
            error.add_note(
                "a cursor of a log directory cannot stand before what is in the directory"
            )
            raise
        return self._local.position

    async def advance(self, position: int) -> None:
        """Move it forward to ``position``, or create it there. A cursor beyond that stays."""
        if self._tier is None and self._local is None and await self.load() is None:
            await self.create(position)
        if self._local is None:
            assert self._tier is not None
            await StoreCursor(self._tier.cursors, self._name).advance(position)
        elif self._local.position < position and not await _commit(self._local, position):
            self._local = None
            await self.create(position)

    async def aclose(self) -> None:
        """Release the tier's connections, if there are any."""
        if self._tier is not None:
            await self._tier.aclose()

    async def _open_tier(self) -> CloudLog | None:
        """Return the tier; None if there is none or nothing has been shipped yet."""
        if self._tier is None and self._tier_url is not None:
            try:
                self._tier = await CloudLog.open(self._tier_url)
            except LogNotFoundError:
                return None
        return self._tier


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


StreamCursor: TypeAlias = StoreCursor | DirectoryCursor
"""A named position in one log."""
