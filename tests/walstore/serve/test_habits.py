"""A served log has the habits of an opened one: each test runs on both."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cases import case
from walstore import (
    CursorMovedError,
    FencedError,
    InvalidSettingsError,
    NoneOf,
    OffsetMismatchError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    OneOf,
    RecordTooLargeError,
    RegisterMismatchError,
    SequenceMismatchError,
    StreamClosedError,
    WalClosedError,
)

HOUR = 3_600_000_000


async def values(log: Any, *place: Any, **options: Any) -> list[bytes]:
    async with log.reader(*place, follow=False, **options) as reader:
        return [record.value async for record in reader]


async def test_an_append_is_there_with_all_its_parts(log: Any) -> None:
    headers = {"a": b"1", "b": b""}
    assert await log.append(b"plain") == 1
    assert await log.append(b"", b"key", "eu", headers, 5) == 2
    assert await log.append(b"m", durability="memory") == 3
    await log.wait_durable(3)
    async with log.reader(follow=False) as reader:
        first, second, third = [record async for record in reader]
    assert (first.value, first.key, first.stream, dict(first.headers)) == (b"plain", None, None, {})
    assert (second.value, second.key, second.stream, dict(second.headers)) == (
        b"",
        b"key",
        "eu",
        headers,
    )
    assert second.timestamp_us >= first.timestamp_us  # an older time is raised
    assert third.offset == 3


@pytest.mark.parametrize(
    ("register", "wanted", "is_so"),
    [
        ("a", OneOf("1"), True),
        ("a", OneOf("2", "1"), True),
        ("a", OneOf("2", None), False),
        ("absent", OneOf("2", None), True),
        ("absent", OneOf("2"), False),
        ("a", NoneOf("2", "3"), True),
        ("a", NoneOf("2", "1"), False),
        ("a", NoneOf(None), True),
        ("absent", NoneOf(None), False),
        ("absent", NoneOf("1"), True),
        ("absent", NoneOf("1", None), False),
    ],
    ids=case,
)
async def test_a_register_is_one_of_several_values_or_none(
    log: Any, register: str, wanted: OneOf | NoneOf, is_so: bool
) -> None:
    await log.append_many([b"first"], update={"a": "1"})
    if is_so:
        assert await log.append_many([b"v"], expect={register: wanted, "a": "1"}) == range(2, 3)
        async with log.transaction(expect={register: wanted}, update={"b": "2"}):
            pass
        assert dict(log.registers) == {"a": "1", "b": "2"}
        return
    with pytest.raises(RegisterMismatchError, match=type(wanted).__name__) as caught:
        await log.append_many([b"v"], expect={"a": "1", register: wanted})
    assert (caught.value.outcome, dict(caught.value.actual)) == ("not_written", {"a": "1"})
    with pytest.raises(RegisterMismatchError):
        async with log.transaction(expect={register: wanted}, update={"b": "2"}):
            pass
    assert await values(log) == [b"first"]


async def test_choices_that_are_none(log: Any) -> None:
    for kind in (OneOf, NoneOf):
        for wrong, error in (((), ValueError), ((1,), TypeError), (("x" * 4097,), ValueError)):
            with case((kind, wrong[:0])), pytest.raises(error):
                kind(*wrong)
        with pytest.raises(TypeError):
            await log.append_many([b"v"], update={"a": kind("1")})
    assert OneOf("a", "b") == OneOf("b", "a") != NoneOf("a", "b")
    assert len({OneOf("a"), OneOf("a"), NoneOf("a")}) == 2


async def test_appends_of_many_tasks_keep_the_order_of_their_calls(log: Any) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(300):
            value = b"%d" % number
            if number % 7 == 3:
                tasks.append(group.create_task(log.append_many([value])))
            elif number % 7 == 5:
                tasks.append(group.create_task(log.append(value, durability="memory")))
            elif number % 7 == 6:
                tasks.append(group.create_task(log.append(value, key=b"k")))
            else:
                tasks.append(group.create_task(log.append(value)))
    offsets = [found if isinstance(found := task.result(), int) else found.start for task in tasks]
    assert offsets == list(range(1, 301))
    await log.flush()
    assert await values(log) == [b"%d" % number for number in range(300)]


async def test_more_than_the_log_has_room_for_waits_its_turn(log: Any) -> None:
    big = b"x" * 60_000  # the channel has 256 KiB
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(log.append(b"%02d" % n + big)) for n in range(40)]
        tasks.append(group.create_task(log.append(b"last")))
    assert [task.result() for task in tasks] == list(range(1, 42))
    assert [value[:2] for value in await values(log)] == [b"%02d" % n for n in range(40)] + [b"la"]


async def test_a_group_is_atomic_and_has_conditions(log: Any) -> None:
    assert await log.append_many([b"a", b"b"], update={"owner": "x"}, stream="s") == range(1, 3)
    assert log.registers == {"owner": "x"}
    with pytest.raises(OffsetMismatchError) as wrong_offset:
        await log.append_many([b"c"], expect_offset=1)
    assert (wrong_offset.value.expected, wrong_offset.value.actual) == (1, 3)
    with pytest.raises(RegisterMismatchError) as wrong_register:
        await log.append_many([b"c"], expect={"owner": None})
    assert wrong_register.value.expected == {"owner": None}
    assert wrong_register.value.actual == {"owner": "x"}
    assert wrong_register.value.outcome == "not_written"
    assert await log.append_many(iter([b"c"]), expect_offset=3, expect={"owner": "x"}) == range(
        3, 4
    )
    assert await values(log, stream="s") == [b"a", b"b"]


async def test_bad_arguments_are_refused_as_anywhere(log: Any) -> None:
    for error, bad in (
        (TypeError, lambda: log.append("text")),
        (TypeError, lambda: log.append(b"v", key="text")),
        (ValueError, lambda: log.append(b"v", stream="")),
        (ValueError, lambda: log.append(b"v", stream="x" * 257)),
        (TypeError, lambda: log.append(b"v", headers={"a": 1})),
        (ValueError, lambda: log.append(b"v", timestamp_us=-1)),
        (ValueError, lambda: log.append(b"v", timestamp_us=1 << 62)),
        (InvalidSettingsError, lambda: log.append(b"v", durability="diks")),
        (InvalidSettingsError, lambda: log.append(b"v", durability="cloud")),
        (InvalidSettingsError, lambda: log.append(b"v", durability="replicated")),
        (ValueError, lambda: log.append_many([])),
        (TypeError, lambda: log.append_many(b"bytes")),
        (TypeError, lambda: log.append_many([b"v"], update={"a": 1})),
        (RecordTooLargeError, lambda: log.append(b"x" * (64 << 10) + b"x")),
        (RecordTooLargeError, lambda: log.append_many([b"x" * 60_000] * 5)),
        (RecordTooLargeError, lambda: log.append_many([b"a", b"x" * (64 << 10) + b"x"])),
        (RecordTooLargeError, lambda: log.append_many([b"a", b"x" * (64 << 10)], key=b"k")),
        (RecordTooLargeError, lambda: log.producer("p").append_many([b"a", b"x" * (65 << 10)])),
        (OffsetNotWrittenError, lambda: log.wait_durable(99)),
        (OffsetNotWrittenError, lambda: log.trim(99)),
        (StreamClosedError, lambda: log.close_stream("none")),
        (ValueError, lambda: log.cursor("no/slash")),
        (ValueError, lambda: log.reader(datetime(2020, 1, 1)).fetch()),
    ):
        with case(error), pytest.raises(error):
            await bad()
    assert await log.append(b"still well") == 1


async def test_a_transaction_commits_whole_or_not_at_all(log: Any) -> None:
    async with log.transaction(expect={"r": None}, update={"r": "1"}) as txn:
        assert await txn.append(b"a") == 0
        assert await txn.append(b"b", key=b"k", stream="s", headers={"h": b"1"}) == 1
        txn.set_registers({"q": "2"})
        assert txn.span is None
    assert txn.span == range(1, 3)
    assert log.registers == {"r": "1", "q": "2"}
    with pytest.raises(ZeroDivisionError):
        async with log.transaction() as txn:
            await txn.append(b"lost")
            raise ZeroDivisionError
    async with log.transaction() as txn:
        await txn.append(b"lost")
        await txn.rollback()
        with pytest.raises(WalClosedError):
            await txn.append(b"more")
    with pytest.raises(RegisterMismatchError):
        async with log.transaction(expect={"r": "2"}) as txn:
            await txn.append(b"lost")
    async with log.transaction(update={"r": None}):
        pass
    assert log.registers == {"q": "2"}
    with pytest.raises(RuntimeError):
        await log.transaction().append(b"outside its block")
    async with log.transaction() as txn:
        with pytest.raises(RecordTooLargeError):
            await txn.append(b"x" * (64 << 10) + b"x")
        await txn.append(b"c")
    assert await values(log) == [b"a", b"b", b"c"]


async def test_a_transaction_larger_than_memory(log: Any) -> None:
    async with log.transaction() as txn:
        for number in range(100):
            await txn.append(b"%03d" % number + b"x" * 50_000)
    assert txn.span == range(1, 101)
    assert [value[:3] for value in await values(log)] == [b"%03d" % n for n in range(100)]


async def test_a_producer_appends_once(log: Any) -> None:
    producer = log.producer("p")
    assert await producer.append(b"a", sequence=1) == 1
    assert await producer.append(b"again", sequence=1) == 1
    with pytest.raises(SequenceMismatchError) as gap:
        await producer.append(b"c", sequence=3)
    assert (gap.value.expected, gap.value.actual) == (2, 3)
    assert await producer.append_many([b"b", b"c"], sequence=2) == range(2, 4)
    async with producer.transaction(sequence=2) as txn:
        await txn.append(b"dropped")
    assert (txn.span, txn.is_duplicate) == (range(2, 4), True)
    assert await log.producer("q").append(b"d") == 4
    assert await values(log) == [b"a", b"b", b"c", b"d"]


async def test_a_fence_shuts_the_former_owner_out(log: Any) -> None:
    first = await log.fence("one")
    await first.append(b"a")
    second = await log.fence("two")
    with pytest.raises(FencedError):
        await first.append(b"late")
    with pytest.raises(FencedError):
        async with first.transaction() as txn:
            await txn.append(b"late")
    assert not first.holds
    async with second.transaction(expect={"x": None}, update={"x": "1"}) as txn:
        await txn.append(b"b")
    with pytest.raises(RegisterMismatchError):
        async with second.transaction(expect={"x": None}) as txn:
            await txn.append(b"no")
    assert second.holds
    assert await values(log) == [b"a", b"b"]


async def test_a_reader_begins_and_ends_where_it_is_told(log: Any) -> None:
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    for number in range(1, 6):
        await log.append(b"%d" % number, timestamp_us=now_us - HOUR + number)
    assert await values(log, 3) == [b"3", b"4", b"5"]
    assert await values(log, 2, stop=4) == [b"2", b"3"]
    assert await values(log, "latest") == []
    moment = datetime.fromtimestamp((now_us - HOUR + 4) / 1e6, UTC) - timedelta(microseconds=1)
    assert len(await values(log, moment)) in (2, 3)  # a float has not all microseconds
    assert await log.offset_at(now_us - HOUR + 2) == 2
    assert await log.timestamp_at(2) == now_us - HOUR + 2
    reader = log.reader()
    batch = await reader.fetch(max_records=2)
    assert (batch.start, batch.limit, list(batch.values)) == (1, 3, [b"1", b"2"])
    assert reader.position == 3
    reader.seek(5)
    assert (await anext(reader)).value == b"5"
    assert reader.is_caught_up
    assert len(await reader.fetch(max_wait=0)) == 0
    with pytest.raises(OffsetNotWrittenError):
        await log.reader(99).fetch(max_wait=0)


async def test_a_reader_follows(log: Any) -> None:
    reader = log.reader("latest")
    waiting = asyncio.ensure_future(anext(reader))
    accepted = asyncio.ensure_future(anext(log.reader("latest", visibility="accepted")))
    await asyncio.sleep(0)
    assert await log.append(b"new") == 1
    assert (await waiting).value == (await accepted).value == b"new"
    again = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    await log.append(b"newer")
    assert (await anext(reader)).value == b"newer"


async def test_what_was_trimmed_is_gone(log: Any) -> None:
    await log.append_many([b"a", b"b", b"c"])
    assert await log.trim(3) == 3
    assert log.head == 3
    with pytest.raises(OffsetTrimmedError) as trimmed:
        await log.reader(1).fetch()
    assert (trimmed.value.requested, trimmed.value.head) == (1, 3)
    assert await values(log) == [b"c"]


async def test_streams_are_opened_and_closed(log: Any) -> None:
    await log.open_stream("eu", metadata={"tier": "gold"})
    await log.append(b"1", stream="eu")
    await log.close_stream("eu")
    with pytest.raises(StreamClosedError) as closed:
        await log.append(b"2", stream="eu")
    assert closed.value.stream == "eu"
    found = log.streams()
    found = await found if asyncio.iscoroutine(found) else found
    assert (found["eu"].is_open, dict(found["eu"].metadata)) == (False, {"tier": "gold"})


async def test_cursors_move_by_compare_and_swap(log: Any) -> None:
    await log.append_many([b"a", b"b", b"c"])
    one = await log.cursor("c", start="earliest", lease_seconds=60)
    two = await log.cursor("c")
    await one.commit(2)
    with pytest.raises(CursorMovedError) as moved:
        await two.commit(3)
    assert (moved.value.expected, moved.value.actual, moved.value.cursor) == (1, 2, "c")
    assert await two.refresh() == 2
    await two.commit(3)
    with pytest.raises(ValueError, match="back"):
        await two.commit(1)
    await two.rewind(1)
    await two.renew()
    assert (two.position, two.target, two.lease_seconds) == (1, 1, 60)
    with pytest.raises(OffsetNotWrittenError):
        await two.commit(9)
    assert [(info.name, info.position) for info in await log.cursors()] == [("c", 1)]
    await two.delete()
    with pytest.raises(CursorMovedError):
        await one.refresh()
    assert not await log.delete_cursor("c")


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


async def test_a_consumer_with_its_output_in_the_log(log: Any) -> None:
    await log.append_many([b"1", b"2"], stream="in")
    async with log.consumer("sum", stream="in", follow=False, output=log) as consumer:
        total = 0
        async for record in consumer:
            async with consumer.transaction() as txn:
                total += int(record.value)
                await txn.append(b"%d" % total, stream="out")
    assert await values(log, stream="out") == [b"1", b"3"]


async def test_a_closed_log_refuses(log: Any) -> None:
    reader = log.reader()
    waiting = asyncio.ensure_future(reader.fetch())
    await asyncio.sleep(0)
    await log.aclose()
    await log.aclose()
    with pytest.raises(WalClosedError):
        await waiting
    for call in (
        lambda: log.append(b"v"),
        lambda: log.append_many([b"v"]),
        lambda: log.cursor("c"),
        lambda: reader.fetch(),
    ):
        with pytest.raises(WalClosedError):
            await call()


async def test_which_files_have_which_records(log: Any) -> None:
    await log.append_many([b"v"] * 3)
    await log.rotate()
    await log.append(b"w")
    asked = log.extents()
    found = asked if isinstance(asked, tuple) else await asked
    assert [(one.start, one.limit, one.kind) for one in found.segments] == [
        (1, 4, "sealed"),
        (4, 5, "active"),
    ]
    assert all((log.path / one.name).stat().st_size for one in found.segments)
    assert (list(found.stored), found.tier_url) == ([], None)


async def test_who_follows_a_closed_stream_goes_on_when_it_is_opened_again(log: Any) -> None:
    await log.open_stream("s")
    await log.append(b"1", stream="s")
    async with log.reader(stream="s") as reader:
        assert (await anext(reader)).value == b"1"
        await log.close_stream("s")
        assert not len(await reader.fetch(max_wait=0))
        await log.open_stream("s")
        await log.append(b"2", stream="s")
        assert (await anext(reader)).value == b"2"
