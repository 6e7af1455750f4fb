"""Question: what a client asks a server that says nothing, and how long the answer may take.

A connection may die without a word: a firewall forgets it, a machine loses power. The system finds out after
a quarter of an hour, if something was sent, and never, if not. A server that lives answers a question at
once, whatever else it does, so that silence after one means that the connection is dead. Only what is sent
may take long, on a slow link: then the question waits behind it, and its time begins when it has left.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from walstore.net.remote.server_connection import ServerConnection

ANSWER_SECONDS: Final = 10.0
"""How long an answer may take until the connection counts as lost: longer than a disk, a garbage collection
or a route that changes makes a server pause, and much shorter than people wait."""


class Question:
    """One question that was sent. Belongs to the event loop."""

    def __init__(self, link: ServerConnection, future: asyncio.Future[Any], now: float) -> None:
        """Begin when it was sent at ``link``, last of all; its answer goes to ``future``."""
        self._link = link
        self._future = future
        self._end = link.sent_bytes
        self._received_bytes = link.received_bytes
        self._has_left = link.has_left(self._end)
        self._moved = link.moved
        self._since = now
        """When it left, or what is before it moved for the last time."""

    def is_settled(self, link: ServerConnection | None) -> bool:
        """Whether the server has said something since, or the connection is another one."""
        is_heard = self._link.received_bytes != self._received_bytes
        return link is not self._link or is_heard or self._future.done()

    def seconds_left(self, now: float) -> float:
        """Return how long the answer may still take, at least; 0 or less: the connection is dead."""
        if not self._has_left:
            moved, self._moved = self._moved, self._link.moved
            self._has_left = self._link.has_left(self._end)
            if self._has_left or moved != self._moved:
                self._since = now
        return self._since + ANSWER_SECONDS - now

    @property
    def has_left(self) -> bool:
        """Whether it is on its way, as far as was seen."""
        return self._has_left
