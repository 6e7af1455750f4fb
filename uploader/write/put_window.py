"""PutWindow: how many objects are sent to a store at once. More while puts are quick, fewer when not.

Puts that share a slow uplink all take as long as all of them together. Sixteen fragments of 8 MiB at 3 MB/s
take 45 s each, longer than any timeout: everything is sent again and again, and nothing ever arrives. So the
number follows the time and outcome of the puts: it begins small, grows while they are quick, and falls when
they are slow, fail or are given up. One is always sent, so there is progress if there can be any.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from uploader.stores.port import ObjectStore
from uploader.stores.wrapper import Request, StoreWrapper
from walstore.errors import StorageUnavailableError
from walstore.ports import Clock

_T = TypeVar("_T")

_FIRST: Final = 4
"""Four fragments of 8 MiB at 3 MB/s take 11 s, which is less than any time limit."""
_QUICK_SECONDS: Final = 2.5
"""A put that takes less time leaves room for another one."""
_SLOW_SECONDS: Final = 5.0
"""One that takes longer shows that there were too many: requests time out after 15 to 60 s."""


class PutWindow:
    """The number of puts that may be under way at once. Belongs to one event loop.

    Turns are given in the order of the requests, also to repeated attempts.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        """``most`` is never exceeded; 1 or more."""
        self.most = most
        self.allowed = min(_FIRST, most)
        """How many may be under way at present; 1 to ``most``."""
        self._clock = clock
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._lowered_at = float("-inf")

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; make one put within the block. Its time and outcome adjust the window."""
        await self._enter()
        began = self._clock.monotonic()
        try:
            yield
        except (StorageUnavailableError, asyncio.CancelledError):
            slow = self._clock.monotonic() - began > _QUICK_SECONDS
            self._lower(began, 1 if slow else self.allowed // 2)
            raise
        else:
            self._learn(began)
        finally:
            self._under_way -= 1
            self._admit()

    # -- inside ------------------------------------------------------------------------------

    async def _enter(self) -> None:
        if self._under_way < self.allowed and not self._waiting:
            self._under_way += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given just now
                self._under_way -= 1
            else:
                with contextlib.suppress(ValueError):  # passed over already
                    self._waiting.remove(turn)
            self._admit()
            raise

    def _learn(self, began: float) -> None:
        seconds = self._clock.monotonic() - began
        if seconds > _SLOW_SECONDS:
            self._lower(began, self.allowed // 2)
        elif seconds <= _QUICK_SECONDS and began >= self._lowered_at:
            self.allowed = min(self.allowed + 1, self.most)

    def _lower(self, began: float, allowed: int) -> None:
        """Allow fewer, once for all puts that were under way together."""
        if began >= self._lowered_at:
            self.allowed = max(allowed, 1)
            self._lowered_at = self._clock.monotonic()

    def _admit(self) -> None:
        while self._waiting and self._under_way < self.allowed:
            turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)


class WindowedStore(StoreWrapper):
    """The port over another store, whose puts take turns. Its users do not close it."""

    def __init__(self, inner: ObjectStore, window: PutWindow) -> None:
        """Wrap ``inner``; several wrappers may share a window."""
        super().__init__(inner)
        self._window = window

    async def _call(self, request: Request[_T]) -> _T:
        if not request.sent_bytes:
            return await request()
        async with self._window.turn():
            return await request()
