"""TwoClockTime: a point in time by both clocks of one program. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from walstore.core.ports import Clock


@dataclass(frozen=True, slots=True)
class TwoClockTime:
    """When something was the case, for this program only.

    A machine that sleeps stops its monotonic clock; one that is set right moves its wall clock. What
    matters here is never to take a long time for a short one, so the larger difference counts.
    """

    monotonic: float
    wall_us: int

    @classmethod
    def now(cls, clock: Clock) -> TwoClockTime:
        """Return the present."""
        return cls(clock.monotonic(), clock.now_us())

    def age_seconds(self, clock: Clock) -> float:
        """Return how long ago it was, rather too long than too short."""
        by_wall = abs(clock.now_us() - self.wall_us) / 1e6
        return max(clock.monotonic() - self.monotonic, by_wall)
