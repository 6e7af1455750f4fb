"""The content of a collection in an Iceberg table: at one time, replaced as a whole, and the table's own."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from tests.uploader.iceberg.lakehouse import (
    FaultyCatalog,
    Killed,
    Lakehouse,
    after,
    fail_before,
    happen_then_fail,
)
from tests.uploader.versioned.collections import HOUR, SCHEMA, Site, rows
from uploader import Collection, IcebergTarget
from uploader.iceberg.iceberg_columns import to_iceberg
from uploader.testing.faults import fail, timeout
from walstore.errors import (
    InvalidSettingsError,
    OutcomeUnknownError,
    SinceViolationError,
    StorageUnavailableError,
)

pytestmark = pytest.mark.slow

A, B, C = rows((1, "a")), rows((1, "b")), rows((2, "c"))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakehouse]:
    FaultyCatalog.faults.clear()
    yield Lakehouse(tmp_path)
    assert not FaultyCatalog.faults


async def content(lake: Lakehouse) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in await asyncio.to_thread(lake.rows))


async def snapshots(lake: Lakehouse) -> int:
    def count() -> int:
        with lake.table() as table:
            return len(table.snapshots())

    return await asyncio.to_thread(count)


async def test_a_later_time_replaces_an_earlier_one_and_the_same_changes_nothing(lake: Lakehouse):
    site = Site("upsert")
    async with site.program().opened() as collection, await collection.reader() as reader:
        writer = collection.writer()
        empty = await reader.export_iceberg(lake.target())
        assert (empty.as_of, empty.rows, empty.files, empty.is_new) == (-1, 0, 0, True)
        assert await content(lake) == []
        for lower, table in enumerate((A, C, B, rows((2, "c"), _deleted=[True]))):
            await writer.append(table, lower=lower, upper=lower + 1)
        for as_of, expected in (
            (1, [(1, "a"), (2, "c")]),
            (2, [(1, "b"), (2, "c")]),
            (3, [(1, "b")]),
        ):
            done = await reader.export_iceberg(lake.target(), as_of=as_of)
            assert (done.as_of, done.rows, done.is_new) == (as_of, len(expected), True)
            assert not (await reader.export_iceberg(lake.target(), as_of=as_of)).is_new
            assert await content(lake) == expected
        assert not (await reader.export_iceberg(lake.target())).is_new
        assert await snapshots(lake) == 4
        with pytest.raises(InvalidSettingsError, match="never goes back"):
            await reader.export_iceberg(lake.target(), as_of=2)
        await writer.append(rows((1, "b"), _deleted=[True]), lower=4, upper=5)
        assert (await reader.export_iceberg(lake.target())).files == 0
        assert await content(lake) == []


async def test_counts_of_a_diff_collection(lake: Lakehouse):
    site = Site("diff")
    async with site.program().opened() as collection, await collection.reader() as reader:
        await collection.writer().append(rows((1, "a"), (1, "a"), (2, "b")), lower=0, upper=1)
        await reader.export_iceberg(lake.target())
    assert await asyncio.to_thread(lake.rows) == [
        {"k": 1, "v": "a", "_d": 2},
        {"k": 2, "v": "b", "_d": 1},
    ]


async def test_columns_that_changed_between_two_exports(lake: Lakehouse):
    narrow = pa.schema([("k", pa.int32()), ("n", pa.uint32())])
    wide = pa.schema([("k", pa.int64()), ("n", pa.uint32()), ("new", pa.float64())])
    url = "memory://evolving"
    async with (
        Collection.open(url, create=True, schema=narrow, key=("k",), kind="upsert") as collection,
        await collection.reader() as reader,
    ):
        await collection.writer().append(pa.table({"k": [1], "n": [2]}, narrow), lower=0, upper=1)
        assert (await reader.export_iceberg(lake.target())).is_new
        await collection.evolve(wide)
        assert (await reader.export_iceberg(lake.target(), as_of=0)).is_new
        assert await content(lake) == [(1, 2, None)]
        more = pa.table({"k": [1 << 40], "n": [3], "new": [0.5]}, wide)
        await collection.writer().append(more, lower=1, upper=2)
        await reader.export_iceberg(lake.target())
        assert await content(lake) == [(1, 2, None), (1 << 40, 3, 0.5)]
        await collection.evolve(wide.set(1, pa.field("n", pa.uint64())))
        with pytest.raises(InvalidSettingsError, match="export to a new table"):
            await reader.export_iceberg(lake.target())
        assert (await reader.export_iceberg(lake.target("shop.other"))).rows == 2
    assert await content(lake) == [(1, 2, None), (1 << 40, 3, 0.5)]
    left = await asyncio.to_thread(
        lambda: list((lake.path / "warehouse/shop/orders/data").iterdir())
    )
    assert len(left) == 3  # of three exports; what the refused one wrote is gone


async def test_neither_collection_nor_deletion_touches_the_files(lake: Lakehouse):
    site = Site("upsert")
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(A, lower=0, upper=1)
        async with await collection.reader() as reader:
            await reader.export_iceberg(lake.target())
            await collection.writer().append(C, lower=1, upper=9)
            await reader.downgrade_since(8)
            await keeper.compact(full=True)
            with pytest.raises(SinceViolationError):
                await reader.export_iceberg(lake.target("shop.other"), as_of=3)
        await site.clock.advance(2 * HOUR)
        await keeper.gc()
        assert await content(lake) == [(1, "a")]
    async with site.program().opened() as collection:
        await collection.delete()
    assert await content(lake) == [(1, "a")]


@pytest.mark.parametrize(
    "error",
    [
        CommitFailedException("injected"),
        CommitStateUnknownException("injected"),
        OSError("injected"),
    ],
    ids=["conflict", "unknown", "reset"],
)
async def test_commits_whose_answer_is_wrong(lake: Lakehouse, error: Exception):
    site = Site("upsert")
    target = lake.target(faulty=True)
    async with site.program().opened() as collection, await collection.reader() as reader:
        await collection.writer().append(A, lower=0, upper=1)
        FaultyCatalog.faults.append(happen_then_fail(error))
        assert (await reader.export_iceberg(target)).is_new
        await collection.writer().append(C, lower=1, upper=2)
        FaultyCatalog.faults.append(fail_before(error))
        with pytest.raises(OutcomeUnknownError):
            await reader.export_iceberg(target)
        assert await content(lake) == [(1, "a")]
        assert (await reader.export_iceberg(target)).is_new
        assert await content(lake) == [(1, "a"), (2, "c")]


@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
async def test_killed_in_the_commit(lake: Lakehouse, happens: bool):
    site = Site("upsert")
    async with site.program().opened() as collection, await collection.reader() as reader:
        await collection.writer().append(A, lower=0, upper=1)
        FaultyCatalog.faults.append((happen_then_fail if happens else fail_before)(Killed()))
        with pytest.raises(Killed):
            await reader.export_iceberg(lake.target(faulty=True))
        assert (await reader.export_iceberg(lake.target())).is_new is not happens
    assert await content(lake) == [(1, "a")]


@pytest.mark.parametrize("as_of", [0, 1])
async def test_two_at_once(lake: Lakehouse, as_of: int):
    """The other one is first with time 1. The same time has nothing to do then, an earlier one is refused."""
    site = Site("upsert")
    async with site.program().opened() as collection, await collection.reader() as reader:
        await collection.writer().append(A, lower=0, upper=1)
        await collection.writer().append(C, lower=1, upper=2)
        loop = asyncio.get_running_loop()

        def other() -> None:
            exporting = reader.export_iceberg(lake.target(), as_of=1)
            asyncio.run_coroutine_threadsafe(exporting, loop).result()

        FaultyCatalog.faults.append(after(other))
        mine = reader.export_iceberg(lake.target(faulty=True), as_of=as_of)
        if as_of:
            assert not (await mine).is_new
        else:
            with pytest.raises(InvalidSettingsError, match="as of 1 already"):
                await mine
    assert await content(lake) == [(1, "a"), (2, "c")]
    data = lake.path / "warehouse/shop/orders/data"
    assert len(await asyncio.to_thread(lambda: list(data.iterdir()))) == 1


async def test_a_store_or_catalog_that_fails(lake: Lakehouse):
    site = Site("upsert")
    program = site.program()
    async with program.opened() as collection, await collection.reader() as reader:
        await collection.writer().append(A, lower=0, upper=1)
        program.store.on("get_range", fail(timeout()), key_prefix="pending/", times=9)
        with pytest.raises(StorageUnavailableError):
            await reader.export_iceberg(lake.target())
        nowhere = IcebergTarget(table="a.b", properties={"uri": "http://127.0.0.1:1"})
        with pytest.raises(StorageUnavailableError, match=r"iceberg:a\.b"):
            await reader.export_iceberg(nowhere)


async def test_a_table_of_something_else(lake: Lakehouse):
    def make() -> None:
        with lake.catalog() as catalog:
            catalog.create_namespace("shop")
            catalog.create_table("shop.orders", SCHEMA)

    await asyncio.to_thread(make)
    site = Site("upsert")
    async with site.program().opened() as collection, await collection.reader() as reader:
        with pytest.raises(InvalidSettingsError, match="has other rows"):
            await reader.export_iceberg(lake.target())


EVERY: dict[str, tuple[pa.DataType, Any, Any]] = {
    "i8": (pa.int8(), -1, -1),
    "u8": (pa.uint8(), 255, 255),
    "u16": (pa.uint16(), 65535, 65535),
    "u32": (pa.uint32(), 2**32 - 1, 2**32 - 1),
    "u64": (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
    "f32": (pa.float32(), 0.5, 0.5),
    "flag": (pa.bool_(), True, True),
    "text": (pa.large_string(), "é", "é"),
    "data": (pa.large_binary(), b"\xff", b"\xff"),
    "fixed": (pa.binary(2), b"ab", b"ab"),
    "date": (pa.date64(), dt.date(2025, 6, 1), dt.date(2025, 6, 1)),
    "time_s": (pa.time32("s"), dt.time(1, 2, 3), dt.time(1, 2, 3)),
    "time_ns": (pa.time64("ns"), dt.time(1, 2, 3, 4), dt.time(1, 2, 3, 4)),
    "at": (pa.timestamp("s"), dt.datetime(2025, 6, 1), dt.datetime(2025, 6, 1)),
    "zoned": (
        pa.timestamp("ns", tz="Europe/Berlin"),
        dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC),
        dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC),
    ),
    "span": (pa.duration("ms"), dt.timedelta(seconds=1), 1000),
    "money": (pa.decimal256(30, 2), Decimal("1.25"), Decimal("1.25")),
}


async def test_columns_of_every_type(lake: Lakehouse):
    schema = pa.schema([("k", pa.int64()), *((name, kind) for name, (kind, _, _) in EVERY.items())])
    columns = {name: pa.array([value], kind) for name, (kind, value, _) in EVERY.items()}
    url = "memory://types"
    async with (
        Collection.open(url, create=True, schema=schema, key=("k",), kind="upsert") as collection,
        await collection.reader() as reader,
    ):
        await collection.writer().append(pa.table({"k": [1], **columns}, schema), lower=0, upper=1)
        await reader.export_iceberg(lake.target())
    (row,) = await asyncio.to_thread(lake.rows)
    assert row == {"k": 1} | {name: value for name, (_, _, value) in EVERY.items()}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.timestamp("ns")),
        pa.array([1], pa.time64("ns")),
        pa.array([1], pa.decimal256(39, 0)),
        pa.array([None], pa.decimal128(2, 4)),
    ],
    ids=lambda column: str(column.type),
)
def test_what_iceberg_cannot_have(column: pa.Array):
    with pytest.raises(InvalidSettingsError, match="column 'x'"):
        to_iceberg(pa.table({"x": column}))
