"""Versioned collections for Spark: reading them, and their compaction. docs/spark_collections.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walstore.spark.environment import require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from uploader import MergeEngine


def merge_engine(spark: SparkSession, *, object_rows: int = 2_000_000) -> MergeEngine:
    """Return the engine for ``Controller.compact(engine=…)`` that merges large passes as Spark jobs.

    ``object_rows``: an object gets at most so many updates, and a Python task holds about as many in memory;
    1 to 2 000 000, InvalidSettingsError otherwise. docs/spark_collections.md says what a job does.
    MissingExtraError without PySpark.
    """
    require_packages()
    from walstore.spark.versioned.compaction import SparkMerger

    return SparkMerger(spark, object_rows=object_rows)
