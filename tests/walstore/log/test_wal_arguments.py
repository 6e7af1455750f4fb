"""What a log's methods are given: refused in the call itself, by name, and with the right way said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from operator import length_hint
from pathlib import Path
from typing import Any

import pytest

from tests.local import SMALL
from tests.waiting import until
from walstore import InvalidSettingsError, RecordTooLargeError, Settings, StreamClosedError, Wal
from walstore.records import from_timestamp_us
from walstore.testing import ManualClock

ODD = "\udc00"


@pytest.fixture
async def wal(log_directory: Path, clock: ManualClock):
    """An open log that is none the worse after each test."""
    async with Wal.open(log_directory, settings=SMALL, clock=clock) as opened:
        await opened.append(b"first")
        yield opened
        assert await opened.append(b"last") > 1
        assert opened.statistics().failure is None


async def changing(wal: Wal, **options: Any) -> None:
    async with wal.transaction(**options):
        pass


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda wal: wal.append(b"", stream=ODD), "stream"),
        (lambda wal: wal.append(b"", headers={ODD: b""}), "a header name"),
        (lambda wal: wal.append_many([b""], update={ODD: "v"}), "a register name"),
        (lambda wal: wal.append_many([b""], update={"r": ODD}), "the value of register 'r'"),
        (lambda wal: wal.append_many([b""], expect={"r": ODD}), "the value of register 'r'"),
        (lambda wal: changing(wal, update={"r": ODD}), "the value of register 'r'"),
        (lambda wal: wal.fence(ODD), "an owner name"),
        (lambda wal: wal.fence("me", register=ODD), "a register name"),
        (lambda wal: wal.open_stream(ODD), "a stream name"),
        (lambda wal: wal.open_stream("s", metadata={"m": ODD}), "metadata 'm'"),
        (lambda wal: wal.open_stream("s", metadata={ODD: "m"}), "a name in a stream's metadata"),
        (lambda wal: wal.close_stream(ODD), "a stream name"),
        (lambda wal: wal.cursor(ODD), "a cursor's name"),
    ],
)
async def test_text_without_a_utf8_form_is_refused_by_name(wal, call, what) -> None:
    innocent = asyncio.ensure_future(wal.append(b"innocent"))
    with pytest.raises(ValueError, match=f"^({what}) must not contain lone surrogates"):
        await call(wal)
    assert await innocent == 2
    with pytest.raises(ValueError, match="a producer name must not contain lone surrogates"):
        wal.producer(ODD)


@pytest.mark.parametrize("headers", [["a"], [("a", b"")], "a", 1, [], ()])
async def test_headers_are_a_mapping(wal, headers) -> None:
    with pytest.raises(TypeError, match="headers must map str to bytes, not"):
        await wal.append(b"", headers=headers)
    with pytest.raises(TypeError, match="expect must map names of registers to str, OneOf, NoneOf"):
        await wal.append_many([b""], expect=headers)
    with pytest.raises(TypeError, match="update must map"):
        wal.transaction(update=headers)
    with pytest.raises(TypeError, match="metadata of a stream must map str to str, not"):
        await wal.open_stream("s", metadata=headers)


@pytest.mark.parametrize("offset", ["2", True, 2.0, b"2"])
async def test_an_offset_is_a_whole_number(wal, offset) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: wal.append_many([b""], expect_offset=offset),
        lambda: changing(wal, expect_offset=offset),
        lambda: wal.wait_durable(offset),
        lambda: wal.trim(offset),
        lambda: wal.timestamp_at(offset),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="must be an int, not"):
            await call()
    cursor = await wal.cursor("c")
    for move in (cursor.commit, cursor.rewind):
        with pytest.raises(TypeError, match="the position of a cursor must be an int, not"):
            await move(offset)
    assert wal.tail == 2


async def test_times_are_searched_as_datetimes_too(wal, clock: ManualClock, log_directory) -> None:
    clock.advance(60)
    await wal.append(b"second")
    moment = from_timestamp_us(await wal.timestamp_at(2))
    async with Wal.open_readonly(log_directory) as readonly:
        for log in (wal, readonly):
            assert await log.offset_at(moment) == 2
            assert await log.offset_at(moment - timedelta(seconds=1)) == 2
            assert await log.offset_at(moment - timedelta(seconds=61)) == 1
            assert await log.offset_at(moment + timedelta(microseconds=1)) == 3
            assert await log.offset_at(datetime(1969, 1, 1, tzinfo=UTC)) == 1
            with pytest.raises(ValueError, match="needs a time zone"):
                await log.offset_at(datetime.now())
            with pytest.raises(TypeError, match="aware datetime or an int"):
                await log.offset_at("yesterday")
            reader = log.reader("latest", follow=False)
            reader.seek(moment)
            assert [record.offset async for record in reader] == [2]


async def test_timestamps_are_bounded(log_directory: Path) -> None:
    wide = SMALL.replace(max_timestamp_lead_seconds=10**12)
    async with Wal.open(log_directory, settings=wide) as wal:
        for late in (1 << 63, 1 << 64, 1 << 200, -1):
            for call in (
                lambda late=late: wal.append(b"", timestamp_us=late),
                lambda late=late: wal.append_many([b""], timestamp_us=late),
            ):
                with pytest.raises(ValueError, match="timestamp_us"):
                    await call()
        with pytest.raises(
            TypeError, match=r"timestamp_us must be an aware datetime or an int of .*, not bool"
        ):
            await wal.append(b"", timestamp_us=True)
        assert await wal.append(b"", timestamp_us=10**18) == 1


async def test_a_consumer_seeks_to_places_that_a_cursor_can_have(wal) -> None:
    await wal.append(b"second")
    async with wal.consumer("c", follow=False) as consumer:
        assert [record.offset async for record in consumer] == [1, 2]
        consumer.seek("earliest")
        assert [record.offset async for record in consumer] == [1, 2]
        with pytest.raises(TypeError, match=r"seek\(await log\.offset_at\(moment\)\)"):
            consumer.seek(datetime.now(UTC))
        consumer.seek("latest")
        assert [record.offset async for record in consumer] == []
        await consumer.commit()
        with pytest.raises(ValueError, match=r"use Cursor\.rewind\(\) or Consumer\.seek\(\)"):
            await consumer.commit(1)
    for seconds in (float("inf"), "5", True, 0):
        with pytest.raises((TypeError, InvalidSettingsError), match="auto_commit_seconds"):
            wal.consumer("c", auto_commit_seconds=seconds)
    for lease in (float("nan"), "5", True, -1):
        with pytest.raises((TypeError, InvalidSettingsError), match="lease_seconds"):
            await wal.cursor("d", lease_seconds=lease)


async def test_registers_may_be_set_late_in_a_transaction(wal) -> None:
    async with wal.transaction(update={"a": "1", "b": "1"}) as transaction:
        changes = {"b": "2", "c": "3"}
        transaction.set_registers(changes)
        changes["c"] = ODD
        with pytest.raises(ValueError, match="lone surrogates"):
            transaction.set_registers(changes)
    assert wal.registers == {"a": "1", "b": "2", "c": "3"}
    with pytest.raises(RuntimeError, match="is committed"):
        transaction.set_registers({"a": "9"})


async def test_a_stream_that_cannot_be_there_is_not_closed(wal) -> None:
    with pytest.raises(StreamClosedError):
        await wal.close_stream("never" * 100)
    with pytest.raises(TypeError, match="a stream name must be a str, not list"):
        await wal.close_stream(["s"])


# -- large groups ------------------------------------------------------------------------------


@pytest.mark.slow
async def test_others_run_while_a_large_group_is_checked_and_read(log_directory: Path) -> None:
    """The loop is never held for the whole group: not by the append, and not by a reader of it."""
    count, turns = 200_000, 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Wal.open(log_directory, settings=Settings(min_free_bytes=0)) as wal:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(others())
            await asyncio.sleep(0)
            values = (b"%d" % number for number in range(count))
            appending = group.create_task(wal.append_many(values, key=b"k", durability="memory"))
            before = turns
            await until(lambda: wal.tail > 1)
            assert turns - before >= count // 32_768
            running.cancel()
        assert appending.result() == range(1, count + 1)
        await wal.flush()
        reader = wal.reader(follow=False)
        async for record in reader:
            assert record.value == b"%d" % (record.offset - 1)
            assert length_hint(reader._offsets[1]) <= 4096
        assert reader.position == count + 1
        batches = [batch async for batch in wal.reader(follow=False).batches()]
        assert [len(batch) for batch in batches] == [count], "a batch is handed out as it is stored"


async def test_a_small_group_keeps_the_order_of_the_calls(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        first = asyncio.ensure_future(wal.append_many([b"x"] * 32_768))
        second = asyncio.ensure_future(wal.append(b"y"))
        assert await first == range(1, 32_769)
        assert await second == 32_769


async def test_what_is_too_large_is_not_read_to_its_end(log_directory: Path) -> None:
    made = 0

    def values() -> Iterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield bytes(10_000)

    settings = SMALL.replace(max_record_bytes=20_000, channel_bytes=100_000)
    async with Wal.open(log_directory, settings=settings) as wal:
        with pytest.raises(RecordTooLargeError):
            await wal.append_many(values())
        assert made < 200
        assert await wal.append(b"next") == 1
