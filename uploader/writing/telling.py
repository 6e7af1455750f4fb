"""Telling: tells callers that their appends are committed, some at a time, and not while it would disturb.

A commit may be of thousands of appends. Waking them all at once would keep the event loop busy for many
milliseconds, in which the next change of the root, which all that follow wait for, could not begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

AT_ONCE: Final = 64
"""Appends told in one turn of the event loop."""
HOLD_SECONDS: Final = 0.005
"""Longest time for which telling waits for something more urgent."""

Hold = Callable[[], AbstractContextManager[Callable[[], None]]]
"""What :meth:`Telling.held` is."""


class Telling:
    """Takes steps until there is nothing left to tell. Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, step: Callable[[], bool]) -> None:
        """``step`` tells up to ``AT_ONCE`` appends, and returns whether more are to be told."""
        self._loop = loop
        self._take_step = step
        self._is_running = False
        self._holds = 0
        self._waiting: asyncio.TimerHandle | None = None  # for a hold to end
        self._may_wait = True  # not yet since it began

    def begin(self) -> None:
        """Go on until :meth:`step` says that it is done; from the next turn of the event loop on."""
        if not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._step)

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Wait until what is returned is called, or the block ends; ``HOLD_SECONDS`` at most.

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

    # -- inside ------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting, self._may_wait = None, False
            # Not at once: who lets go has something to do that is more urgent still.
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        if self._holds and self._may_wait:
            self._waiting = self._loop.call_later(HOLD_SECONDS, self._go_on)
        elif self._take_step():
            self._loop.call_soon(self._step)
        else:
            self._is_running, self._may_wait = False, True
