"""The query of a sidecar in a real Spark, and what its checkpoint and table then say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.walstore.spark.reading import fill
from tests.walstore.spark.versions import limit, sizes
from walstore.errors import InvalidSettingsError, WalError
from walstore.spark.sidecar.checkpoint import QueryCheckpoint, SparkFolder, check_parquet_table
from walstore.spark.sidecar.session import require_format
from walstore.spark.sidecar.sidecar_settings import (
    DEFAULT_MAX_RECORDS,
    SidecarSettings,
    TableFormat,
)
from walstore.spark.sidecar.tables import open_table, start_query

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

ORDERS, PAYMENTS = ("orders", 0), ("payments", 0)


def test_two_logs_by_a_pattern(spark: SparkSession, tmp_path: Path):
    for name in ("orders", "payments", "other"):
        asyncio.run(fill(tmp_path / "logs" / name, 100))
    settings = SidecarSettings(
        location=str(tmp_path / "logs"),
        table=str(tmp_path / "table"),
        subscribe_pattern="orders|pay.*",
        partition_by=("topic", "hour"),
        max_records=limit(60).get("maxOffsetsPerTrigger", DEFAULT_MAX_RECORDS),
        is_once=True,
    )
    checkpoint = QueryCheckpoint(SparkFolder(spark, settings.checkpoint_place))
    assert not checkpoint.is_begun()
    assert checkpoint.commit() is None
    table = open_table(spark, settings)
    table.check(checkpoint, dict)
    query = start_query(spark, settings, {ORDERS: 11, PAYMENTS: 1}, table)
    assert query.awaitTermination(200)

    commit = checkpoint.commit()
    assert commit is not None
    batches = len(sizes(190, 60))
    assert (commit.batch, commit.positions) == (batches - 1, {ORDERS: 101, PAYMENTS: 101})
    check_parquet_table(SparkFolder(spark, settings.table_place), settings.table_place, checkpoint)
    elsewhere = QueryCheckpoint(SparkFolder(spark, str(tmp_path / "elsewhere")))
    with pytest.raises(InvalidSettingsError, match=f"has {batches} batches"):
        check_parquet_table(
            SparkFolder(spark, settings.table_place), settings.table_place, elsewhere
        )

    table = spark.read.parquet(settings.table)
    found = {(row.topic, row.offset) for row in table.select("topic", "offset").collect()}
    expected = {("orders", at) for at in range(11, 101)} | {
        ("payments", at) for at in range(1, 101)
    }
    assert found == expected
    assert table.count() == len(expected)
    assert {"headers", "hour", "stream", "timestampType"} <= set(table.columns)


def test_a_format_whose_jar_is_missing(spark: SparkSession):
    require_format(spark, TableFormat.PARQUET)
    for table_format, package in [
        (TableFormat.DELTA, "io.delta:delta-spark_"),
        (TableFormat.ICEBERG, "org.apache.iceberg:iceberg-spark-runtime-"),
    ]:
        with pytest.raises(WalError, match=f"--packages {package}"):
            require_format(spark, table_format)
