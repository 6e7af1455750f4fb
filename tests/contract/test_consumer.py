"""A consumer: a reader that keeps its place, and ends when another one has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.contract.faces import Face, on
from tests.contract.reading import values
from tests.local import turns
from walstore import (
    Consumer,
    CursorMovedError,
)

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


@on("opened", "replicated", "served")
async def test_a_consumer_goes_on_where_it_ended(log: Any) -> None:
    await log.append_many([b"%d" % n for n in range(10)])
    async with log.consumer("c", follow=False, auto_commit_seconds=None) as consumer:
        batch = await consumer.fetch(max_records=4)
        assert list(batch.values) == [b"0", b"1", b"2", b"3"]
        await consumer.commit()
    async with log.consumer("c", follow=False) as consumer:
        assert [record.value async for record in consumer] == [b"%d" % n for n in range(4, 10)]
    async with log.consumer("c", follow=False) as consumer:
        assert [record async for record in consumer] == []


@on("opened", "replicated", "served")
async def test_a_consumer_knows_its_lag_and_what_is_pending(log: Any) -> None:
    await log.append_many([b"%d" % n for n in range(10)])
    async with log.consumer("c") as consumer:
        assert (consumer.lag, consumer.pending) == (10, 0)
        batch = await consumer.fetch(max_records=4)
        assert (consumer.lag, consumer.pending) == (6, len(batch))
        await anext(consumer)
        assert (consumer.lag, consumer.pending) == (5, 1)
    async with log.consumer("d", concurrency=3) as consumer:
        records = [await anext(consumer) for _ in range(3)]
        consumer.done(records[1])
        assert (consumer.lag, consumer.pending) == (7, 2)


@on("opened", "replicated", "served")
async def test_a_consumer_with_its_output_in_the_log(log: Any) -> None:
    await log.append_many([b"1", b"2"], stream="in")
    async with log.consumer("sum", stream="in", follow=False, output=log) as consumer:
        total = 0
        async for record in consumer:
            async with consumer.transaction() as txn:
                total += int(record.value)
                await txn.append(b"%d" % total, stream="out")
    assert await values(log, stream="out") == [b"1", b"3"]


@on("opened", "replicated", "served")
async def test_a_consumer_whose_commit_was_cancelled_goes_on(log: Any) -> None:
    """Whether the commit is in the log or not: each record has its output once, in order."""
    await log.append_many([b"%d" % number for number in range(60)], stream="in")
    async with log.consumer("copy", stream="in", follow=False, output=log) as consumer:

        async def copy() -> None:
            async for record in consumer:
                async with consumer.transaction() as txn:
                    await txn.append(record.value, stream="out")

        for number in range(60):
            copying = asyncio.create_task(copy())
            await turns(number)
            copying.cancel()
            await asyncio.wait((copying,))
        await copy()
    assert await values(log, stream="out") == [b"%d" % number for number in range(60)]
