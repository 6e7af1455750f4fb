"""MessageClock: strictly increasing numbers that contain the time. Pure, except for the injected clock."""

from __future__ import annotations

from typing import Final

from walstore.ports import Clock

COUNTER_BITS: Final = 4
"""Low bits of a clock value; the 60 above count units of 100 ns since 1970 UTC."""
_TICKS_PER_MICROSECOND: Final = 10 << COUNTER_BITS


class MessageClock:
    """Gives each message of a publisher its clock value.

    A value is the wall time in units of 100 ns, shifted left by four bits; or the value before plus
    one, if that is more. So values increase strictly even if the wall clock stops or goes back, and run
    ahead of it only above 160 values per microsecond. One event loop; nothing is awaited.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last = 0
        """The last value returned; 0 before the first."""

    def tick(self) -> int:
        """Return the next value, at least 1."""
        now = self._clock.now_us() * _TICKS_PER_MICROSECOND
        self.last = max(self.last + 1, now)
        return self.last


def time_us(value: int) -> int:
    """Return the wall time in a clock value, in microseconds since 1970 UTC."""
    return value // _TICKS_PER_MICROSECOND
