"""A consumer: a reader that keeps its place, and ends when another one has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.contract.faces import Face, on
from walstore import Consumer, CursorMovedError

Step = Callable[[Consumer[Any]], Awaitable[Any]]
WITH_CONSUMERS = ("opened", "replicated", "served", "readonly")

NEXT: dict[str, Step] = {
    "anext": lambda consumer: anext(consumer),
    "fetch": lambda consumer: consumer.fetch(max_wait=0),
    "batches": lambda consumer: anext(consumer.batches()),
    "commit": lambda consumer: consumer.commit(),
}


@pytest.mark.parametrize("step", NEXT)
@on(*WITH_CONSUMERS)
async def test_it_delivers_nothing_after_its_cursor_was_moved(face: Face, step: str) -> None:
    await face.writer.append_many([b"%d" % n for n in range(10)])
    cursor = await face.log.cursor("c")
    with pytest.raises(CursorMovedError):
        async with face.log.consumer("c", auto_commit_seconds=None) as consumer:
            await anext(consumer)
            await cursor.commit(5)
            with pytest.raises(CursorMovedError):
                await consumer.commit()
            with pytest.raises(CursorMovedError):
                await NEXT[step](consumer)
    assert await cursor.refresh() == 5


@pytest.mark.parametrize("step", ["anext", "fetch", "batches"])
@on(*WITH_CONSUMERS)
async def test_a_call_that_waits_for_a_record_delivers_none_after_its_cursor_was_moved(
    face: Face, step: str
) -> None:
    steps = {**NEXT, "fetch": lambda consumer: consumer.fetch()}
    await face.writer.append(b"1")
    cursor = await face.log.cursor("c")
    with pytest.raises(CursorMovedError):
        async with face.log.consumer("c", auto_commit_seconds=None) as consumer:
            await consumer.fetch()
            waiting = asyncio.ensure_future(steps[step](consumer))
            await asyncio.sleep(0)
            await cursor.commit(2)
            with pytest.raises(CursorMovedError):
                await consumer.commit(2)
            await face.writer.append(b"2")
            with pytest.raises(CursorMovedError):
                await waiting
