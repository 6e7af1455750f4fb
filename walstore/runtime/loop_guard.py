"""LoopGuard: refuses every thread and event loop except those that opened a log or a store."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from threading import get_ident
from typing import Final

from walstore.errors import WrongLoopError


class LoopGuard:
    """Remembers the thread and the event loop of an object: those that run when this is made."""

    __slots__ = ("_loop", "_what", "thread")

    def __init__(self, what: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """``what`` names the object in errors. ``loop`` defaults to the running event loop."""
        self._what: Final = what
        self._loop: Final = loop or asyncio.get_running_loop()
        self.thread: Final = get_ident()
        """Identity of the thread."""

    @property
    def is_home(self) -> bool:
        """Whether the caller runs in its event loop, or in no event loop and in the thread that opened it.

        An event loop runs in one thread at a time, but may later run in another.
        """
        running = _get_running_loop()
        if running is None:
            return get_ident() == self.thread and not self._loop.is_closed()
        return running is self._loop

    def check(self) -> None:
        """Raise WrongLoopError for a caller from another thread or event loop."""
        if not self.is_home:
            raise WrongLoopError(
                f"the {self._what} belongs to the event loop and thread that opened it; nothing was written: "
                "from another thread use asyncio.run_coroutine_threadsafe(call(...), its loop)"
            )
