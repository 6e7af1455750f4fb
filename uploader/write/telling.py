"""Telling: tells callers that their appends are committed, some at a time.

A commit may be of thousands of appends. Waking them all at once would keep the event loop busy for many
milliseconds, in which the next change of the root, which all that follow wait for, could not begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 64
"""Appends told in one turn of the event loop."""


class Telling:
    """Takes steps until there is nothing left to tell. Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, step: Callable[[], bool]) -> None:
        """``step`` tells up to ``AT_ONCE`` appends, and returns whether more are to be told."""
        self._loop = loop
        self._take_step = step
        self._is_running = False

    def begin(self) -> None:
        """Go on until there is nothing left; from the next turn of the event loop on."""
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
