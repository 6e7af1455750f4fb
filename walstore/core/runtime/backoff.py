"""Backoff: how long to wait between attempts. The one place where pauses grow. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Backoff:
    """The pauses between attempts: each is longer than the one before, up to the longest."""

    first_seconds: float
    longest_seconds: float
    growth: float = 2.0
    """By what a pause is multiplied to make the next one."""
    jitter: Callable[[], float] = lambda: 1.0
    """Returns one more factor for each pause."""
    _attempts: int = field(default=0, init=False)

    def next_seconds(self) -> float:
        """Return the next pause."""
        self._attempts += 1
        return self.after(self._attempts)

    def after(self, attempt: int) -> float:
        """Return the pause after an attempt, counted from 1."""
        seconds = self.first_seconds * self.growth ** min(attempt - 1, 64)  # a float is finite
        return min(seconds, self.longest_seconds) * self.jitter()

    def reset(self) -> None:
        """Begin again with the first pause."""
        self._attempts = 0
