"""Streams in a real Spark: restarts, triggers, limits, joins, and what users see when something is wrong."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions

from tests.walstore.spark.streaming.test_stream_reader import append, collect, cursor
from tests.walstore.spark.versions import limit, needs_limits, sizes
from uploader import CloudWriter
from walstore import Wal
from walstore.spark.features import HAS_LIMITS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/orders"


class Landing:
    """A query that lands a log in a Parquet table."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.table = str(root / "table")
        self.checkpoint = str(root / "checkpoint")

    def run(self, frame: DataFrame) -> list[Any]:
        """Land all there is; return the progress of each micro-batch."""
        query = (
            frame.writeStream.format("parquet")
            .option("path", self.table)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return list(query.recentProgress)

    def offsets(self) -> list[int]:
        return sorted(row.offset for row in self.spark.read.parquet(self.table).collect())


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> Landing:
    return Landing(spark, tmp_path)


def stream(spark: SparkSession, place: object, **options: object) -> DataFrame:
    return spark.readStream.format("walstore").options(**options).load(str(place))


def test_each_record_once_over_restarts(spark: SparkSession, landing, url):
    append(url, 100)
    frame = stream(spark, url, cursorName="etl", **limit(30))
    assert frame.isStreaming
    done = landing.run(frame)
    assert [batch.numInputRows for batch in done] == sizes(100, 30)
    append(url, 50)
    done = landing.run(stream(spark, url, cursorName="etl", **limit(30)))
    assert [batch.numInputRows for batch in done] == sizes(50, 30)
    assert landing.offsets() == list(range(1, 151))
    # trap 2: the last batch is not committed
    assert cursor(url, "etl") == 151 - sizes(50, 30)[-1]
    assert landing.run(stream(spark, url, cursorName="etl"))[-1].numInputRows == 0
    assert cursor(url, "etl") in {151 - sizes(50, 30)[-1], 151}


@needs_limits
def test_progress_shows_how_far_the_query_is_behind(spark: SparkSession, landing, url):
    append(url, 100)
    (first, *_) = landing.run(stream(spark, url, maxOffsetsPerTrigger=40))
    (source,) = first.sources
    assert json.loads(source.endOffset) == {"orders": {"0": 41}}
    assert json.loads(source.latestOffset) == {"orders": {"0": 101}}


def test_a_live_log_of_this_machine(spark: SparkSession, log_directory, tmp_path):
    """Records become visible while the query runs, one row for each."""
    found: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(row.offset for row in batch.select("offset").collect())

    async def run() -> None:
        async with Wal.open(log_directory) as wal:
            await wal.append_many([b"v"] * 10)
            query = await asyncio.to_thread(
                stream(spark, log_directory)
                .writeStream.foreachBatch(take)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .start
            )
            try:
                await asyncio.to_thread(query.processAllAvailable)
                assert found == list(range(1, 11))
                await wal.append_many([b"v"] * 5)
                await asyncio.to_thread(query.processAllAvailable)
                assert found == list(range(1, 16))
            finally:
                await asyncio.to_thread(query.stop)

    asyncio.run(run())


def test_two_logs_joined(spark: SparkSession, tmp_path):
    async def fill() -> None:
        async with CloudWriter.open(f"file://{tmp_path}/store/orders") as log:
            for at in range(20):
                await log.append(b"order %d" % at, key=b"%d" % at)
        async with CloudWriter.open(f"file://{tmp_path}/store/payments") as log:
            for at in range(0, 20, 2):
                await log.append(b"payment %d" % at, key=b"%d" % at)

    asyncio.run(fill())
    rows: list[tuple[str, str]] = []

    def take(batch: DataFrame, _: int) -> None:
        rows.extend((row[0], row[1]) for row in batch.collect())

    place = f"file://{tmp_path}/store"
    both = stream(spark, place, subscribe="orders,payments", **limit(12))
    text = functions.col("value").cast("string")
    orders = both.where("topic = 'orders'").select("key", text.alias("order"))
    payments = both.where("topic = 'payments'").select("key", text.alias("payment"))
    query = (
        orders.join(payments, "key")
        .select("order", "payment")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(rows) == sorted((f"order {at}", f"payment {at}") for at in range(0, 20, 2))


def test_records_that_are_gone(spark: SparkSession, landing, url):
    for _ in range(4):
        append(url, 10)
    landing.run(stream(spark, url, **limit(5)))
    for _ in range(4):
        append(url, 10)
    collect(url, 61)
    with pytest.raises(StreamingQueryException, match="were removed before the query read them"):
        landing.run(stream(spark, url))
    landing.run(stream(spark, url, failOnDataLoss="false"))
    assert landing.offsets() == [*range(1, 41), *range(61, 81)]


def test_a_checkpoint_of_another_log(spark: SparkSession, landing, tmp_path):
    """Spark 4.0 and 4.1 plan a batch from 11 to 6; what they planned stays in the checkpoint."""
    one, other = f"file://{tmp_path}/one/orders", f"file://{tmp_path}/other/orders"
    append(one, 10)
    append(other, 5)
    landing.run(stream(spark, one))
    for lenient in ("true", "false"):
        with pytest.raises(StreamingQueryException, match="another log than the checkpoint is of"):
            landing.run(stream(spark, other, failOnDataLoss=lenient))
    assert landing.offsets() == list(range(1, 11))


def test_a_log_that_is_gone_at_a_restart(spark: SparkSession, landing, tmp_path):
    place = f"file://{tmp_path}/store"
    append(f"{place}/orders", 10)
    append(f"{place}/clicks", 3)
    landing.run(stream(spark, place, subscribePattern=".*"))
    shutil.move(tmp_path / "store" / "clicks", tmp_path / "gone")
    append(f"{place}/orders", 5)
    with pytest.raises(StreamingQueryException, match="clicks: the query has read this log before"):
        landing.run(stream(spark, place, subscribePattern=".*"))
    landing.run(stream(spark, place, subscribePattern=".*", failOnDataLoss="false"))
    assert landing.offsets() == sorted([*range(1, 16), 1, 2, 3])
    # It comes back. Spark 4.2 has kept how far the query was; the manual says what older ones do.
    shutil.move(tmp_path / "gone", tmp_path / "store" / "clicks")
    landing.run(stream(spark, place, subscribePattern=".*"))
    again = [] if HAS_LIMITS else [1, 2, 3]
    assert landing.offsets() == sorted([*range(1, 16), 1, 2, 3, *again])


@pytest.mark.skipif(HAS_LIMITS, reason="this Spark limits micro-batches")
def test_limits_are_refused_by_an_older_spark(spark: SparkSession, landing, url):
    append(url, 3)
    for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger"):
        with pytest.raises(StreamingQueryException, match=rf"{name}.* need Spark 4\.2 or newer"):
            landing.run(stream(spark, url, **{name: 2}))
    landing.run(stream(spark, url))
    assert landing.offsets() == [1, 2, 3]


def test_mistakes_are_told(spark: SparkSession, landing, url):
    append(url, 1)
    with pytest.raises(AnalysisException, match="unknown option startingofset; known are path"):
        stream(spark, url, startingOfset=1, cursorName="etl")
    for options, message in (
        ({"startingOffsets": "latest"}, "with the option cursorName"),
        ({"endingOffsets": 5}, "endingOffsets is an option of batch reads"),
        ({"minPartitions": 0}, "minPartitions must be a whole number from 1"),
    ):
        with pytest.raises((AnalysisException, StreamingQueryException), match=message):
            landing.run(stream(spark, url, **options))
    with pytest.raises(AnalysisException, match="unknown option cursorname"):
        spark.read.format("walstore").option("cursorName", "etl").load(url).count()
    with pytest.raises(AnalysisException, match="LogNotFoundError: there is no log at"):
        stream(spark, url + "2")


def test_columns_are_chosen_by_the_schema(spark: SparkSession, landing, url):
    append(url, 10)
    frame = spark.readStream.format("walstore").schema("offset bigint, value binary").load(url)
    landing.run(frame)
    assert landing.offsets() == list(range(1, 11))
    assert landing.spark.read.parquet(landing.table).columns == ["offset", "value"]
