"""Driving a coroutine to one of its suspensions and cancelling it there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any


class Interrupted:
    """Awaits a coroutine and cancels the task at its ``nth`` suspension.

    At once, while it waits; with ``late`` in the moment in which what it waits for has come.
    """

    def __init__(self, call: Coroutine[Any, Any, Any], nth: int, *, late: bool = False) -> None:
        self._call = call
        self._nth = nth
        self._late = late
        self.suspensions = 0

    @property
    def is_over(self) -> bool:
        """Whether the coroutine ended before its n-th suspension."""
        return self.suspensions < self._nth

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._call.send, None)
        while True:
            try:
                waiting = step()
            except StopIteration as ended:
                return ended.value
            self.suspensions += 1
            if self.suspensions == self._nth:
                self._cancel(waiting)
            try:
                got = yield waiting
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
                step = partial(self._call.throw, error)
            else:
                step = partial(self._call.send, got)

    def _cancel(self, waiting: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._late and waiting is not None:
            waiting.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


async def finish(call: Awaitable[Any]) -> Any:
    """Await anything awaitable, for what becomes a task."""
    return await call
