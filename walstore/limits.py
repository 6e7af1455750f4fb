"""Limit: an offset that only grows, and the futures that wait for it."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from itertools import count


class Limit:
    """A growing offset with waiters. Belongs to one event loop.

    Every waiter has a future of its own: cancelling one caller never touches another's.
    """

    __slots__ = ("_failure", "_loop", "_others", "_queue", "_tiebreak", "value")

    def __init__(self, value: int, loop: asyncio.AbstractEventLoop) -> None:
        self.value = value
        self._loop = loop
        # Waiters whose targets came in order (nearly all), and the rest in a heap.
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._others: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tiebreak = count()
        self._failure: Callable[[int], BaseException] | None = None

    @property
    def has_waiters(self) -> bool:
        """Whether somebody waits."""
        return bool(self._queue or self._others)

    def waiter(self, target: int) -> asyncio.Future[None]:
        """Return a future that resolves when the limit reaches ``target``. Cancel it freely."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._failure is not None and self.value < target:
            future.set_exception(self._failure(target))
        elif self.value >= target:
            future.set_result(None)
        elif not self._queue or target >= self._queue[-1][0]:
            self._queue.append((target, future))
        else:
            heapq.heappush(self._others, (target, next(self._tiebreak), future))
        return future

    async def wait(self, target: int) -> None:
        """Return when the limit has reached ``target``; raise what :meth:`fail` was given."""
        if self.value >= target:
            return
        future = self.waiter(target)
        try:
            await future
        except asyncio.CancelledError:
            self._drop_cancelled()
            raise

    def advance(self, value: int) -> None:
        """Raise the limit and wake whoever waited for it, in order; a lower value is ignored."""
        if value <= self.value:
            return
        self.value = value
        queue = self._queue
        while queue and queue[0][0] <= value:
            future = queue.popleft()[1]
            if not future.done():
                future.set_result(None)
        others = self._others
        while others and others[0][0] <= value:
            future = heapq.heappop(others)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, failure: Callable[[int], BaseException]) -> None:
        """Fail all waiters, now and later, with ``failure(target)``."""
        self._failure = failure
        for target, future in [*self._queue, *((t, f) for t, _, f in self._others)]:
            if not future.done():
                future.set_exception(failure(target))
        self._queue.clear()
        self._others.clear()

    def _drop_cancelled(self) -> None:
        """Forget cancelled waiters at the end, so that polling an idle log does not pile them up."""
        queue = self._queue
        while queue and queue[-1][1].done():
            queue.pop()
        if self._others and all(future.done() for _, _, future in self._others):
            self._others.clear()
