"""Confirmations: rounds of questions whether something still holds, each shared by all that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.tasks import start_task
from walstore.errors import WalClosedError, WalError


class Confirmations:
    """Belongs to the event loop."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        """``ask`` returns once it is confirmed, or raises why it is not."""
        self._ask = ask
        self._running: asyncio.Task[None] | None = None
        # Begins when the running one ends. Whoever asks after that one began waits for this.
        self._next: asyncio.Task[None] | None = None
        self._is_closed = False

    async def wait(self) -> None:
        """Return after a round that began since the call; raise what it raised. May be cancelled.

        WalClosedError if :meth:`aclose` ends the round, or has been called.
        """
        if self._is_closed:
            raise _closed()
        if self._next is None:
            self._next = start_task(self._round(self._running), name="walstore confirmation")
        task = self._next
        await asyncio.wait((task,))
        if task.cancelled():  # by aclose(): nobody cancelled the caller
            raise _closed()
        try:
            task.result()
        except WalError as error:
            raise copy_error(error) from None

    async def aclose(self) -> None:
        """End all rounds, for good."""
        self._is_closed = True
        rounds = [task for task in (self._running, self._next) if task is not None]
        for task in rounds:  # all at once: the end of one would let the next one begin
            task.cancel()
        if rounds:
            await asyncio.wait(rounds)

    async def _round(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        self._running, self._next = self._next, None
        await self._ask()


def _closed() -> WalClosedError:
    return WalClosedError("the log is closed, so nothing confirms what it knows")
