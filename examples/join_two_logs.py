"""Join two logs of one store: which orders were paid, and how long did it take?

Both logs are read by one query over the store's directory; the column ``topic`` names the log.
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame

from walstore import WalStore
from walstore.records import to_timestamp_us
from walstore.spark import local_session

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def fill(directory: Path) -> None:
    """Write 100 orders, one a minute, and a payment for two of three, each some minutes later."""
    async with WalStore.open(directory) as store:
        orders, payments = await store.wal("orders"), await store.wal("payments")
        for number in range(100):
            ordered = NOON + timedelta(minutes=number)
            key = b"order-%03d" % number
            await orders.append(
                b"a bicycle", key=key, timestamp_us=to_timestamp_us(ordered), durability="memory"
            )
            if number % 3:
                paid = ordered + timedelta(minutes=4 + number % 3)
                await payments.append(
                    b"paid", key=key, timestamp_us=to_timestamp_us(paid), durability="memory"
                )
        await orders.flush()
        await payments.flush()


def paid_after(events: DataFrame) -> DataFrame:
    """Return how many orders were paid after how many minutes; null for those that were not."""
    events.createOrReplaceTempView("events")
    return events.sparkSession.sql("""
        SELECT timestampdiff(MINUTE, o.timestamp, p.timestamp) AS minutes, count(*) AS orders
        FROM events o LEFT JOIN events p ON p.topic = 'payments' AND p.key = o.key
        WHERE o.topic = 'orders' GROUP BY minutes ORDER BY minutes NULLS LAST
    """)


def main(directory: Path) -> None:
    """Write the logs and join them."""
    asyncio.run(fill(directory))
    spark = local_session(config={"spark.sql.shuffle.partitions": "2"})
    source = spark.read.format("walstore").option("subscribe", "orders,payments")
    for row in paid_after(source.load(str(directory))).collect():
        print("not paid" if row.minutes is None else f"paid after {row.minutes} min", row.orders)
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
