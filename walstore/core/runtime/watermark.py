"""Watermark: an offset that only grows, and the futures that wait for it."""

from __future__ import annotations

import asyncio
import heapq
from asyncio import Future
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

_NOBODY: Final[deque[tuple[int, asyncio.Future[None]]]] = deque(maxlen=0)
"""Shared queue of watermarks that never had a waiter: a separate one takes 0.7 KiB."""


class Watermark:
    """A growing offset with waiters. Belongs to one event loop.

    Every waiter has a future of its own: cancelling one does not affect the others.
    """

    __slots__ = ("_abandoned", "_failure", "_loop", "_others", "_queue", "_tiebreak", "value")

    def __init__(self, value: int, loop: asyncio.AbstractEventLoop) -> None:
        self.value = value
        self._loop = loop
        # Waiters with ascending targets (nearly all), and the rest in a heap.
        self._queue = _NOBODY
        self._others: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tiebreak = count()
        self._abandoned = 0
        self._failure: Callable[[int], BaseException] | None = None

    @property
    def has_waiters(self) -> bool:
        """Whether there are waiters."""
        return bool(self._queue or self._others)

    def waiter(self, target: int) -> asyncio.Future[None]:
        """Return a future that resolves when the limit reaches ``target``. It may be cancelled."""
        future: asyncio.Future[None] = Future(loop=self._loop)
        queue = self._queue
        if self.value >= target:
            future.set_result(None)
        elif self._failure is not None:
            _fail(future, self._failure(target))
        elif not queue or target >= queue[-1][0]:
            if queue is _NOBODY:
                self._queue = queue = deque()
            queue.append((target, future))
        else:
            heapq.heappush(self._others, (target, next(self._tiebreak), future))
        return future

    async def wait(self, target: int) -> None:
        """Return when the limit has reached ``target``; raise the error passed to :meth:`fail`."""
        if self.value >= target:
            return
        future = self.waiter(target)
        try:
            await future
        except asyncio.CancelledError:
            self.note_abandoned()
            raise

    def advance(self, value: int) -> None:
        """Raise the limit and wake the waiters up to it, in order; a lower value is ignored."""
        for future in self.reach(value):
            if not future.done():
                future.set_result(None)

    def reach(self, value: int) -> list[asyncio.Future[None]]:
        """Raise the limit and return the waiters up to it, in order, for the caller to wake; a lower value is
        ignored."""
        reached: list[asyncio.Future[None]] = []
        if value <= self.value:
            return reached
        self.value = value
        queue = self._queue
        while queue and queue[0][0] <= value:
            reached.append(queue.popleft()[1])
        others = self._others
        while others and others[0][0] <= value:
            reached.append(heapq.heappop(others)[2])
        return reached

    def fail(self, failure: Callable[[int], BaseException]) -> None:
        """Fail all waiters, now and later, with ``failure(target)``."""
        self._failure = failure
        self.fail_waiting(failure)

    def fail_waiting(self, failure: Callable[[int], BaseException]) -> None:
        """Fail present waiters with ``failure(target)``; later ones wait."""
        for target, future in [*self._queue, *((t, f) for t, _, f in self._others)]:
            if not future.done():
                _fail(future, failure(target))
        self._queue.clear()
        self._others.clear()

    def refuse(self, failure: Callable[[int], BaseException]) -> None:
        """Fail later waiters, as :meth:`fail` does, and leave present ones waiting."""
        self._failure = failure

    def note_abandoned(self) -> None:
        """Note that a waiter was cancelled or resolved before its time.

        Drops such waiters once they may be the majority, so that polling an idle log does not
        accumulate them."""
        self._abandoned += 1
        if self._abandoned * 2 > len(self._queue) + len(self._others):
            self._abandoned = 0
            self._queue = deque(entry for entry in self._queue if not entry[1].done())
            self._others = [entry for entry in self._others if not entry[2].done()]
            heapq.heapify(self._others)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    future.set_exception(error)
    future.exception()  # a caller cancelled at this moment never retrieves it
