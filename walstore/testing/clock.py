"""A clock that stops until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from datetime import datetime
from typing import Final

from walstore.core.validation.arguments import as_moment_us

_MICROSECONDS: Final = 1_000_000
DEFAULT_NOW_US: Final = 1_750_000_000 * _MICROSECONDS
"""Default wall-clock time of a new :class:`ManualClock`."""


class ManualClock:
    """A :class:`walstore.core.ports.Clock` under the control of a test.

    ``now_us`` and ``monotonic`` may be called on any thread; the rest belongs to one event loop. Time is
    counted in whole microseconds, so that no sum of steps drifts.
    """

    def __init__(self, now_us: int | datetime = DEFAULT_NOW_US) -> None:
        """Start at a time, an aware datetime or microseconds since 1970 UTC; monotonic time starts at 0."""
        self._wall_origin_us = as_moment_us(now_us, "now_us")
        self._elapsed_us = 0
        # Sleepers by deadline, then by arrival; woken and cancelled ones are dropped when they surface.
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0
        # Callers of wait_for_sleepers, with the number each waits for.
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []

    def now_us(self) -> int:
        """Return wall-clock microseconds since 1970 UTC."""
        return self._wall_origin_us + self._elapsed_us

    def monotonic(self) -> float:
        """Return the seconds this clock was advanced by since it was made."""
        return self._elapsed_us / _MICROSECONDS

    @property
    def sleepers(self) -> int:
        """How many callers are in :meth:`sleep` now."""
        return sum(1 for *_, future in self._sleepers if not future.done())

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by ``seconds``; 0 or less only lets other tasks run.

        A cancelled sleeper is dropped.
        """
        if seconds <= 0:
            await asyncio.sleep(0)  # noqa: TID251 - the one way to let the loop turn
            return
        future = asyncio.get_running_loop().create_future()
        deadline = self._elapsed_us + round(seconds * _MICROSECONDS)
        self._arrivals += 1
        heapq.heappush(self._sleepers, (deadline, self._arrivals, future))
        self._notify_watchers()
        await future

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Return when at least ``count`` callers are in :meth:`sleep`.

        With this a test knows, without guessing, that a task sleeps and time may be moved.
        """
        if self.sleepers >= count:
            return
        future = asyncio.get_running_loop().create_future()
        self._watchers.append((count, future))
        await future

    def advance(self, seconds: float) -> None:
        """Advance both clocks and wake the sleepers whose time has come, earliest deadline first.

        The woken tasks run when the caller next awaits; each of them then sees the new time. A task that
        sleeps again counts from there, so wake a periodic task once for each of its periods.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds!r}); see shift_wall")
        self._elapsed_us += round(seconds * _MICROSECONDS)
        while self._sleepers and self._sleepers[0][0] <= self._elapsed_us:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    def shift_wall(self, seconds: float) -> None:
        """Move only the wall clock, also backwards, as an administrator or NTP would."""
        self._wall_origin_us += round(seconds * _MICROSECONDS)

    def _notify_watchers(self) -> None:
        sleepers = self.sleepers
        for count, future in self._watchers:
            if sleepers >= count and not future.done():
                future.set_result(None)
        self._watchers = [item for item in self._watchers if not item[1].done()]
