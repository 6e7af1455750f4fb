"""PutWindow: how many objects are sent to a store at once. More while that is quick, fewer when it is not.

Puts that share a slow uplink all take as long as all of them together. Sixteen fragments of 8 MiB at 3 MB/s
take 45 s each, longer than any of them is waited for: everything is sent again and again, and nothing ever
arrives. So the number follows what the puts report: it begins small, grows while they are quick, and falls
when they are slow, fail or are given up. One is always sent, so there is progress if there can be any.
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
"""A put that takes less leaves room for another one at the same time."""
_SLOW_SECONDS: Final = 5.0
"""One that takes longer says that there were too many: requests are given up after 15 to 60 s."""


class PutWindow:
    """The number of puts that may be under way at once. Belongs to one event loop.

    Turns are given in the order in which they were asked for, also to attempts that are repeated.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        """``most`` is never exceeded; 1 or more."""
        self.most = most
        self.allowed = min(_FIRST, most)
        """How many may be under way at this moment; 1 to ``most``."""
        self._clock = clock
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._lowered_at = float("-inf")

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; make one put within the block, whose time and outcome are learned from."""
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
            if turn.done() and not turn.cancelled():  # it was given at this moment
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
    """The port over another store, whose puts take turns. Closing it is not for its users."""

    def __init__(self, inner: ObjectStore, window: PutWindow) -> None:
        """Wrap ``inner``; several wrappers may share a window."""
        super().__init__(inner)
        self._window = window

    async def _call(self, request: Request[_T]) -> _T:
        if not request.sent_bytes:
            return await request()
        async with self._window.turn():
            return await request()
