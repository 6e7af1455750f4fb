"""PollPace: when a log is asked again how far it reaches. Pure.

Soon while records come, less and less often while nothing does; so that an idle stream asks its store about
once a second, however often Spark asks the stream.
"""

from __future__ import annotations

from typing import Final

_SLOWER: Final = 1.5


class PollPace:
    """When to ask one log again. Times are monotonic seconds."""

    def __init__(self, *, shortest_seconds: float, longest_seconds: float) -> None:
        """Wait ``shortest_seconds`` after something came, up to ``longest_seconds`` after much nothing."""
        self._shortest_seconds = shortest_seconds
        self._longest_seconds = max(shortest_seconds, longest_seconds)
        self._pause_seconds = shortest_seconds
        self._due_at = 0.0
        self._failing_since: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether it is time to ask."""
        return now >= self._due_at

    def answered(self, now: float, *, is_new: bool) -> None:
        """Take note of an answer, and whether it told of new records."""
        self._failing_since = None
        if is_new:
            self._pause_seconds = self._shortest_seconds
        else:
            self._slow_down()
        self._due_at = now + self._pause_seconds

    def failed(self, now: float) -> float:
        """Take note that there was no answer; return for how many seconds there has been none."""
        if self._failing_since is None:
            self._failing_since = now
        self._slow_down()
        self._due_at = now + self._pause_seconds
        return now - self._failing_since

    def _slow_down(self) -> None:
        self._pause_seconds = min(self._pause_seconds * _SLOWER, self._longest_seconds)
