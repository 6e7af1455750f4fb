"""The query of a sidecar: which columns, into which table, how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walstore.spark.bounds import offsets_json
from walstore.spark.features import HAS_LIMITS
from walstore.spark.sidecar.settings import DEFAULT_MAX_RECORDS, SidecarSettings
from walstore.spark.sidecar.tables import Table
from walstore.spark.streaming.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def start_query(
    spark: SparkSession, settings: SidecarSettings, start: Offsets | None, table: Table
) -> StreamingQuery:
    """Start the query, in each log at ``start``, unless the checkpoint has a position.

    None begins at each log's head.
    """
    writer = (
        table.arrange(divided(read(spark, settings, start), settings))
        .writeStream.format(settings.table_format)
        .outputMode("append")
        .option("checkpointLocation", settings.checkpoint_place)
        .partitionBy(*settings.partition_by)
    )
    if settings.is_once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(
            processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds"
        )
    if settings.is_named:
        return writer.toTable(settings.table_place)
    return writer.start(settings.table_place)


def read(spark: SparkSession, settings: SidecarSettings, start: Offsets | None) -> DataFrame:
    """Return the logs as a stream."""
    reader = spark.readStream.format("walstore").option("includeHeaders", settings.has_headers)
    # Older Sparks have no limit: the source refuses one that the user set.
    if HAS_LIMITS or settings.max_records != DEFAULT_MAX_RECORDS:
        reader = reader.option("maxOffsetsPerTrigger", settings.max_records)
    if start is not None:
        reader = reader.option("startingOffsets", offsets_json(start))
    if settings.subscribe is not None:
        reader = reader.option("subscribe", settings.subscribe)
    if settings.subscribe_pattern is not None:
        reader = reader.option("subscribePattern", settings.subscribe_pattern)
    return reader.load(settings.location)


def divided(frame: DataFrame, settings: SidecarSettings) -> DataFrame:
    """Return the stream with the partition columns that are derived from the record's time."""
    from pyspark.sql import functions as f

    if "date" in settings.partition_by:
        frame = frame.withColumn("date", f.to_date("timestamp"))
    if "hour" in settings.partition_by:
        frame = frame.withColumn("hour", f.hour("timestamp"))
    return frame
