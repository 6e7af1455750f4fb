"""Aggregate a log with SQL while its writer still has it open.

Spark reads the log's directory itself; the writer is not asked and not slowed down. What is durable is seen.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from walstore import Wal
from walstore.spark import local_session

QUERY = """
    SELECT stream AS country, count(*) AS orders, sum(CAST(value AS STRING) :: INT) AS cents
    FROM orders GROUP BY stream ORDER BY country
"""


async def main(directory: Path) -> None:
    """Write orders, and let Spark look at them before the log is closed."""
    spark = await asyncio.to_thread(local_session, config={"spark.sql.shuffle.partitions": "2"})
    async with Wal.open(directory / "orders") as wal:
        for number in range(1000):
            country = ("de", "fr", "nl")[number % 3]
            wal.append_nowait(b"%d" % (100 + number % 7), stream=country)
        await wal.flush()
        rows = await asyncio.to_thread(aggregate, spark, directory / "orders")
    for row in rows:
        print(json.dumps(row))
    await asyncio.to_thread(spark.stop)


def aggregate(spark: SparkSession, log: Path) -> list[dict[str, object]]:
    """Return the totals of each country."""
    spark.read.format("walstore").load(str(log)).createOrReplaceTempView("orders")
    return [row.asDict() for row in spark.sql(QUERY).collect()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(Path(scratch)))
