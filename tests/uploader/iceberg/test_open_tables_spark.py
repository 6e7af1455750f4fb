"""Spark reads the files of a table. Its own Iceberg reader needs a jar, which is not looked for here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from tests.uploader.iceberg.lakehouse import Lakehouse
from uploader import CloudWriter, Collection, LogTable

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_spark_reads_the_files_of_all_tables(spark, tmp_path: Path) -> None:
    lake = Lakehouse(tmp_path)
    asyncio.run(fill((tmp_path / "log").as_uri(), lake))
    found = spark.read.parquet(*map(str, lake.files()))
    rows = found.selectExpr("cast(offset as long)", "cast(body as string)").orderBy("offset")
    assert [tuple(row) for row in rows.collect()] == [(1, "a"), (2, "b")]
    found = spark.read.parquet(*map(str, lake.files("shop.copies")))
    assert dict(found.dtypes)["offset"] == dict(found.dtypes)["timestamp_us"] == "bigint"
    rows = found.selectExpr("offset", "cast(body as string)").orderBy("offset")
    assert [tuple(row) for row in rows.collect()] == [(1, "a"), (2, "b")]
    found = spark.read.parquet(*map(str, lake.files("shop.people")))
    assert dict(found.dtypes) == {"id": "bigint", "n": "decimal(20,0)"}
    assert [(row.id, int(row.n)) for row in found.collect()] == [(1, 2**64 - 1)]


async def fill(url: str, lake: Lakehouse) -> None:
    async with CloudWriter.open(url, create=True) as writer:
        await writer.append(b"a")
        await writer.append(b"b")
    async with LogTable.open(url, lake.target()) as table:
        await table.step()
    async with LogTable.open(url, lake.target("shop.copies"), copy=True) as table:
        await table.step()
    schema = pa.schema([("id", pa.int64()), ("n", pa.uint64())])
    async with (
        Collection.open(
            "memory://spark", create=True, schema=schema, key=("id",), kind="upsert"
        ) as collection,
        await collection.reader() as reader,
    ):
        rows = pa.table({"id": [1], "n": [2**64 - 1]}, schema)
        await collection.writer().append(rows, lower=0, upper=1)
        await reader.export_iceberg(lake.target("shop.people"))
