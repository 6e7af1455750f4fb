"""Waiting for what other tasks do, without sleeping."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

RUNS_OUT_SECONDS: Final = 0.2
"""A limit that is to run out: what it is for cannot come before, however slow the machine is."""

_LIMIT_SECONDS: Final = 60
_TURNS: Final = 10
_PAUSE_SECONDS: Final = 0.001
"""Without it, the event loop takes the interpreter from the threads that are to change something."""


async def until(condition: Callable[[], bool], *, seconds: float = _LIMIT_SECONDS) -> None:
    """Let other tasks and threads run until ``condition()`` holds; TimeoutError if it never does.

    After some turns of the event loop it looks once a millisecond, and leaves the interpreter to others.
    """
    async with asyncio.timeout(seconds):
        for _ in range(_TURNS):
            if condition():
                return
            await asyncio.sleep(0)
        while not condition():  # noqa: ASYNC110 - the condition is about other threads, too
            await asyncio.sleep(_PAUSE_SECONDS)


def wait_until(condition: Callable[[], bool], *, seconds: float = _LIMIT_SECONDS) -> None:
    """Wait for what threads and processes do, where no event loop runs; TimeoutError if it never comes."""
    pause = threading.Event()
    for _ in range(int(seconds / _PAUSE_SECONDS)):
        if condition():
            return
        pause.wait(_PAUSE_SECONDS)
    raise TimeoutError
