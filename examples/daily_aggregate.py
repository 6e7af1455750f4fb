"""Keep a daily aggregate of a log with Spark, in a versioned collection that can be read as of any batch.

A streaming query adds the records up by day, and its state knows the totals. Each micro-batch publishes the
days that it changed, at the time that is its number. A batch that Spark repeats after a crash has the same
number and the same rows, so that it changes nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from uploader import Collection
from walstore import Wal
from walstore.spark import local_session

SCHEMA = pa.schema(
    [pa.field("day", pa.date32(), nullable=False), ("orders", pa.int64()), ("cents", pa.int64())]
)
DAY_US = 86_400_000_000
FIRST_US = 1_767_225_600_000_000  # 2026-01-01, UTC


async def append(log: Path, first: int, last: int) -> None:
    """Append orders of 100 cents and more, ten a day."""
    async with Wal.open(log) as wal:
        for number in range(first, last):
            at = FIRST_US + number // 10 * DAY_US
            wal.append_nowait(b"%d" % (100 + number), timestamp_us=at)
        await wal.flush()


def publish(url: str, rows: DataFrame, batch: int) -> None:
    """Publish the changed days of a micro-batch; Spark calls it on a thread of the driver."""
    days = sorted(rows.collect())
    columns = [[row[name] for row in days] for name in SCHEMA.names]
    table = pa.table(columns, schema=SCHEMA)

    async def put() -> None:
        async with Collection.open(url) as collection:
            await collection.writer().publish(table, lower=batch, upper=batch + 1)

    asyncio.run(put())


def aggregate(spark: SparkSession, log: Path, url: str, checkpoint: Path) -> None:
    """Bring the aggregate up to date, in one run of many; a real program would not end."""
    orders = spark.readStream.format("walstore").load(str(log))
    days = orders.groupBy(f.to_date("timestamp").alias("day")).agg(
        f.count("*").alias("orders"),
        f.sum(f.col("value").cast("string").cast("long")).alias("cents"),
    )
    query = (
        days.writeStream.outputMode("update")
        .foreachBatch(lambda rows, batch: publish(url, rows, batch))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


async def create(url: str) -> None:
    """Create the collection: the last row of each day counts."""
    async with Collection.open(url, create=True, schema=SCHEMA, key=("day",), kind="upsert"):
        pass


async def look(url: str) -> None:
    """Print the aggregate as of each batch."""
    async with Collection.open(url) as collection, await collection.reader() as reader:
        for batch in range(await reader.upper()):
            days = (await reader.snapshot(as_of=batch)).to_pylist()
            print(f"batch {batch}:", *(f"{row['day']} {row['cents']}" for row in days), sep="\n  ")


def main(directory: Path) -> None:
    """Write orders and aggregate them, twice; the second run continues the first one's state."""
    log, url = directory / "orders", (directory / "daily").as_uri()
    asyncio.run(append(log, 0, 15))
    asyncio.run(create(url))
    config = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    spark = local_session(config=config)
    aggregate(spark, log, url, directory / "checkpoint")
    asyncio.run(append(log, 15, 30))
    aggregate(spark, log, url, directory / "checkpoint")
    asyncio.run(look(url))
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
