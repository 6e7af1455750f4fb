"""wait_closed: who waits gets the error; if nobody does, it is logged, and asyncio has nothing to say."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from tests.local import turns
from walstore.core.runtime.resource import wait_closed


async def _fail(when: asyncio.Event) -> None:
    await when.wait()
    raise OSError("the disk is full")


async def test_who_waits_gets_the_error(caplog: pytest.LogCaptureFixture) -> None:
    when = asyncio.Event()
    closing = asyncio.create_task(_fail(when))
    when.set()
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is full"):
            await wait_closed(closing)
    assert caplog.records == []


async def test_a_cancelled_caller_does_not_stop_it_and_the_error_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    when = asyncio.Event()
    closing = asyncio.create_task(_fail(when))
    waiting = asyncio.create_task(wait_closed(closing))
    await turns()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (waiting.cancelled(), closing.done()) == (True, False)
    when.set()
    await asyncio.wait([closing])
    await turns()
    (said,) = caplog.records
    assert "nobody waited for it: the disk is full" in said.message
    del closing
    gc.collect()
    await turns()
    assert complaints == []


async def test_a_closing_that_succeeds_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    when = asyncio.Event()

    async def close() -> None:
        await when.wait()

    closing = asyncio.create_task(close())
    waiting = asyncio.create_task(wait_closed(closing))
    await turns()
    waiting.cancel()
    await asyncio.wait([waiting])
    when.set()
    await wait_closed(closing)
    assert caplog.records == []
