"""AppendRate: how many bytes a second a log accepts. Everything here belongs to the event loop.

A token bucket that holds one second's worth. An append enters while there is credit, whatever its size, and
takes the credit below 0 if it is larger; the next one enters once there is credit again. So in any period of
``t`` seconds the log accepts at most ``t + 1`` seconds' worth, and one append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from walstore.core.ports import Clock
from walstore.core.settings import Settings

_LEAST_SECONDS: Final = 0.001
"""Of a wait, after which all that there is credit for is admitted: not one timer for each append."""


def make_rate(settings: Settings, clock: Clock) -> AppendRate | None:
    """Return the rate of a log with these settings; None for no limit."""
    most = settings.max_append_bytes_per_second
    return None if most is None else AppendRate(most, clock)


class AppendRate:
    """The credit of one log."""

    __slots__ = ("_at", "_clock", "_credit_bytes", "_is_wanted", "bytes_per_second")

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self.bytes_per_second: Final = bytes_per_second
        """Of the setting."""
        self._clock = clock
        self._credit_bytes = float(bytes_per_second)
        self._at = clock.monotonic()
        self._is_wanted = asyncio.Event()

    @property
    def credit_bytes(self) -> float:
        """What may be accepted now; an append may enter while it is more than 0."""
        now = self._clock.monotonic()
        more = (now - self._at) * self.bytes_per_second
        self._at = now
        self._credit_bytes = min(self._credit_bytes + more, self.bytes_per_second)
        return self._credit_bytes

    def take(self, size_bytes: int) -> None:
        """Take what was accepted."""
        self._credit_bytes = self.credit_bytes - size_bytes

    def want(self) -> None:
        """Let :meth:`run` call ``admit`` once there is credit."""
        self._is_wanted.set()

    async def run(self, admit: Callable[[], None]) -> None:
        """Call ``admit()`` whenever there is credit that somebody waits for; until cancelled."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            while (credit_bytes := self.credit_bytes) <= 0:
                left = (1 - credit_bytes) / self.bytes_per_second
                await self._clock.sleep(max(left, _LEAST_SECONDS))
            admit()
