"""Watermark: waiters are woken in order, told of failures, and forgotten when they give up."""

from __future__ import annotations

import asyncio
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local import turns
from walstore.core.runtime.watermark import Watermark


def make(value: int = 1) -> Watermark:
    return Watermark(value, asyncio.get_running_loop())


async def test_a_reached_target_does_not_wait() -> None:
    limit = make(5)
    await limit.wait(5)
    assert limit.waiter(4).done()
    assert not limit.has_waiters


async def test_waiters_wake_when_their_target_is_reached_and_not_before() -> None:
    limit = make()
    waiters = {target: limit.waiter(target) for target in (2, 5, 3, 9, 4)}  # not in order
    assert limit.has_waiters
    for value, reached in [(2, {2}), (4, {2, 3, 4}), (8, {2, 3, 4, 5}), (9, {2, 3, 4, 5, 9})]:
        limit.advance(value)
        assert {target for target, future in waiters.items() if future.done()} == reached
    assert not limit.has_waiters


async def test_the_limit_never_goes_back() -> None:
    limit = make(5)
    limit.advance(3)
    assert limit.value == 5


async def test_cancelling_one_waiter_harms_no_other() -> None:
    limit = make()
    tasks = [asyncio.create_task(limit.wait(2)) for _ in range(3)]
    await turns()
    tasks[1].cancel()
    await turns()
    limit.advance(2)
    await turns()
    assert [task.cancelled() for task in tasks] == [False, True, False]
    assert tasks[0].done()
    assert tasks[2].done()


async def test_failure_reaches_waiters_now_and_later_each_by_its_target() -> None:
    limit = make()
    now = limit.waiter(7)
    other = limit.waiter(6)
    limit.advance(3)
    limit.fail(lambda target: RuntimeError(f"no {target}"))
    for future, target in [(now, 7), (other, 6), (limit.waiter(9), 9)]:
        with pytest.raises(RuntimeError, match=f"no {target}"):
            await future
    with pytest.raises(RuntimeError, match="no 4"):
        await limit.wait(4)
    await limit.wait(3)  # what was reached stays reached
    assert not limit.has_waiters


async def test_a_failure_that_nobody_looks_at_leaves_no_complaint() -> None:
    limit = make()
    task = asyncio.create_task(limit.wait(2))
    await turns()
    limit.fail(lambda _: RuntimeError("nobody sees me"))
    task.cancel()
    limit.waiter(3)
    await turns()
    assert task.cancelled()
    del task
    gc.collect()  # conftest.py fails the test if asyncio logged a lost exception


async def test_polling_an_idle_limit_does_not_pile_up_waiters() -> None:
    limit = make()
    patient = [asyncio.create_task(limit.wait(target)) for target in (5, 2)]
    await turns()
    pollers: list[asyncio.Task[None]] = []
    for at in range(1000):  # four pollers whose polls overlap
        pollers.append(asyncio.create_task(limit.wait(2 + at % 3)))
        await turns(2)
        if len(pollers) == 4:
            pollers.pop(0).cancel()
    await turns()
    assert len(limit._queue) + len(limit._others) < 30
    limit.advance(5)
    await asyncio.gather(*patient, *pollers)


@given(st.lists(st.tuples(st.sampled_from(["wait", "advance", "cancel"]), st.integers(1, 20))))
def test_every_waiter_wakes_exactly_when_its_target_is_reached(steps) -> None:
    async def run() -> None:
        limit = make()
        waiters: list[tuple[int, asyncio.Task[None]]] = []
        cancelled = set()
        for what, number in steps:
            if what == "wait":
                waiters.append((number, asyncio.create_task(limit.wait(number))))
            elif what == "advance":
                limit.advance(number)
            elif number <= len(waiters) and not waiters[number - 1][1].done():
                waiters[number - 1][1].cancel()
                cancelled.add(number - 1)
            await turns(3)
            for at, (target, task) in enumerate(waiters):
                assert task.done() == (target <= limit.value or at in cancelled)
        for _, task in waiters:
            task.cancel()

    asyncio.run(run())
