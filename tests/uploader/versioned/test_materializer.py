"""A collection kept up to date with a log: each record counts once, whatever fails."""

from __future__ import annotations

import json
import math
from datetime import datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.cases import case
from tests.uploader.versioned.collections import SCHEMA, Site, content
from uploader import CloudLog, CloudWriter, Collection, Materializer, MaterializerSettings, seal
from uploader.testing.faults import call, happen_then_fail, timeout
from uploader.versioned.envelope import to_updates
from uploader.versioned.schema import CollectionSchema
from walstore import Wal
from walstore.errors import (
    InvalidSettingsError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    OutcomeUnknownError,
)
from walstore.records import Record


def js(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


async def now(collection: Collection) -> list[tuple[Any, ...]]:
    async with await collection.reader() as reader:
        return content(await reader.snapshot())


async def test_rows_of_a_local_log(tmp_path):
    site = Site()
    async with Wal.open(tmp_path / "log") as log, site.program().opened() as collection:
        await log.append_many([js(k=1, v="a"), js(k=1, v="a"), js(k=2, v="b")])
        materializer = Materializer(log, collection, envelope="append")
        done = await materializer.step()
        assert (done.lower, done.upper, done.records) == (0, 4, 3)
        assert await now(collection) == [(1, "a", 2), (2, "b", 1)]
        await log.append(js(k=3, v="c"))
        assert await Materializer(log, collection, envelope="append").catch_up() == 1
        async with await collection.reader() as reader:
            assert content(await reader.snapshot(as_of=1)) == [(1, "a", 1)]
            assert await reader.upper() == log.tail


async def test_keys_of_a_log_in_object_storage():
    site = Site("upsert")
    async with (
        CloudWriter.open("memory://materialized") as writer,
        site.program().opened() as collection,
    ):
        await writer.append(js(k=1, v="a"))
        await writer.append(js(k=2, v="b"))
        await writer.append(js(k=1, v="c"))
        await writer.append(b"", key=js(k=2))
        async with CloudLog.open("memory://materialized") as log:
            assert await Materializer(log, collection, envelope="upsert").catch_up() == 4
        assert await now(collection) == [(1, "c")]


@pytest.mark.parametrize("kind", ["diff", "upsert"])
async def test_change_events(tmp_path, kind: str):
    site = Site(kind)
    one, two, moved = {"k": 1, "v": "a"}, {"k": 1, "v": "b"}, {"k": 7, "v": "b"}
    async with Wal.open(tmp_path / "log") as log, site.program().opened() as collection:
        await log.append_many(
            [
                js(op="r", before=None, after=one),
                js(schema={}, payload={"op": "u", "before": one, "after": two}),
                js(op="u", before=two, after=moved),
                js(op="c", before=None, after=one),
                js(op="d", before=one, after=None),
                b"",
            ]
        )
        await Materializer(log, collection, envelope="debezium").catch_up()
        async with await collection.reader() as reader:
            contents = [content(await reader.snapshot(as_of=as_of)) for as_of in range(1, 7)]
    rows = [[(1, "a")], [(1, "b")], [(7, "b")], [(1, "a"), (7, "b")], [(7, "b")], [(7, "b")]]
    assert [[row[:2] for row in found] for found in contents] == rows


async def test_each_record_counts_once_whatever_the_store_says(tmp_path):
    site = Site()
    program = site.program()
    async with Wal.open(tmp_path / "log") as log, program.opened() as collection:
        await log.append_many([js(k=1, v="a")] * 3)
        program.store.on(
            "put_if_absent", happen_then_fail(timeout()), key_prefix="pending/", times=2
        )
        program.store.on("get", happen_then_fail(timeout()), key_prefix="pending/", times=2)
        materializer = Materializer(log, collection, envelope="append")
        with pytest.raises(OutcomeUnknownError):
            await materializer.step()
        other = Materializer(log, collection, envelope="append")
        await log.append(js(k=1, v="a"))
        await other.catch_up()
        await materializer.catch_up()
        await materializer.catch_up()
        assert await now(collection) == [(1, "a", 4)]


async def test_two_at_once_do_not_harm_each_other(tmp_path):
    site = Site()
    async with (
        Wal.open(tmp_path / "log") as log,
        site.program().opened() as one,
        site.program().opened() as two,
    ):
        both = [Materializer(log, collection, envelope="append") for collection in (one, two)]
        for number in range(20):
            await log.append(js(k=number % 3, v="x"))
            await both[number % 2].step(max_wait_seconds=0.0)
        assert sum(count for *_, count in await now(one)) == 20


async def test_catching_up_goes_on_when_another_is_faster(tmp_path):
    site = Site()
    program = site.program()
    async with (
        Wal.open(tmp_path / "log") as log,
        program.opened() as one,
        site.program().opened() as two,
    ):
        await log.append_many([js(k=1, v="a")] * 9)
        faster = Materializer(
            log, two, envelope="append", settings=MaterializerSettings(batch_records=4)
        )
        program.store.on("put_if_absent", call(faster.step), key_prefix="pending/")
        assert await Materializer(log, one, envelope="append").catch_up() == 5
        assert await now(one) == [(1, "a", 9)]


async def test_two_handles_of_a_stored_log_do_not_harm_each_other():
    """One has read a newer manifest; the collection ends beyond that of the other."""
    site, url = Site(), "memory://two-handles"
    async with CloudWriter.open(url) as writer, site.program().opened() as collection:
        await writer.append(js(k=1, v="a"))
        async with CloudLog.open(url) as one, CloudLog.open(url) as two:
            first, second = (Materializer(log, collection, envelope="append") for log in (one, two))
            assert await second.catch_up() == 1
            await writer.append_many([js(k=1, v="a")] * 3)
            assert await first.catch_up() == 3
            assert await Materializer(two, collection, envelope="append").catch_up() == 0
            await writer.append_many([js(k=1, v="a")] * 2)
            assert await first.catch_up() == 2
            assert await second.catch_up() == 0  # what it knew had been appended
            await writer.append(js(k=1, v="a"))
            assert await second.catch_up() == 1
        assert await now(collection) == [(1, "a", 7)]


async def test_catching_up_goes_on_when_another_was_faster(tmp_path):
    site = Site()
    async with Wal.open(tmp_path / "log") as log, site.program().opened() as collection:
        slow, fast = (
            Materializer(
                log,
                collection,
                envelope="append",
                settings=MaterializerSettings(batch_records=records),
            )
            for records in (2, 3)
        )
        await log.append(js(k=1, v="a"))
        assert await slow.catch_up() == 1
        await log.append_many([js(k=1, v="a")] * 5)
        assert (await fast.step()).records == 3
        assert await slow.catch_up() == 2


async def test_a_sealed_log_ends(tmp_path):
    site, url = Site(), "memory://sealed"
    async with CloudWriter.open(url) as writer, site.program().opened() as collection:
        await writer.append(js(k=1, v="a"))
        await seal(url)
        async with CloudLog.open(url) as log:
            await Materializer(log, collection, envelope="append").run()
        assert await now(collection) == [(1, "a", 1)]


async def test_a_log_that_ends_before_the_collection_is_another_one(tmp_path):
    site = Site()
    async with (
        Wal.open(tmp_path / "long") as long,
        Wal.open(tmp_path / "short") as short,
        site.program().opened() as collection,
    ):
        await long.append_many([js(k=1, v="a")] * 3)
        await short.append(js(k=1, v="a"))
        assert await Materializer(long, collection, envelope="append").catch_up() == 3
        other = Materializer(short, collection, envelope="append")
        with pytest.raises(OffsetNotWrittenError, match="made from another log"):
            await other.catch_up()


async def test_a_cursor_keeps_the_records_that_are_not_in_the_collection(tmp_path):
    site = Site()
    async with Wal.open(tmp_path / "log") as log, site.program().opened() as collection:
        cursor = await log.cursor("collection")
        await log.append_many([js(k=1, v="a")] * 3)
        materializer = Materializer(log, collection, envelope="append", commit=cursor.commit)
        await materializer.catch_up()
        assert cursor.position == 4


async def test_a_log_that_lost_what_comes_next_is_refused(tmp_path):
    from walstore import Settings

    site = Site()
    settings = Settings(segment_bytes=65536)
    async with (
        Wal.open(tmp_path / "log", settings=settings) as log,
        site.program().opened() as collection,
    ):
        await log.append(js(k=1, v="a"))
        materializer = Materializer(log, collection, envelope="append")
        await materializer.catch_up()
        for first in range(0, 3000, 100):
            await log.append_many([js(k=first + at, v="b" * 50) for at in range(100)])
        await log.trim(2900)
        assert log.head > 2
        with pytest.raises(OffsetTrimmedError):
            await Materializer(log, collection, envelope="append").step()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"\xff", "not JSON"),
        (js(k=1, v="a", more=1), "no column 'more'"),
        (js(k="one", v="a"), "'k' must be int64"),
        (js(k=1 << 70, v="a"), ""),
        (js(k=1.5, v="a"), ""),
        (js(k=True, v="a"), "true and false"),
    ],
)
async def test_a_record_that_does_not_fit_is_named_and_nothing_is_written(tmp_path, value, said):
    site = Site()
    async with Wal.open(tmp_path / "log") as log, site.program().opened() as collection:
        await log.append_many([js(k=1, v="a"), value, js(k=2, v="b")])
        materializer = Materializer(log, collection, envelope="append")
        for _ in range(2):
            with pytest.raises(InvalidSettingsError, match=rf"offset 2 .*{said}"):
                await materializer.step()
        assert await site.keys("pending/") == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float32(), 1e300),
        (pa.time64("us"), -1),
        (pa.timestamp("s"), 1 << 62),
        (pa.string(), None),
    ],
    ids=str,
)
async def test_a_value_that_no_column_takes_is_named_too(tmp_path, kind, value):
    options = Site().program().options()
    schema = pa.schema([("k", kind if value is None else pa.int64()), ("v", kind)])
    async with (
        Wal.open(tmp_path / "log") as log,
        Collection.open(
            "memory://x", create=True, schema=schema, key=("k",), kind="upsert", **options
        ) as collection,
    ):
        good, bad = ("a", None) if value is None else (1, 1)
        await log.append_many([js(k=good, v=None), js(k=bad, v=value)])
        materializer = Materializer(log, collection, envelope="upsert")
        for _ in range(2):
            with pytest.raises(InvalidSettingsError, match="offset 2 "):
                await materializer.step()


async def test_a_column_that_another_program_added_is_known(tmp_path):
    site = Site()
    async with (
        Wal.open(tmp_path / "log") as log,
        site.program().opened() as collection,
        site.program().opened() as other,
    ):
        await log.append(js(k=1, v="a", note="x"))
        materializer = Materializer(log, collection, envelope="append")
        with pytest.raises(InvalidSettingsError, match="evolve"):
            await materializer.step()
        await other.evolve(SCHEMA.append(pa.field("note", pa.string())))
        assert (await materializer.step()).records == 1
        assert await now(other) == [(1, "a", "x", 1)]


async def test_envelopes_need_their_kind():
    site = Site()
    async with site.program().opened() as collection:
        with pytest.raises(InvalidSettingsError, match="'upsert' needs"):
            Materializer(None, collection, envelope="upsert")  # type: ignore[arg-type]
        with pytest.raises(InvalidSettingsError, match="one of append"):
            Materializer(None, collection, envelope="avro")  # type: ignore[arg-type]


def test_values_of_every_type():
    columns = pa.schema(
        [
            ("i", pa.int8()),
            ("f", pa.float32()),
            ("b", pa.bool_()),
            ("s", pa.large_string()),
            ("x", pa.binary()),
            ("t", pa.timestamp("us", tz="UTC")),
            ("d", pa.date32()),
            ("m", pa.decimal128(9, 2)),
        ]
    )
    schema = CollectionSchema.new(columns, kind="diff", key=())
    row = {
        "i": 1,
        "f": 2,
        "b": True,
        "s": "é",
        "x": "AAE=",
        "t": "2026-01-02T03:04:05Z",
        "d": "2026-01-02",
    }
    found = to_updates(
        [Record(5, js(**row, m="1.25")), Record(6, js(**row, m=1.25))], "append", schema
    )
    first, second = found.to_pylist()
    assert str(first["m"]) == str(second["m"]) == "1.25"
    assert (first["x"], first["t"].year, first["_t"], second["_t"]) == (b"\x00\x01", 2026, 5, 6)
    with pytest.raises(InvalidSettingsError, match=r"offset 7 .*base64"):
        to_updates([Record(7, js(**(row | {"x": "?"})))], "append", schema)


def _one(kind: pa.DataType, text: str) -> pa.Table:
    """Return the update of a record whose member has this JSON text."""
    schema = CollectionSchema.new(pa.schema([("v", kind)]), kind="diff", key=())
    return to_updates([Record(3, b'{"v": %s}' % text.encode())], "append", schema)


def test_numbers_and_times_have_all_their_digits() -> None:
    wide = pa.decimal128(24, 2)
    for kind, text, expected in (
        (wide, "12345678901234567.89", Decimal("12345678901234567.89")),
        (wide, "9007199254740993.01", Decimal("9007199254740993.01")),
        (wide, "-1.5e3", Decimal(-1500)),
        (wide, '"9007199254740993.01"', Decimal("9007199254740993.01")),
        (wide, "9007199254740993", Decimal(9007199254740993)),
        (pa.float64(), "0.1", 0.1),
        (pa.float64(), '"-Infinity"', -math.inf),
        (pa.float32(), "0.5", 0.5),
        (pa.float32(), "0.123456789", 0.12345679104328156),
        (pa.float32(), '"1e-50"', 0.0),
        (pa.time64("us"), '"12:30:15.000001000"', time(12, 30, 15, 1)),
        (
            pa.timestamp("us"),
            '"1970-01-01 00:00:00.123456000"',
            datetime(1970, 1, 1, 0, 0, 0, 123456),
        ),
    ):
        with case(kind, text):
            assert _one(kind, text)["v"].to_pylist() == [expected]


def test_what_would_change_is_refused_with_its_offset() -> None:
    for kind, text in (
        (pa.decimal128(9, 2), "5.256"),
        (pa.decimal128(9, 2), "1e400"),
        (pa.decimal128(9, 2), '"NaN"'),
        (pa.float64(), "1e400"),
        (pa.float64(), "-1e400"),
        (pa.float64(), "NaN"),
        (pa.float64(), "Infinity"),
        (pa.float64(), '"1e400"'),
        (pa.float64(), "9007199254740993"),
        (pa.float32(), "16777217"),
        (pa.float32(), "1e300"),
        (pa.int64(), "1.0"),
        (pa.timestamp("us"), '"1970-01-01 00:00:00.123456789"'),
        (pa.time64("us"), '"12:30:15.0000001"'),
    ):
        with case(kind, text), pytest.raises(InvalidSettingsError, match="offset 3 "):
            _one(kind, text)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us")])
def test_what_a_value_becomes_does_not_depend_on_those_beside_it(kind: pa.DataType) -> None:
    """A number and a text in one batch are what each of them is in a batch of its own."""
    schema = CollectionSchema.new(pa.schema([("v", kind)]), kind="diff", key=())
    records = [
        Record(offset, js(v=value), None, None, {}, 0)
        for offset, value in enumerate((1, "2024-01-01", None))
    ]
    alone = [to_updates([record], "append", schema).column("v") for record in records]
    together = to_updates(records, "append", schema).column("v").to_pylist()
    assert together == [value for column in alone for value in column.to_pylist()]
