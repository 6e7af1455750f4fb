"""Stalls: when a server disconnects a client that does not take what it is sent. Pure."""

from __future__ import annotations

from typing import Final

SHORTAGE_SECONDS: Final = 5.0
"""How long a client may take nothing of its answers while others wait for the room that they take."""


class Taking:
    """Whether a client takes what it is sent, as looks at it show."""

    def __init__(self, now: float) -> None:
        self.idle_seconds = 0.0
        """For how long it had taken nothing at the last look."""
        self._taken_bytes: int | None = None
        self._since = now

    def stall(
        self, taken_bytes: int | None, now: float, *, most_seconds: float, is_in_need: bool
    ) -> str | None:
        """Return why to disconnect a client, or None.

        ``taken_bytes`` is what it has taken so far, None if nothing waits for it; ``is_in_need``: others wait
        for room, and it holds some.
        """
        if taken_bytes is None or taken_bytes != self._taken_bytes:
            self._taken_bytes, self._since = taken_bytes, now
        self.idle_seconds = now - self._since
        if self.idle_seconds > most_seconds:
            return f"it took nothing, or next to nothing, of its answers for {most_seconds:g} s"
        if is_in_need and self.idle_seconds > SHORTAGE_SECONDS:
            return (
                f"it took next to nothing of its answers for {SHORTAGE_SECONDS:g} s; others wait for the "
                "room that they take"
            )
        return None
