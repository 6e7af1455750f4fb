"""A reader: each record once, in order, from where it is told to where it is told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.contract.faces import Face, on
from tests.contract.reading import HOUR, caught_up, values
from walstore import (
    OffsetNotWrittenError,
    OffsetTrimmedError,
)


@on("opened", "replicated", "served")
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
    reader = log.follow()
    batch = await reader.fetch(max_records=2)
    assert (batch.start, batch.limit, list(batch.values)) == (1, 3, [b"1", b"2"])
    assert reader.position == 3
    reader.seek(5)
    assert (await anext(reader)).value == b"5"
    assert reader.is_caught_up
    assert len(await reader.fetch(max_wait_seconds=0)) == 0
    with pytest.raises(OffsetNotWrittenError):
        await log.follow(99).fetch(max_wait_seconds=0)


@on("opened", "replicated", "served", "readonly", "copied", "stored")
async def test_limits_and_times_of_what_can_be_read(face: Face) -> None:
    """As of :class:`walstore.ReadableLog`, wherever the log is."""
    log, now_us = face.log, int(datetime.now(UTC).timestamp() * 1e6)
    await face.writer.append_many([b"1", b"2"], timestamp_us=now_us)
    await face.writer.append(b"3", timestamp_us=now_us + 1)
    await caught_up(log)
    assert (log.head, log.limit) == (1, 4)
    assert await log.offset_at(now_us + 1) == 3
    assert [await log.timestamp_at(offset) for offset in (1, 2, 3)] == [now_us, now_us, now_us + 1]
    with pytest.raises(OffsetNotWrittenError):
        await log.timestamp_at(4)
    with pytest.raises(OffsetTrimmedError):
        await log.timestamp_at(0)


@on("opened", "replicated", "served")
async def test_a_reader_follows(log: Any) -> None:
    reader = log.follow("latest")
    waiting = asyncio.ensure_future(anext(reader))
    accepted = asyncio.ensure_future(anext(log.follow("latest", visibility="accepted")))
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


@on("opened", "replicated", "served")
async def test_what_was_trimmed_is_gone(log: Any) -> None:
    await log.append_many([b"a", b"b", b"c"])
    assert await log.trim(3) == 3
    assert log.head == 3
    with pytest.raises(OffsetTrimmedError) as trimmed:
        await log.follow(1).fetch()
    assert (trimmed.value.requested, trimmed.value.head) == (1, 3)
    assert await values(log) == [b"c"]


@on("opened", "replicated", "served")
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


READING = ("opened", "replicated", "served", "readonly", "copied", "stored", "blocking", "distant")


@on(*READING)
async def test_each_record_once_and_in_order(face: Face) -> None:
    for number in range(0, 20, 4):
        await face.writer.append_many([b"%d" % at for at in range(number, number + 4)])
    await caught_up(face.log)
    assert await values(face.log) == [b"%d" % number for number in range(20)]
    assert await values(face.log, 18) == [b"17", b"18", b"19"]
    reader = face.log.reader(3, follow=False, stop=6)
    batch = await reader.fetch(max_records=2)
    assert (batch.start, batch.limit, list(batch.values)) == (3, 5, [b"2", b"3"])
    assert [record.value async for record in reader] == [b"4"]
    await reader.seek(2) if face.is_blocking else reader.seek(2)
    assert (await anext(reader)).value == b"1"


@on(*READING)
async def test_a_stream_is_read_alone(face: Face) -> None:
    for number in range(6):
        await face.writer.append(b"%d" % number, stream="even" if number % 2 == 0 else "odd")
    await caught_up(face.log)
    assert await values(face.log, stream="odd") == [b"1", b"3", b"5"]
    assert await values(face.log, stream="none") == []


async def _entered(*readers: Any) -> list[Any]:
    return [await reader.__aenter__() for reader in readers]


async def _read(reader: Any) -> list[bytes]:
    return [record.value async for record in reader]


@on(*READING)
async def test_one_that_follows_gets_what_is_appended_later(face: Face) -> None:
    chosen = (face.log.follow(), face.log.reader("earliest", follow=True))
    bounded = face.log.follow(stop=3)
    waiting = [asyncio.ensure_future(anext(reader)) for reader in chosen]
    whole = asyncio.ensure_future(_read(bounded))
    await asyncio.sleep(0)
    await face.writer.append(b"new")
    assert [(await one).value for one in waiting] == [b"new", b"new"]
    await face.writer.append_many([b"newer", b"beyond"])
    assert await whole == [b"new", b"newer"]


@on(*(name for name in READING if name != "stored"))
async def test_one_that_is_not_told_follows_yet_and_says_what_to_write(face: Face) -> None:
    """But for a stored log, whose readers have always stopped at its end."""
    await face.writer.append(b"1")
    with pytest.warns(DeprecationWarning, match=r"write follow\(\) .*reader\(follow=False") as said:
        readers = await _entered(face.log.reader("earliest"), face.log.reader("earliest", stop=3))
    here = Path(__file__).parent
    assert [Path(one.filename).parent for one in said] == [here, here]
    assert [(await anext(reader)).value for reader in readers] == [b"1", b"1"]
    waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
    await face.writer.append(b"2")
    assert [(await one).value for one in waiting] == [b"2", b"2"]


@on(*READING)
@pytest.mark.parametrize("wrong", ["no", 0, b""])
async def test_whether_it_follows_is_a_bool(face: Face, wrong: Any) -> None:
    with pytest.raises(TypeError, match="follow must be True or False"):
        await _entered(face.log.reader(follow=wrong))


@on(*READING)
async def test_beyond_the_end_is_an_error(face: Face) -> None:
    """But for ``connect_readonly`` to a replicated log, where the server may lack what is there."""
    await face.writer.append(b"1")
    for begun in (face.log.follow(99).fetch(max_wait_seconds=0), anext(face.log.follow(99))):
        with pytest.raises(OffsetNotWrittenError) as beyond:
            await begun
        assert (beyond.value.requested, beyond.value.head, beyond.value.tail) == (99, 1, 2)


@on(*READING)
async def test_at_the_end_is_none_though_it_was_not_heard_of(face: Face) -> None:
    for number in range(3):
        await face.writer.append(b"%d" % number)
    waiting = asyncio.ensure_future(anext(face.log.follow(4)))
    await face.writer.append(b"new")
    assert (await waiting).value == b"new"


@on(*READING)
async def test_a_reader_may_begin_at_the_end_and_not_below_the_head(face: Face) -> None:
    await face.writer.append_many([b"1", b"2", b"3"])
    await caught_up(face.log)
    assert len(await face.log.reader(4, follow=False).fetch(max_wait_seconds=0)) == 0
    with pytest.raises(OffsetTrimmedError) as trimmed:
        await face.log.reader(0, follow=False).fetch(max_wait_seconds=0)
    assert (trimmed.value.requested, trimmed.value.head, trimmed.value.tail) == (0, 1, 4)


@on("opened", "replicated", "served", "readonly", "copied")
async def test_only_a_record_has_a_timestamp(face: Face) -> None:
    await face.writer.append_many([b"1", b"2", b"3"])
    await caught_up(face.log)
    assert await face.log.timestamp_at(3) >= await face.log.timestamp_at(1)
    for offset, kind in ((0, OffsetTrimmedError), (4, OffsetNotWrittenError)):
        with pytest.raises(kind) as outside:
            await face.log.timestamp_at(offset)
        assert (outside.value.requested, outside.value.head, outside.value.tail) == (offset, 1, 4)


@on("opened", "replicated", "served", "readonly", "copied", "stored")
async def test_streams_are_listed_in_the_order_of_opening(face: Face) -> None:
    assert await face.log.streams() == {}
    await face.writer.open_stream("late", metadata={"kind": "x"})
    await face.writer.append(b"1", stream="early")
    await face.writer.close_stream("late")
    await caught_up(face.log)
    found = await face.log.streams()
    assert [(name, one.is_open, dict(one.metadata)) for name, one in found.items()] == [
        ("late", False, {"kind": "x"}),
        ("early", True, {}),
    ]


@on("opened", "replicated", "served", "readonly", "copied", "stored")
async def test_a_time_is_an_offset(face: Face) -> None:
    before_us = int(datetime.now(UTC).timestamp() * 1e6)
    await face.writer.append_many([b"1", b"2"])
    await caught_up(face.log)
    assert await face.log.offset_at(before_us) == 1
    assert await face.log.offset_at(before_us + HOUR) == 3


@on(*READING)
async def test_one_that_does_not_follow_ends_at_the_end_of_now(face: Face) -> None:
    for number in range(20):
        await face.writer.append(b"%d" % number)
        assert len(await values(face.log)) == number + 1


@on(*READING)
async def test_an_old_name_of_an_argument_works_for_a_version(face: Face) -> None:
    reader = face.log.follow()
    with pytest.warns(
        DeprecationWarning, match="takes max_wait_seconds= now, which was max_wait="
    ) as said:
        assert len(await reader.fetch(max_wait=0)) == 0
    assert [Path(one.filename).parent for one in said] == [Path(__file__).parent]


@on(*READING)
async def test_it_may_be_entered(face: Face) -> None:
    async with face.log.reader(follow=False) as reader:
        assert [record async for record in reader] == []
