"""Waiting for what other tasks do, without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    """Let other tasks and threads run until ``condition()`` holds; TimeoutError if it never does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is about other threads, too
            await asyncio.sleep(0)
