"""The manual clock: time moves only when told, and wakes sleepers in order."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from walstore.core.ports import Clock
from walstore.testing import ManualClock


async def test_time_stands_still_until_advanced(clock: ManualClock) -> None:
    port: Clock = clock
    before_us = port.now_us()
    assert port.monotonic() == 0.0
    await port.sleep(0)
    assert (port.now_us(), port.monotonic()) == (before_us, 0.0)

    clock.advance(1.5)
    assert (port.now_us(), port.monotonic()) == (before_us + 1_500_000, 1.5)


def test_it_starts_at_a_datetime_or_microseconds() -> None:
    assert ManualClock(datetime(1970, 1, 2, tzinfo=UTC)).now_us() == 86_400_000_000
    assert ManualClock(7).now_us() == 7
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(datetime(1970, 1, 2))


async def test_many_small_steps_do_not_drift(clock: ManualClock) -> None:
    for _ in range(1000):
        clock.advance(0.1)
    assert clock.monotonic() == 100.0


async def test_sleepers_wake_in_the_order_of_their_deadlines(clock: ManualClock) -> None:
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("c", 3.0), ("a", 1.0), ("b1", 2.0), ("b2", 2.0)):
            group.create_task(sleeper(name, seconds))
        await clock.wait_for_sleepers(4)
        clock.advance(2.0)
        await clock.sleep(0)
        assert (woken, clock.sleepers) == (["a", "b1", "b2"], 1)
        clock.advance(0.999_999)
        await clock.sleep(0)
        assert clock.sleepers == 1
        clock.advance(0.000_001)
    assert woken == ["a", "b1", "b2", "c"]


async def test_a_periodic_task_wakes_once_for_each_advance(clock: ManualClock) -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while len(ticks) < 3:
            await clock.sleep(10)
            ticks.append(clock.monotonic())

    async with asyncio.TaskGroup() as group:
        group.create_task(tick())
        for _ in range(3):
            await clock.wait_for_sleepers()
            clock.advance(10)
    assert ticks == [10.0, 20.0, 30.0]


async def test_wait_for_sleepers_returns_at_once_or_when_enough_sleep(clock: ManualClock) -> None:
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(clock.wait_for_sleepers(2))
        group.create_task(clock.sleep(1))
        await clock.sleep(0)
        await clock.sleep(0)
        assert not waiter.done()
        group.create_task(clock.sleep(1))
        await waiter
        await clock.wait_for_sleepers(2)
        clock.advance(1)


async def test_a_cancelled_sleeper_is_forgotten(clock: ManualClock) -> None:
    task = asyncio.create_task(clock.sleep(1))
    await clock.wait_for_sleepers()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleepers == 0
    clock.advance(2)


async def test_the_wall_clock_can_go_back_alone(clock: ManualClock) -> None:
    before_us = clock.now_us()
    clock.advance(5)
    clock.shift_wall(-60)
    assert (clock.now_us(), clock.monotonic()) == (before_us - 55_000_000, 5.0)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_the_start_of_time_can_be_chosen() -> None:
    assert ManualClock(123).now_us() == 123
