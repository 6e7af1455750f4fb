"""Backfill a table from a log's history in one batch, then follow the log from exactly there on.

The batch read ends at an offset that is fixed before it begins; the stream starts at that offset. Nothing is
left out and nothing is there twice, although the log grows all the time.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from uploader import CloudLog, CloudWriter
from walstore.spark import local_session


async def append(url: str, first: int, last: int) -> None:
    """Append records straight to the store."""
    async with CloudWriter.open(url) as log:
        await log.append_many([b"%d" % number for number in range(first, last + 1)])


async def tail(url: str) -> int:
    """Return the offset of the next record."""
    async with CloudLog.open(url) as log:
        return log.tail


def backfill(spark: SparkSession, url: str, limit: int, table: str) -> None:
    """Write all records before ``limit``, in parallel, into the table."""
    history = spark.read.format("walstore").option("endingOffsets", limit).load(url)
    history.select("offset", "value").write.mode("append").parquet(table)


def follow(spark: SparkSession, url: str, start: int, table: str, checkpoint: str) -> None:
    """Write the records from ``start`` on, each micro-batch once; a real program would not end."""
    starting = json.dumps({"orders": {"0": start}})
    stream = spark.readStream.format("walstore").option("startingOffsets", starting).load(url)
    query = (
        stream.select("offset", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(table)
    )
    query.awaitTermination()


def main(directory: Path) -> None:
    """Write history, backfill, write more, follow; look at both together."""
    url = (directory / "store" / "orders").as_uri()
    asyncio.run(append(url, 1, 2000))
    limit = asyncio.run(tail(url))
    spark = local_session()
    asyncio.run(append(url, 2001, 2500))  # the log does not wait for us
    old, new = str(directory / "history"), str(directory / "live")
    backfill(spark, url, limit, old)
    asyncio.run(append(url, 2501, 3000))
    follow(spark, url, limit, new, str(directory / "checkpoint"))
    both = spark.read.parquet(old).unionByName(spark.read.parquet(new))
    rows, records = both.count(), both.select("offset").distinct().count()
    print(f"backfilled up to {limit}, {rows} rows of {records} records in all")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
