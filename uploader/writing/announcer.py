"""Announcer: tells a local log what was published, some records at a time if appends wait for them.

A commit may be of thousands of appends. Waking them all at once would keep the event loop busy for many
milliseconds, in which the next change of the root, which all that follow wait for, could not begin.
"""

from __future__ import annotations

import asyncio
from typing import Final

from walstore.ports import TierSource

AT_ONCE: Final = 64
"""Records announced in one turn of the event loop."""


class Announcer:
    """Advances the uploaded limit of one log."""

    def __init__(self, source: TierSource, loop: asyncio.AbstractEventLoop) -> None:
        self._source = source
        self._loop = loop
        self._target = source.uploaded_limit
        self._told = asyncio.Event()
        self._told.set()

    def announce(self, limit: int) -> None:
        """Begin to tell the log that every offset below ``limit`` is published."""
        self._target = max(self._target, limit)
        if self._told.is_set():
            self._told.clear()
            self._step()

    async def wait_told(self) -> None:
        """Return when the log knows all that was announced."""
        await self._told.wait()

    def _step(self) -> None:
        limit = self._target
        if self._source.wants_cloud:
            limit = min(limit, self._source.uploaded_limit + AT_ONCE)
        self._source.advance_uploaded(limit)
        if limit < self._target:
            self._loop.call_soon(self._step)
        else:
            self._told.set()
