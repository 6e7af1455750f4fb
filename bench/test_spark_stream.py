"""Streams in Spark: how fast history is read, how soon a record is seen, and the requests of an idle query.

``WALSTORE_BENCH_SPARK_RECORDS`` sets the number of records of 100 B that are read (default 2 000 000),
``WALSTORE_BENCH_SPARK_SECONDS`` for how long 10 000 records a second are appended (default 30).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from bench.spark_log import RECORDS, VALUE_BYTES
from uploader import open_store
from uploader.stores.metering import MeteredStore
from walstore.spark import problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(problem() is not None, reason=str(problem())),
]

SECONDS = float(os.environ.get("WALSTORE_BENCH_SPARK_SECONDS", "30"))
RATE = 10_000
WARM_UP_SECONDS = 5.0
"""The first records are not counted: the query is just starting."""


@pytest.mark.parametrize("kind", ["store", "directory"])
def test_batch_into_nothing(benchmark, spark, places, kind) -> None:
    """The baseline of streams: the same rows, read once."""
    frame = spark.read.format("walstore").load(place(places, kind))
    benchmark.group = f"Spark streams, {RECORDS} x {VALUE_BYTES} B, {kind}"
    benchmark.pedantic(
        lambda: frame.write.format("noop").mode("overwrite").save(), rounds=3, warmup_rounds=1
    )
    benchmark.extra_info["records/s"] = round(RECORDS / benchmark.stats.stats.median)


@pytest.mark.parametrize("kind", ["store", "directory"])
@pytest.mark.parametrize("batches", [1, 8])
def test_stream_into_nothing(benchmark, spark, places, tmp_path, kind, batches) -> None:
    """From the first record to the tail, in one micro-batch or in eight; starting the query included."""
    rounds = iter(range(100))
    busy_ms: list[int] = []

    def run() -> None:
        frame = spark.readStream.format("walstore")
        if batches > 1:
            frame = frame.option("maxOffsetsPerTrigger", -(-RECORDS // batches))
        writer = frame.load(place(places, kind)).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(tmp_path / f"{next(rounds)}"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(600)
        assert sum(batch.numInputRows for batch in query.recentProgress) == RECORDS
        busy_ms.append(sum(batch.durationMs["triggerExecution"] for batch in query.recentProgress))

    benchmark.group = f"Spark streams, {RECORDS} x {VALUE_BYTES} B, {kind}"
    benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["records/s"] = round(RECORDS / benchmark.stats.stats.median)
    # Without the time before the first micro-batch, in which Spark starts a process that plans.
    benchmark.extra_info["records/s in micro-batches"] = round(1000 * RECORDS / min(busy_ms))


@pytest.mark.parametrize("kind", ["cloud", "directory"])
def test_lag(benchmark, spark, tmp_path, kind) -> None:
    """From the append to the row in foreachBatch, at 10 000 records a second from another process.

    ``cloud``: through a store only. ``directory``: from the files of a log that ships as well.
    """
    location, url = str(tmp_path / "log"), f"file://{tmp_path}/store"
    seen: list[tuple[int, pa.Table]] = []

    def take(batch: DataFrame, _: int) -> None:
        stamps = batch.selectExpr("cast(cast(substring(value, 1, 19) as string) as bigint) as t")
        found = stamps.toArrow()
        seen.append((time.time_ns(), found))

    def start() -> StreamingQuery:
        frame = spark.readStream.format("walstore").load(url if kind == "cloud" else location)
        writer = frame.writeStream.foreachBatch(take)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def run() -> None:
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.stream_producer",
                kind,
                location,
                url,
                f"{RATE}",
                f"{SECONDS}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as producer:
            assert producer.stdin is not None
            assert producer.stdout is not None
            assert producer.stdout.readline() == "ready\n"
            query = start()
            query.processAllAvailable()
            _, _ = producer.communicate("go\n")
            assert producer.returncode == 0
        deadline = time.monotonic() + 120
        while sum(len(rows) for _, rows in seen) < RATE * SECONDS + 1:
            assert time.monotonic() < deadline
            query.processAllAvailable()
        query.stop()

    benchmark.pedantic(run, rounds=1)
    began = min(rows["t"][0].as_py() for _, rows in seen[1:])
    lags = sorted(
        (at - stamp) / 1e9
        for at, rows in seen[1:]
        for stamp in rows["t"].to_pylist()
        if stamp - began > WARM_UP_SECONDS * 1e9
    )
    for share in (50, 99, 100):
        benchmark.extra_info[f"p{share}_seconds"] = round(lags[(len(lags) - 1) * share // 100], 3)
    benchmark.extra_info["micro-batches"] = len(seen)


def test_requests_of_an_idle_query(benchmark, places) -> None:
    """Spark's default trigger: fifty calls a second to the source, one request to the store."""
    from walstore.spark.options import parse_stream_options
    from walstore.spark.rows import column_names, spark_schema
    from walstore.spark.streaming.reader import StreamReader

    stores: list[MeteredStore] = []

    def open_metered(url: str) -> MeteredStore:
        stores.append(MeteredStore(open_store(url)))
        return stores[-1]

    options = parse_stream_options({"path": f"file://{places[1]}"})
    names = column_names(spark_schema(include_headers=False))
    reader = StreamReader(options, names, open_store=open_metered)
    end = reader.latestOffset(reader.initialOffset())
    before, began = stores[0].usage().requests, time.monotonic()

    def ask() -> None:
        assert reader.latestOffset(end) == end

    def run() -> None:
        while time.monotonic() < began + 20:
            ask()
            time.sleep(0.02)

    benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["requests/s"] = round((stores[0].usage().requests - before) / 20, 2)
    benchmark.extra_info["lists"] = stores[0].usage().of("list").requests
    reader.stop()


def place(places: tuple[Path, Path], kind: str) -> str:
    return str(places[0]) if kind == "directory" else f"file://{places[1]}"
