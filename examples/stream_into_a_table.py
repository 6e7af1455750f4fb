"""Stream a log into a Parquet table, in two runs: the second goes on where the first one was.

Spark keeps its place in the checkpoint, so each record is in the table once, however often the query is
started.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from walstore import Wal
from walstore.spark import local_session


async def append(log: Path, first: int, last: int) -> None:
    """Append some orders."""
    async with Wal.open(log) as wal:
        await wal.append_many([b"order %d" % number for number in range(first, last + 1)])


def land(spark: SparkSession, log: Path, table: Path) -> None:
    """Add to the table what the log has and the table has not."""
    # Spark 4.0 and 4.1 cannot limit a micro-batch; leave the option out there.
    stream = spark.readStream.format("walstore").option("maxOffsetsPerTrigger", 200).load(str(log))
    orders = stream.select("offset", "timestamp", stream.value.cast("string").alias("text"))
    writer = orders.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{table}/_checkpoint").start(str(table))
    query.awaitTermination()


def main(directory: Path) -> None:
    """Land 500 orders, then 300 more."""
    log, table = directory / "orders", directory / "table"
    spark = local_session()
    for first, last in ((1, 500), (501, 800)):
        asyncio.run(append(log, first, last))
        land(spark, log, table)
        rows = spark.read.parquet(str(table))
        records = rows.select("offset").distinct().count()
        print(f"the table has {rows.count()} rows of {records} records")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
