"""RunningRequests: the requests of one client that have no answer yet, each a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from walstore.core.runtime.tasks import start_task
from walstore.errors import OutcomeUnknownError
from walstore.net.wire.errors import pack_error
from walstore.net.wire.message import NOT_BEGUN, Kind, encode

_ENDED_AT_ONCE: Final = 256
"""How many requests of a lost connection are cancelled in one pass of the loop; each takes some 0.05 ms."""


class RunningRequests:
    """What runs for one client. Belongs to the event loop of the server."""

    def __init__(
        self,
        write: Callable[[Sequence[bytes | memoryview]], None],
        on_end: Callable[[int, int], None],
    ) -> None:
        """``write`` sends an answer; ``on_end`` gets the number and the cost of each request that is over."""
        self.wanted: dict[int, asyncio.Task[None]] = {}
        """Those that the client waits for, by number; one that is cancelled, or kept, is none of them."""
        self._write = write
        self._on_end = on_end
        self._untold: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many requests have no answer yet."""
        return len(self._untold)

    def start(
        self, number: int, work: Coroutine[Any, Any, None], cost: int, *, is_kept: bool = False
    ) -> None:
        """Run a request. One that is kept goes on without its client."""
        task = start_task(work)
        self._untold.add(task)
        # It forgets the task, and is the only callback of a request.
        task.add_done_callback(partial(self._ended, number, cost))
        if not is_kept:
            self.wanted[number] = task

    def _ended(self, number: int, cost: int, task: asyncio.Task[None]) -> None:
        """Settle a request. Not part of its task: one that is cancelled before its first step never runs.

        Each request has one answer. One that its client cancelled is no longer among the wanted.
        """
        self._untold.discard(task)
        is_wanted = self.wanted.get(number) is task
        if is_wanted:
            del self.wanted[number]
        if task.cancelled():  # because the server stops, or by the client
            self._write(encode(Kind.FAILED, number, NOT_BEGUN if is_wanted else _CANCELLED))
        self._on_end(number, cost)

    def cancel(self, number: int) -> None:
        """Cancel a request for its client, if it still runs."""
        task = self.wanted.pop(number, None)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Cancel the requests because the server stops: they are answered as not begun."""
        for task in list(self.wanted.values()):
            task.cancel()

    def abandon(self, close: Callable[[], Awaitable[None]] | None) -> None:
        """Cancel what a lost connection waited for, and then ``close()`` what it used."""
        self._cancel_some()
        if close is not None:
            task = start_task(self._cancel_rest(close))
            self._untold.add(task)
            task.add_done_callback(self._untold.discard)

    async def _cancel_rest(self, close: Callable[[], Awaitable[None]]) -> None:
        while self.wanted:
            await asyncio.sleep(0)  # noqa: TID251 - requests of others go on
            self._cancel_some()
        await close()

    def _cancel_some(self) -> None:
        """Cancel as many requests as one pass of the loop may end."""
        for number in list(islice(self.wanted, _ENDED_AT_ONCE)):
            self.wanted.pop(number).cancel()

    async def ended(self) -> None:
        """Return when nothing runs any more."""
        while pending := {*self.wanted.values(), *self._untold}:
            await asyncio.wait(pending)


_CANCELLED: Final = pack_error(OutcomeUnknownError("the client cancelled the request"))
