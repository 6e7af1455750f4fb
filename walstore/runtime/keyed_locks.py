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
        self._gates: dict[str, _Gate] = {}

    @property
    def busy(self) -> list[str]:
        """Names that are locked or waited for."""
        return list(self._gates)

    @contextlib.asynccontextmanager
    async def pass_through(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of ``name`` for the block; waiters get it in the order of their requests."""
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = _Gate()
        gate.users += 1
        try:
            async with gate.lock:
                yield
        finally:
            gate.users -= 1
            if not gate.users:
                del self._gates[name]


class _Gate:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
