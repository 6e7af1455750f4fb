"""Stalls: when a server disconnects a client that does not take what it is sent. Pure."""

from __future__ import annotations

from typing import Final

NEED_SECONDS: Final = 5.0
"""How long a client may take nothing of its answers while others wait for the room that they keep."""
SPARING_NEED_SECONDS: Final = 10.0
"""The same of one that keeps next to none, since it lets go of what it does not take. Others hardly wait for
it, and over a slow line its system may take nothing for 6 s though it reads (docs/http.md)."""


class Taking:
    """Whether a client takes what it is sent, as looks at it show."""

    def __init__(self, now: float) -> None:
        self.idle_seconds = 0.0
        """For how long it had taken nothing at the last look."""
        self._taken_bytes: int | None = None
        self._since = now

    def stall(
        self, taken_bytes: int | None, now: float, *, most_seconds: float, need_seconds: float
    ) -> str | None:
        """Return why to disconnect a client, or None.

        ``taken_bytes`` is what it has taken so far, None if nothing waits for it. It may take nothing for
        ``need_seconds`` if others wait for room that it holds, otherwise for ``most_seconds``.
        """
        if taken_bytes is None or taken_bytes != self._taken_bytes:
            self._taken_bytes, self._since = taken_bytes, now
        self.idle_seconds = now - self._since
        if self.idle_seconds > most_seconds:
            return f"it took nothing, or next to nothing, of its answers for {most_seconds:g} s"
        if self.idle_seconds > need_seconds:
            return (
                f"it took next to nothing of its answers for {need_seconds:g} s; others wait for the room "
                "that they take"
            )
        return None
