"""Backoff: how long to wait between attempts. The one place where pauses grow. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MOST_STEPS: Final = 64
"""A pause does not grow beyond them: a float is finite."""


class Backoff:
    """The pauses between attempts: each is longer than the one before, up to the longest."""

    __slots__ = ("_attempts", "_first", "_growth", "_jitter", "_longest")

    def __init__(
        self,
        *,
        first_seconds: float,
        longest_seconds: float,
        growth: float = 2.0,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        """Each pause is ``growth`` times as long as the one before; ``jitter`` returns one more factor."""
        self._first = first_seconds
        self._longest = longest_seconds
        self._growth = growth
        self._jitter = jitter
        self._attempts = 0

    def next_seconds(self) -> float:
        """Return the next pause."""
        self._attempts += 1
        return self.after(self._attempts)

    def after(self, attempt: int) -> float:
        """Return the pause after an attempt, counted from 1."""
        seconds = self._first * self._growth ** min(attempt - 1, _MOST_STEPS)
        return min(seconds, self._longest) * (1.0 if self._jitter is None else self._jitter())

    def reset(self) -> None:
        """Begin again with the first pause."""
        self._attempts = 0
