"""BackgroundTask: runs one task at a time while publishing continues without waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class BackgroundTask(Generic[_T]):
    """Owns the task. Belongs to one event loop."""

    def __init__(self) -> None:
        self._task: asyncio.Task[_T] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the task is under way."""
        return self._task is not None and not self._task.done()

    @property
    def has_task(self) -> bool:
        """Whether a task is under way, or its result waits to be taken."""
        return self._task is not None

    def start(self, work: Coroutine[Any, Any, _T], name: str) -> None:
        """Begin; what an earlier task returned is forgotten."""
        assert not self.is_busy
        self._task = asyncio.get_running_loop().create_task(work, name=name)

    def take(self) -> asyncio.Task[_T] | None:
        """Return the task if it has ended and was not taken yet."""
        if self._task is None or not self._task.done():
            return None
        task, self._task = self._task, None
        return task

    async def wait(self) -> None:
        """Return when no task is running; does not report its result."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def aclose(self) -> None:
        """Cancel the task and wait for its end; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # nothing follows from it
