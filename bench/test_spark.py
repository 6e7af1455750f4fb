"""Spark: counting and measuring every value of a log, compared with Spark's own scan of the same files.

``WALSTORE_BENCH_SPARK_RECORDS`` sets the number of records of 100 B (default 2 000 000). The native scan
reads the column ``body`` alone; a Python source is not told which columns a query needs, so it is
measured with all columns and with the one column chosen by ``schema``. The fast path is told.

``WALSTORE_BENCH_SPARK_FRAGMENTS`` sets of how many small fragments the log is whose planning is measured
(default 10 000).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.spark_log import RECORDS, VALUE_BYTES
from tests.frames import batch_of, build
from uploader.format.layout import MANIFEST
from uploader.format.manifest import Manifest
from uploader.fragments.fragment_builder import encode_fragment
from walstore import Record
from walstore.spark import problem, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(problem() is not None, reason=str(problem())),
]

FRAGMENTS = int(os.environ.get("WALSTORE_BENCH_SPARK_FRAGMENTS", "10000"))
MEDIANS: dict[str, float] = {}


def total(frame: DataFrame, value: str) -> int:
    count, size_bytes = frame.selectExpr("count(*)", f"sum(length({value}))").collect()[0]
    assert (count, size_bytes) == (RECORDS, RECORDS * VALUE_BYTES)
    return count


def measure(benchmark, frame: DataFrame, value: str) -> None:
    if not MEDIANS and value != "body":
        MEDIANS["native"] = float("nan")  # deselected
    benchmark.group = f"Spark, {RECORDS} x {VALUE_BYTES} B, 2 cores"
    benchmark.pedantic(lambda: total(frame, value), rounds=5, warmup_rounds=2)
    median = benchmark.stats.stats.median
    benchmark.extra_info["records/s"] = round(RECORDS / median)
    MEDIANS.setdefault("native", median)  # it is measured first
    benchmark.extra_info["of native speed"] = round(MEDIANS["native"] / median, 2)


def test_native_parquet_scan(benchmark, spark, places) -> None:
    """The baseline: the JVM's vectorised reader over the same fragments."""
    files = sorted(str(path) for path in places[1].glob("log/*/*.parquet"))
    measure(benchmark, spark.read.parquet(*files), "body")


def test_fast_path(benchmark, spark, places) -> None:
    """Fragments from the store, by the JVM; the query determines the columns."""
    frame = read(spark, f"file://{places[1]}", fast_path="always")
    measure(benchmark, frame, "value")


def test_fast_path_of_a_directory(benchmark, spark, places) -> None:
    """The log's directory: all records were shipped, so the JVM reads the fragments."""
    frame = read(spark, places[0], fast_path="always")
    measure(benchmark, frame, "value")


def test_store_all_columns(benchmark, spark, places) -> None:
    """Fragments from the store, the eight columns of the source."""
    measure(benchmark, spark.read.format("walstore").load(f"file://{places[1]}"), "value")


def test_store_one_column(benchmark, spark, places) -> None:
    """Fragments from the store, only the values."""
    reader = spark.read.format("walstore").schema("value binary")
    measure(benchmark, reader.load(f"file://{places[1]}"), "value")


def test_directory_all_columns(benchmark, spark, places) -> None:
    """The log's own files, the eight columns of the source."""
    measure(benchmark, spark.read.format("walstore").load(str(places[0])), "value")


@pytest.fixture(scope="module")
def fragments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of many fragments of ten records each."""
    root = tmp_path_factory.mktemp("many")
    clock_us = 1_700_000_000_000_000
    found = []
    for at in range(FRAGMENTS):
        records = [Record(1 + 10 * at + n, b"value", timestamp_us=clock_us) for n in range(10)]
        found.append(encode_fragment([batch_of(build(records))], timestamp_us=clock_us))
    entries = [one.entry(at + 1) for at, one in enumerate(found)]
    manifest = Manifest.initial("bench").apply_fragments(entries, "bench")
    files = {entry.path: one.data for entry, one in zip(entries, found, strict=True)}
    files[MANIFEST] = manifest.serialise()
    for key, data in files.items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(data)
    return root


def test_planning_many_fragments(benchmark, spark, fragments) -> None:
    """The fast path reads every footer, and Spark lists every file, before records are read."""
    benchmark.group = f"Spark, planning {FRAGMENTS} fragments"
    benchmark.pedantic(
        lambda: read(spark, f"file://{fragments}", fast_path="always"), rounds=3, warmup_rounds=1
    )
