"""Collections in a real Spark: read, written and followed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.walstore.spark.versioned.histories import append, compact, snapshot
from uploader import Collection
from walstore.spark.features import HAS_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

FORMAT = "walstore.collection"
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


async def create(url: str, kind: str = "upsert", *tables: pa.Table) -> None:
    """Create a collection of batches of ten times."""
    async with Collection.open(url, create=True, schema=COLUMNS, key=("id",), kind=kind) as made:  # type: ignore[arg-type]
        for number, table in enumerate(tables):
            await made.writer().append(table, lower=10 * number, upper=10 * number + 10)


def content(url: str, as_of: int | None = None) -> list[dict[str, Any]]:
    return asyncio.run(snapshot(url, as_of)).to_pylist()


def people(*rows: tuple[int, str | None], **more: list[Any]) -> pa.Table:
    return pa.table({"id": [one for one, _ in rows], "name": [name for _, name in rows]} | more)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_the_content_is_read(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/people"
    asyncio.run(create(url, "upsert", people((1, "Ada"), (2, "Bob")), people((2, "Bea"))))
    reading = spark.read.format(FORMAT).option("minPartitions", 2)
    assert rows_of(reading.load(url)) == [(1, "Ada"), (2, "Bea")]
    assert rows_of(reading.option("asOf", 9).load(url)) == [(1, "Ada"), (2, "Bob")]
    assert rows_of(reading.schema("name string").load(url)) == [("Ada",), ("Bob",)]
    assert spark.read.format(FORMAT).load(url).filter("id = 1").count() == 1


def test_rows_are_written(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/people"
    asyncio.run(create(url, "diff"))
    frame = spark.createDataFrame([(1, "Ada"), (1, "Ada"), (2, None)], "id long, name string")
    for _ in range(2):
        frame.write.format(FORMAT).mode("append").option("lower", 0).option("upper", 5).save(url)
    frame.write.format(FORMAT).mode("append").save(url)
    found = spark.read.format(FORMAT).load(url)
    assert found.columns == ["id", "name", "_d"]
    assert sorted(tuple(row) for row in found.collect()) == [(1, "Ada", 4), (2, None, 2)]
    assert not list((tmp_path / "people" / "staging").rglob("*.parquet"))


def test_changes_are_followed(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/people"
    gone = people((1, None), _deleted=[True])
    asyncio.run(create(url, "upsert", people((1, "Ada"), (2, "Bob")), people((2, "Bea"))))
    reading = spark.readStream.format(FORMAT).option("reader", "query")
    if HAS_LIMITS:
        reading = reading.option("maxTimesPerTrigger", 10)

    def run() -> None:
        query = (
            reading.load(url)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        query.awaitTermination()

    run()
    asyncio.run(append(url, gone, 20, 30))
    asyncio.run(compact(url))
    run()
    table = spark.read.parquet(str(tmp_path / "table")).select("_t", "_change", "id", "name")
    assert rows_of(table) == [
        (0, "upsert", 1, "Ada"),
        (0, "upsert", 2, "Bob"),
        (10, "upsert", 2, "Bea"),
        (20, "delete", 1, None),
    ]


def test_a_stream_is_written(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/people"
    asyncio.run(create(url, "upsert"))
    (tmp_path / "files").mkdir()

    def run(name: str, *lines: str, checkpoint: str = "checkpoint", start: int = 0) -> None:
        (tmp_path / "files" / name).write_text("\n".join(lines))
        query = (
            spark.readStream.schema("id long, name string, _deleted boolean")
            .json(str(tmp_path / "files"))
            .na.fill(value=False, subset=["_deleted"])
            .writeStream.format(FORMAT)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .option("start", start)
            .trigger(availableNow=True)
            .start(url)
        )
        query.awaitTermination()

    run("0.json", '{"id": 1, "name": "Ada"}', '{"id": 2, "name": "Bob"}')
    run("1.json", '{"id": 1, "_deleted": true}')
    assert content(url) == [{"id": 2, "name": "Bob"}]
    assert content(url, 0) == [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]
    with pytest.raises(Exception, match="checkpoint is another one") as caught:
        run("2.json", '{"id": 3, "name": "Cy"}', checkpoint="lost")
    assert "start=2" in str(caught.value)
    run("2.json", '{"id": 3, "name": "Cy"}', checkpoint="lost", start=2)
    assert [row["id"] for row in content(url)] == [2, 3]
