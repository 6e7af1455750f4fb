"""What reading a collection in Spark costs beside Spark's own scan and aggregate of the same rows.

Run from the root of the repository::

    python -m bench.spark_collection_reading [--rows 10000000] [--rounds 3]

The collection is of the kind ``diff``: one merged batch with half of the rows, four pending ones with the
rest. The reference is plain Parquet of the same rows without our columns but the count, in as many files, and
the same sum by group. Rounds are interleaved; the figure is the median of Spark's time by ours, with all
costs of the call.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from uploader import Collection, Controller
from walstore.spark import local_session, read_collection

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("place", pa.string())])
PENDING = 4


def table(first: int, rows: int) -> pa.Table:
    """Return rows with ids from ``first`` on."""
    ids = pa.array(range(first, first + rows), pa.int64())
    places = pa.array([f"place {n % 100}" for n in range(rows)]).dictionary_encode()
    return pa.table(
        {
            "id": ids,
            "amount": pc.multiply(ids, 7919),
            "place": places.cast(pa.string()),
        }
    )


async def fill(url: str, plain: Path, rows: int) -> None:
    """Write the collection, and the same rows as plain Parquet."""
    part = rows // (2 * PENDING)
    plain.mkdir()
    async with (
        Collection.open(url, create=True, schema=SCHEMA, key=("id",)) as collection,
        Controller.open(url) as keeper,
    ):
        writer = collection.writer()
        for number in range(2 * PENDING):
            found = table(number * part, part)
            await writer.append(found, lower=number, upper=number + 1)
            counted = found.append_column("_d", pa.repeat(pa.scalar(1, pa.int64()), part))
            await asyncio.to_thread(
                pq.write_table, counted, plain / f"{number}.parquet", compression="zstd"
            )
            if number == PENDING - 1:
                await keeper.compact(full=True)


def plain_content(spark: SparkSession, folder: Path) -> DataFrame:
    """Return what Spark itself makes of the plain files."""
    rows = spark.read.parquet(str(folder)).groupBy(*SCHEMA.names)
    return rows.agg(F.sum("_d").alias("_d")).where(F.col("_d") != 0)


def seconds_of(made: Callable[[], DataFrame]) -> float:
    """Return how long a frame takes to make and to compute, without its rows going anywhere."""
    began = time.perf_counter()
    made().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    """Print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    spark = local_session(config={"spark.sql.shuffle.partitions": "8"})
    with tempfile.TemporaryDirectory() as folder:
        url, plain = f"file://{folder}/collection", Path(folder, "plain")
        asyncio.run(fill(url, plain, given.rows))
        for way in ("always", "never"):
            ratios, ours = [], []
            for _ in range(given.rounds):
                bare = seconds_of(lambda: plain_content(spark, plain))
                ours.append(seconds_of(lambda way=way: read_collection(spark, url, fast_path=way)))
                ratios.append(bare / ours[-1])
            print(
                f"fast_path={way}: {statistics.median(ratios):.2f} of Spark's own speed,"
                f" {given.rows / statistics.median(ours) / 1e6:.2f} M rows/s,"
                f" load {os.getloadavg()[0]:.1f}"
            )
    spark.stop()


if __name__ == "__main__":
    main()
