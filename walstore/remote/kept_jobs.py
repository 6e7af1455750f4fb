"""KeptJobs: jobs that were leased to a member whose fetch was cancelled while they were under way.

The next fetch of the member gets them. If none comes they are given back after a moment, and were no
delivery: nobody has seen them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from walstore.errors import WalError
from walstore.records import Record
from walstore.remote.client import Answer

Jobs = list[tuple[Record, int]]
_KEEP_SECONDS: Final = 1.0
"""How long they wait for the next fetch, at most; others may be waiting for them."""


class KeptJobs:
    """What became of the cancelled fetches of one member. Belongs to its event loop."""

    def __init__(
        self,
        unpack: Callable[[Answer], Jobs],
        give_back: Callable[[Sequence[tuple[Record, int]]], None],
        *,
        lease_seconds: float,
    ) -> None:
        """``unpack`` an answer to jobs; ``give_back`` those that nobody fetched."""
        self._unpack = unpack
        self._give_back = give_back
        self._keep_seconds = min(_KEEP_SECONDS, lease_seconds / 2)
        self._unanswered: set[asyncio.Future[Answer]] = set()
        self._jobs: Jobs = []
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, answer: asyncio.Future[Answer]) -> None:
        """Keep the jobs of a fetch that was cancelled, if its answer has some."""
        if answer.done():
            self._answered(answer)
        else:
            self._unanswered.add(answer)
            answer.add_done_callback(self._answered)

    async def take(self, most: int, max_wait: float | None) -> Jobs:
        """Return up to ``most`` of them; waits for the answers that are due, as they come at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_wait):
                while self._unanswered and not self._jobs:
                    await asyncio.wait(self._unanswered, return_when=asyncio.FIRST_COMPLETED)
        taken, self._jobs = self._jobs[:most], self._jobs[most:]
        return taken

    async def end(self) -> None:
        """Give back what nobody fetched, also what is under way."""
        if self._unanswered:
            await asyncio.wait(self._unanswered)
        self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        jobs, self._jobs = self._jobs, []
        if jobs:
            self._give_back(jobs)

    def _answered(self, answer: asyncio.Future[Answer]) -> None:
        self._unanswered.discard(answer)
        if answer.cancelled() or answer.exception() is not None:
            return  # it leased nothing, or nobody can know
        with contextlib.suppress(WalError):  # an answer that is none
            self._jobs += self._unpack(answer.result())
        if self._jobs and self._timer is None:
            loop = answer.get_loop()
            self._timer = loop.call_later(self._keep_seconds, self._release)
