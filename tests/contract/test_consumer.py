"""A consumer: a reader that keeps its place, and ends when another one has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.cases import case
from tests.contract.faces import Face, on
from tests.contract.reading import values
from tests.local import turns
from tests.waiting import until
from walstore import (
    Consumer,
    CursorMovedError,
    InvalidSettingsError,
    WalClosedError,
)

Step = Callable[[Consumer[Any]], Awaitable[Any]]
WITH_CONSUMERS = ("opened", "replicated", "served", "readonly")

NEXT: dict[str, Step] = {
    "anext": lambda consumer: anext(consumer),
    "fetch": lambda consumer: consumer.fetch(max_wait_seconds=0),
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
    await log.flush()  # commits of cancelled ones may be accepted and not yet durable
    assert await values(log, stream="out") == [b"%d" % number for number in range(60)]


# -- what counts as processed ------------------------------------------------------------------


class BodyError(Exception):
    """What a consumer's user raises."""


@pytest.fixture
async def twenty(face: Face) -> Face:
    """A log of the records 1 to 20, in batches of five."""
    for start in range(1, 21, 5):
        await face.writer.append_many([b"%d" % at for at in range(start, start + 5)])
    return face


def consumer_of(face: Face, name: str = "c", *, follow: bool = False, **options: Any) -> Any:
    """Return a consumer that stops at the end unless told to follow."""
    return face.log.consumer(name, follow=follow, **options)


async def position(face: Face) -> int | None:
    """Return where the cursor is, as the log says."""
    return {info.name: info.position for info in await face.log.cursors()}.get("c")


@on(*WITH_CONSUMERS)
async def test_all_that_was_read_is_committed_at_the_end(twenty: Face) -> None:
    async with consumer_of(twenty) as consumer:
        assert [int(record.value) async for record in consumer] == list(range(1, 21))
        assert consumer.position == 21
    assert await position(twenty) == 21
    async with consumer_of(twenty) as consumer:
        assert [record async for record in consumer] == []


@on(*WITH_CONSUMERS)
async def test_it_goes_on_where_the_last_one_ended(twenty: Face) -> None:
    async with consumer_of(twenty) as consumer:
        async for record in consumer:
            if record.offset == 7:
                break
    assert await position(twenty) == 8, "the block was left without an exception"
    async with consumer_of(twenty) as consumer:
        assert (await anext(consumer)).offset == 8


@on(*WITH_CONSUMERS)
async def test_an_exception_leaves_the_record_to_be_read_again(twenty: Face) -> None:
    with pytest.raises(BodyError):
        async with consumer_of(twenty) as consumer:
            async for record in consumer:
                if record.offset == 7:
                    raise BodyError
    assert await position(twenty) == 7
    async with consumer_of(twenty) as consumer:
        assert (await anext(consumer)).offset == 7


@on(*WITH_CONSUMERS)
async def test_an_exception_leaves_the_batch_to_be_read_again(twenty: Face) -> None:
    with pytest.raises(BodyError):
        async with consumer_of(twenty) as consumer:
            async for batch in consumer.batches():
                if batch.start == 11:
                    raise BodyError
    assert await position(twenty) == 11
    async with consumer_of(twenty) as consumer:
        assert [b.start async for b in consumer.batches()] == [11, 16]
    assert await position(twenty) == 21


@on(*WITH_CONSUMERS)
async def test_an_exception_leaves_what_was_fetched_to_be_read_again(twenty: Face) -> None:
    with pytest.raises(BodyError):
        async with consumer_of(twenty) as consumer:
            assert len(await consumer.fetch(max_records=3)) == 3
            assert len(await consumer.fetch(max_records=3)) == 3
            raise BodyError
    assert await position(twenty) == 4
    async with consumer_of(twenty) as consumer:
        while batch := await consumer.fetch(max_records=7):
            last = batch.limit
    assert await position(twenty) == last == 21


@on(*WITH_CONSUMERS)
async def test_a_cancelled_body(twenty: Face) -> None:
    began = asyncio.Event()

    async def body() -> None:
        async with consumer_of(twenty) as consumer:
            async for record in consumer:
                if record.offset == 5:
                    began.set()
                    await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await began.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await position(twenty) == 5


@on(*WITH_CONSUMERS)
async def test_a_cancelled_wait_for_more_has_processed_what_came_before(twenty: Face) -> None:
    seen: list[int] = []

    async def consume() -> None:
        async with consumer_of(twenty, follow=True) as consumer:
            async for record in consumer:
                seen.append(record.offset)

    task = asyncio.create_task(consume())
    await until(lambda: len(seen) == 20)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await position(twenty) == 21


@on(*WITH_CONSUMERS)
async def test_the_ways_of_reading_mix(twenty: Face) -> None:
    async with consumer_of(twenty) as consumer:
        assert (await anext(consumer)).offset == 1
        assert (await consumer.fetch(max_records=2)).start == 2
        assert (await anext(consumer.batches())).start == 4
        assert (await anext(consumer)).offset == 6


@on(*WITH_CONSUMERS)
async def test_the_start_of_a_new_one(twenty: Face) -> None:
    async with consumer_of(twenty, "a", start=10) as consumer:
        assert (await anext(consumer)).offset == 10
    async with consumer_of(twenty, "b", start="latest") as consumer:
        assert consumer.position == 21
    async with consumer_of(twenty, "a", start=1) as consumer:
        assert (await anext(consumer)).offset == 11


@on(*WITH_CONSUMERS)
async def test_one_stream_only(twenty: Face) -> None:
    await twenty.writer.append_many([b"x", b"y"], stream="eu")
    await twenty.writer.append(b"other")
    async with consumer_of(twenty, stream="eu") as consumer:
        assert [record.value async for record in consumer] == [b"x", b"y"]
    assert await position(twenty) == 24, "what was passed over is done with"


@on(*WITH_CONSUMERS)
async def test_by_hand(twenty: Face) -> None:
    async with consumer_of(twenty, auto_commit_seconds=None) as consumer:
        async for record in consumer:
            if record.offset == 5:
                await consumer.commit()
            if record.offset == 10:
                await consumer.commit(9)
    assert await position(twenty) == 9
    with pytest.raises(BodyError):
        async with consumer_of(twenty, auto_commit_seconds=None) as consumer:
            await consumer.fetch(max_records=3)
            await consumer.commit()
            await consumer.fetch(max_records=3)
            raise BodyError
    assert await position(twenty) == 12


@on(*WITH_CONSUMERS)
async def test_commit_says_that_what_was_handed_out_is_processed(twenty: Face) -> None:
    with pytest.raises(BodyError):
        async with consumer_of(twenty) as consumer:
            async for record in consumer:
                if record.offset == 5:
                    await consumer.commit()
                    raise BodyError
    assert await position(twenty) == 6


@on(*WITH_CONSUMERS)
async def test_seeking_back_moves_the_cursor_back(twenty: Face) -> None:
    async with consumer_of(twenty) as consumer:
        async for _ in consumer:
            pass
        await consumer.commit()
        with pytest.raises(ValueError, match="rewind"):
            await consumer.commit(3)
        consumer.seek(3)
        assert consumer.position == 3
        await consumer.commit()
        assert await position(twenty) == 3
        assert (await anext(consumer)).offset == 3
    assert await position(twenty) == 4


@on(*WITH_CONSUMERS)
async def test_a_cursor_moved_by_another_shows_at_the_end(twenty: Face) -> None:
    with pytest.raises(CursorMovedError):
        async with consumer_of(twenty) as consumer:
            await consumer.fetch()
            await (await twenty.log.cursor("c")).commit(15)
    with pytest.raises(BodyError):
        async with consumer_of(twenty) as consumer:
            await consumer.fetch()
            await (await twenty.log.cursor("c")).commit(17)
            raise BodyError


CALLS: dict[str, Step] = {
    **NEXT,
    "commit to": lambda consumer: consumer.commit(9),
    "seek": lambda consumer: consumer.seek(1),
    "run": lambda consumer: consumer.run(lambda _record: asyncio.sleep(0)),
}


@pytest.mark.parametrize("error", [None, BodyError])
@on(*WITH_CONSUMERS)
async def test_it_refuses_all_calls_after_its_block_and_still_says_where_it_was(
    twenty: Face, error: type[Exception] | None
) -> None:
    consumer = consumer_of(twenty)
    with suppress(BodyError):
        async with consumer:
            batches = consumer.batches()
            await consumer.fetch(max_records=4)
            await consumer.commit()
            if error is not None:
                raise error
    for name, call in CALLS.items():
        with case(name), pytest.raises(WalClosedError, match="ended"):
            await call(consumer)
    with pytest.raises(WalClosedError, match="ended"):
        await anext(batches)
    assert consumer.position == consumer.committed == await position(twenty)
    assert (consumer.lag, consumer.pending) == (21 - consumer.position, 0)


@on(*WITH_CONSUMERS)
async def test_a_fetch_that_waits_when_its_block_ends_delivers_nothing(twenty: Face) -> None:
    async with consumer_of(twenty, follow=True) as consumer:
        await consumer.fetch(max_records=100)
        waiting = asyncio.ensure_future(consumer.fetch())
        await asyncio.sleep(0)
    await twenty.writer.append(b"late")
    with pytest.raises(WalClosedError, match="ended"):
        await waiting
    async with consumer_of(twenty) as consumer:
        assert [record.value for record in await consumer.fetch()] == [b"late"]


@on(*WITH_CONSUMERS)
async def test_one_that_could_not_continue_says_so_after_its_block_too(twenty: Face) -> None:
    consumer = consumer_of(twenty)
    with pytest.raises(CursorMovedError):
        async with consumer:
            await (await twenty.log.cursor("c")).commit(15)
            with pytest.raises(CursorMovedError):
                await consumer.commit(3)
    with pytest.raises(CursorMovedError):
        await consumer.fetch()


@on("opened", "replicated", "served")
async def test_a_transaction_ends_with_the_block_of_its_consumer(twenty: Face) -> None:
    log = twenty.log
    consumer = consumer_of(twenty, follow=False, output=log)
    async with consumer:
        await anext(consumer)
        transaction = consumer.transaction()
        inner = await transaction.__aenter__()
        await inner.append(b"output")
    with pytest.raises(WalClosedError, match="ended"):
        await transaction.__aexit__(None, None, None)
    with pytest.raises(WalClosedError, match="ended"):
        async with consumer.transaction():
            raise AssertionError
    assert await values(log, 21) == []


@on(*WITH_CONSUMERS)
async def test_misuse(twenty: Face) -> None:
    consumer = consumer_of(twenty)
    assert repr(consumer) == "<Consumer 'c' not open>"
    with pytest.raises(WalClosedError, match="async with"):
        await anext(consumer)
    with pytest.raises(WalClosedError, match="async with"):
        _ = consumer.committed
    async with consumer:
        assert repr(consumer) == "<Consumer 'c' at 1>"
        with pytest.raises(RuntimeError, match="once"):
            await consumer.__aenter__()
        with pytest.raises(InvalidSettingsError, match="output"):
            consumer.transaction()
    for seconds in (0, -1, float("nan")):
        with pytest.raises(InvalidSettingsError):
            consumer_of(twenty, auto_commit_seconds=seconds)
