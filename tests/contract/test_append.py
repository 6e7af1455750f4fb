"""An append: each record is in the log as it was given, in the order of the calls, or its caller is told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.cases import case
from tests.contract.faces import Face, on
from tests.contract.reading import values
from walstore import (
    InvalidSettingsError,
    NoneOf,
    OffsetMismatchError,
    OffsetNotWrittenError,
    OneOf,
    RecordTooLargeError,
    RegisterMismatchError,
    StreamClosedError,
    WalClosedError,
)

HOUR = timedelta(hours=1)


@on("opened", "replicated", "served")
async def test_an_append_is_there_with_all_its_parts(log: Any) -> None:
    headers = {"a": b"1", "b": b""}
    assert await log.append(b"plain") == 1
    assert await log.append(b"", b"key", "eu", headers, 5) == 2
    assert await log.append(b"m", durability="memory") == 3
    await log.wait_durable(3, log.durability)  # of a replicated log: where readers see it
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


@on("opened", "replicated", "served")
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


@on("opened", "replicated", "served")
async def test_choices_that_are_none(log: Any) -> None:
    for kind in (OneOf, NoneOf):
        for wrong, error in (((), ValueError), ((1,), TypeError), (("x" * 4097,), ValueError)):
            with case((kind, wrong[:0])), pytest.raises(error):
                kind(*wrong)
        with pytest.raises(TypeError):
            await log.append_many([b"v"], update={"a": kind("1")})
    assert OneOf("a", "b") == OneOf("b", "a") != NoneOf("a", "b")
    assert len({OneOf("a"), OneOf("a"), NoneOf("a")}) == 2


@on("opened", "replicated", "served")
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


@on("opened", "served")
async def test_more_than_the_log_has_room_for_waits_its_turn(log: Any) -> None:
    big = b"x" * 60_000  # the channel has 256 KiB
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(log.append(b"%02d" % n + big)) for n in range(40)]
        tasks.append(group.create_task(log.append(b"last")))
    assert [task.result() for task in tasks] == list(range(1, 42))
    assert [value[:2] for value in await values(log)] == [b"%02d" % n for n in range(40)] + [b"la"]


@on("opened", "replicated", "served")
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


@on("opened", "replicated", "served", "writer", "blocking", "distant")
async def test_a_time_is_a_datetime_or_microseconds(face: Face) -> None:
    """On each way into the log; the aware datetime may be of any time zone."""
    log, moment = face.writer, datetime.now(UTC).replace(microsecond=0) - HOUR
    us = int(moment.timestamp()) * 1_000_000
    there = moment.astimezone(timezone(timedelta(hours=7)))
    calls: list[Any] = [
        lambda at: log.append(b"v", timestamp_us=at),
        lambda at: log.append_many([b"v"], timestamp_us=at),
    ]
    if hasattr(log, "append_once"):
        calls.append(lambda at: log.append_once("p", 1 if at == us else 2, [b"v"], timestamp_us=at))
    elif hasattr(log, "fence"):
        producer, fence = log.producer("p"), await log.fence("me")
        calls += [
            lambda at: producer.append(b"v", timestamp_us=at),
            lambda at: fence.append(b"v", timestamp_us=at),
        ]
    if hasattr(log, "transaction"):

        async def commit(at: Any) -> None:
            async with log.transaction() as txn:
                await txn.append(b"v", timestamp_us=at)

        calls.append(commit)
    for call in calls:
        for at in (us, there):
            await call(at)
        for bad, error in (
            (datetime(2020, 1, 1), ValueError),
            ("2020", TypeError),
            (True, TypeError),
        ):
            with case(bad), pytest.raises(error, match=r"timestamp_us|time zone"):
                await call(bad)
    if hasattr(log, "reader"):
        found = [record.timestamp async for record in log.reader(follow=False)]
        assert found == [moment] * 2 * len(calls)


@on("opened", "served")
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
        (ValueError, lambda: log.follow(datetime(2020, 1, 1)).fetch()),
    ):
        with case(error), pytest.raises(error):
            await bad()
    assert await log.append(b"still well") == 1


@on("opened", "replicated", "served")
async def test_a_closed_log_refuses(log: Any) -> None:
    reader = log.follow()
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


APPENDING = ("opened", "replicated", "served", "writer", "blocking", "distant")


@on(*APPENDING)
async def test_offsets_are_consecutive_in_the_order_of_the_calls(face: Face) -> None:
    assert await face.log.append(b"1") == 1
    assert await face.log.append_many([b"2", b"3"]) == range(2, 4)
    assert await face.log.append(b"4", b"key", "eu", {"a": b"1"}) == 4
    await face.log.flush()
    assert face.log.tail == 5


@on(*APPENDING)
async def test_what_is_no_record_is_refused_and_takes_no_offset(face: Face) -> None:
    for error, bad in (
        (TypeError, lambda: face.log.append("text")),
        (TypeError, lambda: face.log.append(b"v", key="text")),
        (ValueError, lambda: face.log.append(b"v", stream="x" * 257)),
        (ValueError, lambda: face.log.append_many([])),
    ):
        with case(error), pytest.raises(error):
            await bad()
    assert await face.log.append(b"still well") == 1


@on("opened", "replicated", "served", "writer")
async def test_an_append_that_is_cancelled_harms_no_other(face: Face) -> None:
    """It may be in the log; what others append meanwhile is, once."""
    kept: list[asyncio.Task[int]] = []
    for number in range(30):
        kept.append(asyncio.create_task(face.log.append(b"kept %d" % number)))
        dropped = asyncio.create_task(face.log.append(b"dropped"))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        dropped.cancel()
    offsets = await asyncio.gather(*kept)
    assert offsets == sorted(set(offsets))
    assert await face.log.append(b"last") > offsets[-1]


@on("opened", "replicated", "served", "writer")
async def test_a_stream_that_is_closed_takes_nothing(face: Face) -> None:
    await face.log.open_stream("eu", metadata={"a": "b"})
    await face.log.append(b"1", stream="eu")
    await face.log.close_stream("eu")
    with pytest.raises(StreamClosedError) as closed:
        await face.log.append(b"2", stream="eu")
    assert closed.value.stream == "eu"
    found = face.log.streams()
    found = await found if asyncio.iscoroutine(found) else found
    assert (found["eu"].is_open, dict(found["eu"].metadata)) == (False, {"a": "b"})
    await face.log.close_stream("eu")
    with pytest.raises(StreamClosedError, match="no stream 'us'"):
        await face.log.close_stream("us")
    await face.log.open_stream("eu", metadata={"since": "again"})
    assert await face.log.append(b"2", stream="eu") == 2


@on("opened", "replicated", "served")
async def test_what_is_asked_of_a_log_may_be_awaited(face: Face) -> None:
    await face.log.open_stream("eu")
    assert list(await face.log.streams()) == ["eu"]
    assert (await face.log.statistics()).tail == 1
    assert [one.start for one in (await face.log.extents()).segments] == [1]


@on("opened", "replicated", "served")
async def test_what_is_asked_of_a_log_is_a_coroutine(face: Face) -> None:
    """So it may be asked beside other things; of an opened log it can also be used at once."""
    log = face.log
    await log.open_stream("eu")
    streams, found, where = await asyncio.gather(log.streams(), log.statistics(), log.extents())
    assert (list(streams), found.tail, len(where.segments)) == (["eu"], 1, 1)
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(one) for one in (log.streams(), log.statistics(), log.extents())]
    assert [type(task.result()) for task in asked] == [type(streams), type(found), type(where)]
    dropped = asyncio.create_task(log.statistics())
    dropped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dropped


@on("opened", "replicated", "served")
async def test_who_follows_a_closed_stream_goes_on_when_it_is_opened_again(log: Any) -> None:
    await log.open_stream("s")
    await log.append(b"1", stream="s")
    async with log.follow(stream="s") as reader:
        assert (await anext(reader)).value == b"1"
        await log.close_stream("s")
        assert not len(await reader.fetch(max_wait_seconds=0))
        await log.open_stream("s")
        await log.append(b"2", stream="s")
        assert (await anext(reader)).value == b"2"
