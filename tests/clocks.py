"""Clocks that pass by themselves, and faster when a test says so."""

from __future__ import annotations

from walstore.core.runtime.clock import SystemClock


class SkippingClock(SystemClock):
    """The real clock, and the seconds that a test skips. ``longest_pause`` is how long it sleeps at most."""

    def __init__(self, *, longest_pause: float = float("inf")) -> None:
        self._longest_pause = longest_pause
        self._skipped = 0.0
        self._shifted_us = 0
        self._stands_at: float | None = None

    def skip(self, seconds: float) -> None:
        """Let so many seconds pass at once; who sleeps is not woken."""
        self._skipped += seconds

    def shift_wall(self, seconds: float) -> None:
        """Move only the wall clock, also backwards, as an administrator or NTP would."""
        self._shifted_us += round(seconds * 1e6)

    def now_us(self) -> int:
        return super().now_us() + self._shifted_us

    def stand_still(self) -> None:
        """Let no more time pass but what is skipped; pauses go on."""
        self._stands_at = super().monotonic()

    def monotonic(self) -> float:
        now = super().monotonic() if self._stands_at is None else self._stands_at
        return now + self._skipped

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, self._longest_pause))


class ImpatientClock(SystemClock):
    """Whoever sleeps has slept at once: nobody waits for machines that are not there."""

    def __init__(self) -> None:
        self._slept = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._slept

    async def sleep(self, seconds: float) -> None:
        self._slept += seconds
        await super().sleep(0)
