"""A limit of time on an injected clock."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from walstore.core.runtime.time_limit import within
from walstore.testing import ManualClock


async def _return(value: object) -> object:
    return value


async def test_a_call_in_time(clock: ManualClock) -> None:
    assert await within(1, _return(None), sleep=clock.sleep) is None
    with pytest.raises(KeyError):
        await within(1, _raise(KeyError("k")), sleep=clock.sleep)
    assert clock.sleepers == 0


async def test_a_call_that_takes_too_long(clock: ManualClock) -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async with asyncio.TaskGroup() as group:
        late = group.create_task(_late(within(1, wait(), sleep=clock.sleep)))
        await clock.wait_for_sleepers()
        clock.advance(0.9)
        assert not late.done()
        clock.advance(0.1)
    assert ended == ["ended"]
    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(within(1, wait(), sleep=clock.sleep))
        await clock.wait_for_sleepers()
        cancelled.cancel()
    assert ended == ["ended"] * 2
    assert clock.sleepers == 0


async def test_a_result_at_the_last_moment_counts(clock: ManualClock) -> None:
    event = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(within(1, event.wait(), sleep=clock.sleep))
        await clock.wait_for_sleepers()
        event.set()
        clock.advance(1)
        assert await call


@pytest.mark.parametrize("is_failing", [False, True])
async def test_a_cancelled_caller_is_cancelled_however_its_call_ends(
    clock: ManualClock, is_failing: bool
) -> None:
    """Also if it is cancelled when its call has just failed: a loop that goes on after an error must end."""
    loop = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    failing = asyncio.Event()

    async def fail() -> None:
        try:
            await failing.wait()
        finally:
            await asyncio.sleep(0)
            raise KeyError

    caller = asyncio.create_task(within(1, fail(), sleep=clock.sleep))
    await clock.wait_for_sleepers()
    if is_failing:
        failing.set()
        await asyncio.sleep(0)
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert clock.sleepers == 0
    del caller
    gc.collect()
    assert told == []


async def test_the_error_of_a_clock_is_raised() -> None:
    async def sleep(seconds: float) -> None:
        raise ZeroDivisionError(seconds)

    with pytest.raises(ZeroDivisionError):
        await within(1, asyncio.Event().wait(), sleep=sleep)


def test_it_is_destroyed_with_its_loop() -> None:
    """If nobody closes what waits, nothing can be awaited any more, and nothing is reported."""

    async def begin() -> Coroutine[Any, Any, bool]:
        waiting = within(1, asyncio.Event().wait(), sleep=asyncio.sleep)
        waiting.send(None)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return waiting

    asyncio.run(begin()).close()


async def _raise(error: Exception) -> None:
    raise error


async def _late(call) -> None:
    with pytest.raises(TimeoutError):
        await call
