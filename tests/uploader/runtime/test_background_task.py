"""One task beside publishing: begun, waited for, taken, given up."""

from __future__ import annotations

import asyncio

from uploader.runtime.background_task import BackgroundTask


async def test_what_it_returned_is_taken_once() -> None:
    beside = BackgroundTask[int]()
    assert not beside.has_task
    assert beside.take() is None
    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        return 7

    beside.start(work(), "work")
    assert beside.is_busy
    assert beside.take() is None
    gate.set()
    await beside.wait()
    assert (beside.is_busy, beside.has_task) == (False, True)
    done = beside.take()
    assert done is not None
    assert done.result() == 7
    assert not beside.has_task
    await beside.wait()


async def test_closing_gives_up_what_is_under_way() -> None:
    beside = BackgroundTask[None]()
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    beside.start(work(), "work")
    await asyncio.sleep(0)
    await beside.aclose()
    assert ended.is_set()
    await beside.aclose()


async def test_closing_after_a_failure_says_nothing() -> None:
    beside = BackgroundTask[None]()

    async def work() -> None:
        raise ValueError

    beside.start(work(), "work")
    await beside.wait()
    await beside.aclose()
    assert not beside.has_task
