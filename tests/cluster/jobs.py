"""What a driver does on the cluster: ``python -m tests.cluster.jobs``.

It has the session that its environment describes. A line of its input is a job: name, interpreter of the
Python workers, arguments. A line of its output is what the job returned, and its error. All is JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.cluster.cluster import SETTINGS
from tests.waiting import wait_until
from walstore.errors import WalError
from walstore.spark import register
from walstore.spark.environment import require_workers

COLLECTION = "walstore.collection"
TASKS = 6
ROWS = 200
EAGER = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "100ms",
}
"""Try a task again elsewhere as soon as half of them are done and it takes longer than they did."""


def start() -> SparkSession:
    """Start a session on the cluster."""
    builder = SparkSession.builder.appName("tests on a cluster")
    for name, value in json.loads(os.environ[SETTINGS]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def work(spark: SparkSession, url: str, copy: str, directory: str) -> dict[str, Any]:
    """Do all that a job may do with a log."""
    register(spark)
    require_workers(spark)
    return {
        "read": read(spark, url),
        "written": write(spark, url, copy),
        "streamed": stream(spark, url, directory),
    }


def read(spark: SparkSession, url: str) -> dict[str, Any]:
    """Read a log in many tasks; tell which executor read which offsets with which interpreter."""

    def tell(rows):
        yield os.environ["SPARK_EXECUTOR_DIRS"], sys.executable, [row.offset for row in rows]

    frame = spark.read.format("walstore").option("minPartitions", 6).load(url)
    return {
        "told": frame.select("offset").rdd.mapPartitions(tell).collect(),
        "values": values_of(frame),
        "plan": frame._jdf.queryExecution().toString(),
    }


def write(spark: SparkSession, url: str, copy: str) -> dict[str, Any]:
    """Write a log, twice the same, as another one of two partitions; tell what that has."""
    frame = spark.read.format("walstore").option("minPartitions", 4).load(url)
    for _ in range(2):
        writer = frame.select("key", "value").write.format("walstore").mode("append")
        writer.option("partitions", 2).option("queryId", "copy").save(copy)
    copied = spark.read.format("walstore").load(copy)
    partitions = copied.select("partition").distinct().collect()
    return {
        "values": values_of(copied),
        "partitions": sorted(row.partition for row in partitions),
    }


def stream(spark: SparkSession, url: str, directory: str) -> dict[str, Any]:
    """Stream a log into a Parquet table in small batches; tell what is in it."""
    frame = spark.readStream.format("walstore").option("maxOffsetsPerTrigger", 400).load(url)
    writer = frame.writeStream.format("parquet").trigger(availableNow=True)
    table = str(Path(directory, "table"))
    query = writer.option("checkpointLocation", str(Path(directory, "checkpoint"))).start(table)
    query.awaitTermination()
    landed = spark.read.parquet(table)
    return {
        "batches": len(query.recentProgress),
        "offsets": sorted(row.offset for row in landed.select("offset").collect()),
        "values": values_of(landed),
    }


def collections(spark: SparkSession, url: str, copy: str, directory: str) -> dict[str, Any]:
    """Read a collection in many tasks, write it into another, twice the same, and follow that."""

    def tell(rows):
        yield os.environ["SPARK_EXECUTOR_DIRS"], [row.id for row in rows]

    register(spark)
    frame = spark.read.format(COLLECTION).option("minPartitions", 6).load(url)
    told = frame.rdd.mapPartitions(tell).collect()
    for _ in range(2):
        writer = frame.write.format(COLLECTION).mode("append")
        writer.option("lower", 0).option("upper", 7).save(copy)
    changes = spark.readStream.format(COLLECTION).option("reader", "follower").load(copy)
    table = str(Path(directory, "changes"))
    writer = changes.writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(Path(directory, "following")))
    writer.start(table).awaitTermination()
    landed = spark.read.parquet(table).collect()
    return {
        "told": told,
        "plan": frame._jdf.queryExecution().toString(),
        "copied": sorted(tuple(row) for row in spark.read.format(COLLECTION).load(copy).collect()),
        "followed": sorted((row.id, row.name, row["_change"], int(row["_t"])) for row in landed),
    }


def values_of(frame: DataFrame) -> list[str]:
    """Return all values, in order."""
    return sorted(bytes(row.value).hex() for row in frame.select("value").collect())


def speculate(spark: SparkSession, target: str, directory: str) -> dict[str, Any]:
    """Write rows by tasks of which one hangs until Spark has tried it elsewhere; tell what was tried."""
    attempts = Path(directory)

    def rows(number: int, _: Iterator[int]) -> Iterator[tuple[bytes, bytes]]:
        attempt = TaskContext.get().attemptNumber()
        (attempts / f"{number}-{attempt}").touch()
        for at in range(ROWS):
            if (number, attempt, at) == (TASKS - 1, 0, ROWS // 2):
                wait_for(attempts / f"{number}-1-done")
            yield b"key", b"%d of %d" % (at, number)
        (attempts / f"{number}-{attempt}-done").touch()

    register(spark)
    spread = spark.sparkContext.parallelize(range(TASKS), TASKS).mapPartitionsWithIndex(rows)
    frame = spark.createDataFrame(spread, "key binary, value binary")
    writer = frame.write.format("walstore").mode("append").option("partitions", 2)
    writer.save(target)
    found = spark.read.format("walstore").load(target)
    return {
        "tried": sorted(path.name for path in attempts.iterdir()),
        "values": sorted(bytes(row.value).decode() for row in found.collect()),
    }


def wait_for(path: Path) -> None:
    """Return when a file is there; in vain after two minutes."""
    with contextlib.suppress(TimeoutError):
        wait_until(path.exists, seconds=120)


def check(spark: SparkSession) -> str:
    """Ask the workers whether they can read; return what is wrong."""
    try:
        require_workers(spark)
    except WalError as error:
        return str(error)
    return ""


JOBS = {job.__name__: job for job in (work, collections, speculate, check)}


def main() -> None:
    """Do the jobs that the input names until it ends."""
    spark = start()
    for line in sys.stdin:
        name, python, *arguments = json.loads(line)
        spark.sparkContext.pythonExec = python
        answer: list[Any]
        try:
            answer = [JOBS[name](spark, *arguments), None]
        except Exception:  # noqa: BLE001 - the test says what went wrong
            answer = [None, traceback.format_exc()]
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
