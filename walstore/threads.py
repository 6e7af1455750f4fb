"""Threads that do a log's blocking work, so that the event loop never does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from walstore.errors import WalClosedError

_T = TypeVar("_T")


class Worker:
    """A few dedicated threads. With one thread, calls run in the order in which they were made."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"walstore-{name}")

    async def run(self, call: Callable[..., _T], *args: object) -> _T:
        """Run ``call(*args)`` on a thread and return its result.

        Cancelling the caller does not interrupt the call; it finishes unobserved. WalClosedError after
        :meth:`close`.
        """
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._executor, call, *args)
        except RuntimeError:  # closed under a reader that was between two calls
            raise WalClosedError("the log is closed") from None
        return await running

    async def run_owned(self, call: Callable[[], _T], discard: Callable[[_T], object]) -> _T:
        """Run ``call`` for a result that must be released: nobody else can.

        If the caller is cancelled, waits for the call to end and runs ``discard(result)`` on the
        thread before it goes. For workers with one thread.
        """
        loop = asyncio.get_running_loop()
        made: list[_T] = []
        calling = loop.run_in_executor(self._executor, lambda: made.append(call()))
        try:
            await asyncio.shield(calling)
        except asyncio.CancelledError:
            discarding = loop.run_in_executor(
                self._executor, lambda: [discard(found) for found in made]
            )
            await asyncio.wait((calling, discarding))
            for future in (calling, discarding):
                if not future.cancelled():
                    future.exception()  # nobody is left to be told
            raise
        return made[0]

    def close(self) -> None:
        """Let calls under way finish and end the threads; does not wait for them."""
        self._executor.shutdown(wait=False)
