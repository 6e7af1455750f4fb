"""What a verb runs on: reading until somebody stops it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from walstore.cli.running import until_stopped


async def test_cancelling_ends_the_read_under_way():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield 1
        finally:
            ended.set()

    async def read() -> None:
        async for _ in until_stopped(source(), asyncio.Event()):
            pass

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert ended.is_set()
