"""KeyedLocks: one caller at a time for each of many names, and a few at a time for costly work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class KeyedLocks:
    """Locks by name that exist only while they are used. Belongs to the event loop."""

    def __init__(self, few: int) -> None:
        self.few = asyncio.Semaphore(few)
        """For work of which only a few may run at a time, over all names."""
        self._locks: dict[str, _Entry] = {}

    @property
    def busy(self) -> list[str]:
        """Names that are locked or waited for."""
        return list(self._locks)

    @contextlib.asynccontextmanager
    async def pass_through(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of ``name`` for the block; waiters get it in the order of their requests."""
        entry = self._locks.get(name)
        if entry is None:
            entry = self._locks[name] = _Entry()
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[name]


class _Entry:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
