"""Arrow: what a log gives to other engines is what its reader gives, wherever the log is."""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import walstore.arrow
from tests.contract.faces import Face, on
from tests.contract.from_threads import in_thread
from tests.contract.reading import caught_up
from tests.effort import first_seed
from walstore import InvalidSettingsError, OffsetTrimmedError, Record, Wal
from walstore.core.batches import arrow

EVERYWHERE = on("opened", "replicated", "served", "readonly", "copied", "stored")
STREAMS = (None, "a", "b", "ü")


def as_rows(records: list[Record]) -> list[dict[str, Any]]:
    return [
        {
            "offset": one.offset,
            "timestamp": one.timestamp_us,
            "value": one.value,
            "key": one.key,
            "stream": one.stream,
            "headers": list(one.headers.items()) or None,
        }
        for one in records
    ]


def rows(table: pa.Table) -> list[dict[str, Any]]:
    at = table.schema.get_field_index("timestamp")
    if at >= 0:
        table = table.set_column(at, "timestamp", table.column(at).cast(pa.int64()))
    return table.to_pylist()


async def fill(face: Face, random: Random) -> None:
    """Append groups of every form, and what never becomes records; trim where that can be done."""
    log = face.writer
    for _ in range(random.randrange(12)):
        values = [random.randbytes(random.randrange(40)) for _ in range(random.choice((1, 3, 700)))]
        await log.append_many(
            values,
            key=random.choice((None, b"", b"k")),
            stream=random.choice(STREAMS),
            headers=random.choice((None, {"h": b"1"}, {"h": b"", "i": b"2"})),
        )
        if hasattr(log, "transaction") and random.random() < 0.3:
            async with log.transaction() as transaction:
                await transaction.append(b"never there")
                await transaction.rollback()
        if hasattr(log, "trim") and random.random() < 0.3:
            await log.trim(random.randint(log.head, log.tail))


@EVERYWHERE
async def test_a_table_has_what_the_reader_gives(face: Face) -> None:
    log = face.log
    assert (await log.to_arrow()).schema == walstore.arrow.SCHEMA
    random = Random(first_seed("test_a_table_has_what_the_reader_gives"))
    for _ in range(3):
        await fill(face, random)
        await caught_up(log)
        head, limit = log.head, log.limit
        low = random.randint(head, limit)
        for options in (
            {},
            {"start": low},
            {"start": low, "stop": random.randint(low, limit)},
            {"stream": random.choice(STREAMS[1:])},
            {"start": low, "stream": "none of them"},
        ):
            expected = [one async for one in log.reader(**options, follow=False)]
            table = await log.to_arrow(**options)
            assert table.schema == walstore.arrow.SCHEMA
            assert rows(table) == as_rows(expected)
            found = log.reader(**options, follow=False).arrow_batches(batch_bytes=1000)
            batches = [one async for one in found]
            assert pa.Table.from_batches(batches, walstore.arrow.SCHEMA).equals(table)
            assert not expected or len(batches) >= 1
        chosen = await log.to_arrow(["stream", "offset"])
        assert chosen.column_names == ["stream", "offset"]
        assert chosen.equals((await log.to_arrow()).select(["stream", "offset"]))


@EVERYWHERE
async def test_columns_that_are_not_there_are_refused(face: Face) -> None:
    with pytest.raises(InvalidSettingsError, match=r"columns are offset, .*, not 'body'"):
        await face.log.to_arrow(["body"])
    for columns in ([], ["key", "key"]):
        with pytest.raises(InvalidSettingsError, match="one or more columns, each once"):
            face.log.reader(follow=False).arrow_batches(columns)
    with pytest.raises(TypeError, match="list of str"):
        await face.log.to_arrow("offset")
    with pytest.raises(InvalidSettingsError, match="batch_bytes"):
        face.log.reader(follow=False).arrow_batches(batch_bytes=0)


@on("opened", "served")
async def test_what_was_trimmed_is_no_part_of_a_table(log: Any) -> None:
    await log.append_many([b"a", b"b", b"c"])
    await log.trim(3)
    assert rows(await log.to_arrow(["value"])) == [{"value": b"c"}]
    with pytest.raises(OffsetTrimmedError):
        await log.to_arrow(start=1)


@on("opened", "stored")
async def test_a_batch_that_was_not_delivered_is_read_again(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    await face.writer.append_many([b"%d" % number for number in range(1000)])
    await caught_up(face.log)
    reader = face.log.reader(follow=False)
    began, go_on, make = threading.Event(), threading.Event(), arrow.rows_of

    def rows_of(*arguments: Any) -> pa.RecordBatch:
        began.set()
        go_on.wait()
        return make(*arguments)

    monkeypatch.setattr(arrow, "rows_of", rows_of)
    reading = asyncio.ensure_future(anext(reader.arrow_batches()))
    await in_thread(began.wait)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    go_on.set()
    assert reader.position == 1
    found = [batch async for batch in reader.arrow_batches(["offset"])]
    assert pa.Table.from_batches(found).column(0).to_pylist() == list(range(1, 1001))


@on("opened", "served")
async def test_a_reader_that_follows_gives_batches_of_what_is_there(log: Any) -> None:
    batches = log.follow().arrow_batches(["value"])
    waiting = asyncio.ensure_future(anext(batches))
    await log.append_many([b"a", b"b"])
    assert (await waiting).to_pylist() == [{"value": b"a"}, {"value": b"b"}]
    await log.append(b"c")
    assert (await anext(batches)).to_pylist() == [{"value": b"c"}]


@on("opened", "stored")
async def test_a_batch_is_a_stream_of_arrow(face: Face) -> None:
    await face.writer.append(b"a", key=b"k", stream="s", headers={"h": b"v"})
    await caught_up(face.log)
    table = pa.table(await face.log.reader(follow=False).fetch())
    assert table.equals(await face.log.to_arrow())
    assert pa.table(await face.log.reader(stop=1, follow=False).fetch()).num_rows == 0


@on("blocking", "distant")
async def test_a_thread_has_tables_and_streams(face: Face) -> None:
    log = face.log
    await log.append_many([b"%d" % number for number in range(600)], stream="s")
    table = await log.to_arrow(["value"], start=2, stop=4)
    assert rows(table) == [{"value": b"1"}, {"value": b"2"}]

    def read() -> tuple[pa.Table, list[int], int]:
        reader = log.thing.reader(follow=False)
        first = next(iter(reader))  # others are in its memory
        found = pa.table(reader)
        assert reader.position == 601
        reader.seek(599)
        batches = list(reader.arrow_batches(["offset"]))
        return found, pa.Table.from_batches(batches).column(0).to_pylist(), first.offset

    found, offsets, first = await in_thread(read)
    assert first == 1
    assert found.column("offset").to_pylist() == list(range(2, 601))
    assert found.schema == walstore.arrow.SCHEMA
    assert offsets == [599, 600]
    reader = await in_thread(lambda: log.thing.reader(follow=False))
    with pytest.raises(walstore.WrongLoopError, match="would stop this event loop"):
        pa.table(reader)


async def test_numbers_that_are_too_large_for_signed_columns(tmp_path: Any) -> None:
    """Only a log of wal3 could have them."""
    async with Wal.open(tmp_path / "log") as wal:
        await wal.append(b"a")
        batch = await wal.reader(follow=False).fetch()
    stored = batch.to_arrow().set_column(
        1, arrow.SCHEMA.field("timestamp_us"), pa.array([2**63], pa.uint64())
    )
    with pytest.raises(InvalidSettingsError, match=r"'timestamp' has a number above 2\*\*63 - 1"):
        arrow.rows_of(stored)
    assert arrow.rows_of(stored, ["offset"]).to_pylist() == [{"offset": 1}]
