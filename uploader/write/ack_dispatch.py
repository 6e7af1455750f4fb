"""Ack dispatch: reports what was published to the appends that wait for it, some in each turn of the loop.

One commit may acknowledge thousands of appends. Waking them all at once would keep the event loop busy for
many milliseconds. In that time the next change of the root, which everything behind it waits for, could not
begin.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from uploader.write.pending_fragment import PendingFragment
from walstore.core.tier_port import TierSource

AT_ONCE: Final = 64
"""Appends acknowledged in one turn of the event loop."""


class AckDispatch:
    """Takes steps, one in each turn of the loop, until nothing is left. Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, step: Callable[[], bool]) -> None:
        """``step`` acknowledges up to ``AT_ONCE`` appends, and returns whether more are left."""
        self._loop = loop
        self._take_step = step
        self._is_running = False

    def begin(self) -> None:
        """Go on until nothing is left; from the next turn of the event loop on."""
        if not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        try:
            self._is_running = self._take_step()
        except BaseException:
            self._is_running = False
            raise
        if self._is_running:
            self._loop.call_soon(self._step)


class UploadAcks:
    """Advances the uploaded limit of one local log, some records at a time if appends wait for them."""

    def __init__(self, source: TierSource, loop: asyncio.AbstractEventLoop) -> None:
        self._source = source
        self._target = source.uploaded_limit
        self._delivered = asyncio.Event()
        self._delivered.set()
        self._dispatch = AckDispatch(loop, self._step)

    def send(self, limit: int) -> None:
        """Begin to report to the log that every offset below ``limit`` is published."""
        self._target = max(self._target, limit)
        self._delivered.clear()
        self._dispatch.begin()

    async def wait_delivered(self) -> None:
        """Return when the log knows everything that was sent."""
        await self._delivered.wait()

    def _step(self) -> bool:
        limit = self._target
        if self._source.wants_cloud:
            limit = min(limit, self._source.uploaded_limit + AT_ONCE)
        self._source.advance_uploaded(limit)
        if limit < self._target:
            return True
        self._delivered.set()
        return False


class AppendAcks:
    """Resolves the appends of committed fragments with their offsets, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._fragments: deque[PendingFragment] = deque()
        self._delivered = 0  # of the first fragment's appends
        self._dispatch = AckDispatch(loop, self._step)

    def send(self, pending: PendingFragment) -> None:
        """Resolve the appends of a fragment, after those of fragments before it."""
        self._fragments.append(pending)
        self._dispatch.begin()

    def _step(self) -> bool:
        if self._fragments[0].resolve(self._delivered, AT_ONCE):
            self._fragments.popleft()
            self._delivered = 0
        else:
            self._delivered += AT_ONCE
        return bool(self._fragments)
