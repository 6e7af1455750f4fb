"""Announcer: tells a local log what was published."""

from __future__ import annotations

import asyncio

from uploader.write.telling import AT_ONCE, Telling
from walstore.ports import TierSource


class Announcer:
    """Advances the uploaded limit of one log, some records at a time if appends wait for them."""

    def __init__(self, source: TierSource, loop: asyncio.AbstractEventLoop) -> None:
        self._source = source
        self._target = source.uploaded_limit
        self._told = asyncio.Event()
        self._told.set()
        self._telling = Telling(loop, self._step)

    def announce(self, limit: int) -> None:
        """Begin to tell the log that every offset below ``limit`` is published."""
        self._target = max(self._target, limit)
        self._told.clear()
        self._telling.begin()

    async def wait_told(self) -> None:
        """Return when the log knows all that was announced."""
        await self._told.wait()

    def _step(self) -> bool:
        limit = self._target
        if self._source.wants_cloud:
            limit = min(limit, self._source.uploaded_limit + AT_ONCE)
        self._source.advance_uploaded(limit)
        if limit < self._target:
            return True
        self._told.set()
        return False
