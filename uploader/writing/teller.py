"""Teller: tells appends that they are committed, some at a time.

A commit may be of thousands of appends. Waking them all at once would keep the event loop busy for many
milliseconds, in which the next change of the root, which all that follow wait for, could not begin.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from uploader.writing.parcel import Parcel

AT_ONCE: Final = 64
"""Appends told in one turn of the event loop."""
HOLD_SECONDS: Final = 0.005
"""Longest time for which telling waits for something more urgent."""


class Teller:
    """Resolves the appends of committed parcels, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parcels: deque[Parcel] = deque()
        self._told = 0  # of the first parcel's appends
        self._holds = 0
        self._waiting: asyncio.TimerHandle | None = None  # for a hold to end
        self._may_wait = True  # not yet since there was nothing to tell

    def tell(self, parcel: Parcel) -> None:
        """Tell the appends of a parcel, behind those of parcels before it."""
        self._parcels.append(parcel)
        if len(self._parcels) == 1:
            self._loop.call_soon(self._step)

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Let telling wait until what is returned is called, or the block ends; ``HOLD_SECONDS`` at most.

        Waking up thousands of callers would keep a thread that does something urgent from the interpreter.
        What has waited for one hold does not wait for another.
        """
        self._holds += 1
        is_over = False

        def let_go() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._holds -= 1
                self._go_on()

        try:
            yield let_go
        finally:
            let_go()

    def _go_on(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting, self._may_wait = None, False
            self._step()

    def _step(self) -> None:
        if self._holds and self._may_wait:
            self._waiting = self._loop.call_later(HOLD_SECONDS, self._go_on)
            return
        if self._parcels[0].resolve(self._told, AT_ONCE):
            self._parcels.popleft()
            self._told = 0
        else:
            self._told += AT_ONCE
        if self._parcels:
            self._loop.call_soon(self._step)
        else:
            self._may_wait = True
