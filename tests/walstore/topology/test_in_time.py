"""A limit of time on an injected clock."""

from __future__ import annotations

import asyncio

import pytest

from walstore.testing import ManualClock
from walstore.topology.in_time import within


async def _return(value: object) -> object:
    return value


async def test_a_call_in_time(clock: ManualClock) -> None:
    assert await within(clock, 1, _return(None)) is None
    with pytest.raises(KeyError):
        await within(clock, 1, _raise(KeyError("k")))
    assert clock.sleepers == 0


async def test_a_call_that_takes_too_long(clock: ManualClock) -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async with asyncio.TaskGroup() as group:
        late = group.create_task(_late(within(clock, 1, wait())))
        await clock.wait_for_sleepers()
        clock.advance(0.9)
        assert not late.done()
        clock.advance(0.1)
    assert ended == ["ended"]
    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(within(clock, 1, wait()))
        await clock.wait_for_sleepers()
        cancelled.cancel()
    assert ended == ["ended"] * 2
    assert clock.sleepers == 0


async def test_a_result_at_the_last_moment_counts(clock: ManualClock) -> None:
    event = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(within(clock, 1, event.wait()))
        await clock.wait_for_sleepers()
        event.set()
        clock.advance(1)
        assert await call


async def _raise(error: Exception) -> None:
    raise error


async def _late(call) -> None:
    with pytest.raises(TimeoutError):
        await call
