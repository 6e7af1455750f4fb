"""The table that a sidecar writes, and the query that writes it.

Delta and Iceberg store with each batch its number and the id of the query that wrote it, and skip a batch
that they have: one repeated after a kill is in the table once. The id is in the checkpoint, so this holds as
long as the two belong together. This module checks the rest: a new checkpoint does not land again what the
table has, an old one does not continue in another table, and the columns are those of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from walstore import InvalidSettingsError
from walstore.spark.bounds import LogName, Offsets, offsets_json, show
from walstore.spark.features import HAS_LIMITS
from walstore.spark.rows import spark_schema
from walstore.spark.sidecar.checkpoint import (
    LandedBatch,
    QueryCheckpoint,
    SparkFolder,
    check_parquet_table,
)
from walstore.spark.sidecar.sidecar_settings import (
    DEFAULT_MAX_RECORDS,
    SidecarSettings,
    TableFormat,
    local_path,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_MADE_COLUMNS: Final = {"date": "date", "hour": "int"}
_SESSION_CATALOG: Final = "spark_catalog"


class ParquetTable:
    """A directory of Spark's file sink."""

    def __init__(self, spark: SparkSession, settings: SidecarSettings) -> None:
        """Read nothing yet."""
        self._folder = SparkFolder(spark, settings.table_place)
        self._settings = settings

    def check(self, checkpoint: QueryCheckpoint, begins: Callable[[], Offsets]) -> None:
        """Raise InvalidSettingsError unless table and checkpoint have the same batches."""
        check_parquet_table(self._folder, self._settings.table_place, checkpoint)

    def arrange(self, stream: DataFrame) -> DataFrame:
        """Return the stream unchanged: files are read by the names of columns."""
        return stream

    def local_places(self) -> tuple[str, ...]:
        """Return those of the settings."""
        return self._settings.local_places


class LakeTable:
    """A Delta or Iceberg table, by its path, or an Iceberg table by its name in a catalog."""

    def __init__(self, spark: SparkSession, settings: SidecarSettings) -> None:
        """Read nothing yet."""
        self._spark = spark
        self._settings = settings
        self._place = settings.table_place
        self._columns: list[str] = []
        self._location: str | None = None

    def check(self, checkpoint: QueryCheckpoint, begins: Callable[[], Offsets]) -> None:
        """Raise InvalidSettingsError for other columns, other records, or the checkpoint of another table.

        ``begins`` returns where each log begins if nothing has landed.
        """
        is_begun, commit = checkpoint.is_begun(), checkpoint.commit()
        rows = self._rows(is_begun=is_begun)
        if rows is None:
            if commit is not None:
                raise self._is_another(commit)
            return
        check_columns(self._place, columns_of(self._settings), dict(rows.dtypes))
        self._check_division()
        self._columns = rows.columns
        if commit is not None:
            self._check_landed(rows, commit)
        elif not is_begun:
            self._check_new(rows, begins())

    def arrange(self, stream: DataFrame) -> DataFrame:
        """Return the stream in the table's order, which Iceberg requires; columns it lacks are left out."""
        there = {name.lower() for name in stream.columns}
        known = [name for name in self._columns if name.lower() in there]
        return stream.select(*known) if known else stream

    def local_places(self) -> tuple[str, ...]:
        """Return those of the settings, and for a named table its location in the catalog."""
        places = self._settings.local_places
        if not self._settings.is_named:
            return places
        if self._location is None and self._spark.catalog.tableExists(self._place):
            described = self._spark.sql(f"DESCRIBE TABLE EXTENDED {quoted(self._place)}").collect()
            found = {row["col_name"]: row["data_type"] for row in described}
            self._location = found.get("Location", "")
        local = local_path(self._location or "")
        return places if local is None else (local, *places)

    # -- inside ------------------------------------------------------------------------------

    def _rows(self, *, is_begun: bool) -> DataFrame | None:
        """Return the rows of the table, or None if it does not exist."""
        settings, spark = self._settings, self._spark
        if settings.is_named:
            self._check_catalog()
            is_there = spark.catalog.tableExists(self._place)
            return spark.table(quoted(self._place)) if is_there else None
        folder = SparkFolder(spark, self._place)
        is_delta = settings.table_format is TableFormat.DELTA
        log = folder.names("_delta_log" if is_delta else "metadata")
        if any(".json" in name or ".checkpoint" in name for name in log if name[0] != "."):
            return spark.read.format(settings.table_format).load(self._place)
        if not is_delta:
            raise InvalidSettingsError(
                f"there is no Iceberg table at {self._place}: make it first, or name one in a catalog "
                "(--to CATALOG.NAMESPACE.TABLE), which is made if it is missing"
            )
        files = [name for name in folder.names() if not name.startswith(("_", "."))]
        # A first batch that was killed leaves such files.
        if files and not is_begun:
            raise InvalidSettingsError(
                f"{self._place} holds files and is no Delta table ({files[0]}); name a new table"
            )
        return None

    def _check_catalog(self) -> None:
        """Raise InvalidSettingsError if Spark does not know the catalog of a named table."""
        first, *more = self._place.split(".")
        conf = self._spark.conf
        default = self._spark.catalog.currentCatalog()
        if more and conf.get(f"spark.sql.catalog.{first}", None) is not None:
            return
        if conf.get(f"spark.sql.catalog.{default}", None) is not None:
            return
        raise InvalidSettingsError(
            f"Spark knows no Iceberg catalog for {self._place}: an Iceberg table is named "
            f"CATALOG.NAMESPACE.TABLE, with --config spark.sql.catalog.CATALOG="
            "org.apache.iceberg.spark.SparkCatalog and what that catalog needs, as "
            "spark.sql.catalog.CATALOG.type=hadoop and spark.sql.catalog.CATALOG.warehouse=URL"
        )

    def _check_division(self) -> None:
        """Raise InvalidSettingsError if a Delta table has other partition columns; Iceberg checks its own."""
        if self._settings.table_format is not TableFormat.DELTA:
            return
        place = self._place.replace("`", "``")
        (detail,) = self._spark.sql(f"DESCRIBE DETAIL delta.`{place}`").collect()
        there = list(detail["partitionColumns"])
        if there != list(self._settings.partition_by):
            raise InvalidSettingsError(
                f"the table at {self._place} is divided by {', '.join(there) or 'nothing'}: give "
                + (f"--partition-by {','.join(there)}" if there else "no --partition-by")
            )

    def _check_landed(self, rows: DataFrame, commit: LandedBatch) -> None:
        # Only the first batch can be empty.
        if commit.batch > 0 and not self._of_logs(rows, commit.positions).limit(1).collect():
            raise self._is_another(commit)

    def _check_new(self, rows: DataFrame, begins: Offsets) -> None:
        from pyspark.sql import functions as f

        if not begins:
            return
        newer = self._of_logs(rows, begins).where(f.col("offset") >= min(begins.values()))
        newest = newer.groupBy("topic", "partition").agg(f.max("offset").alias("newest"))
        for row in newest.collect():
            name = (row["topic"], row["partition"])
            if name in begins and row["newest"] >= begins[name]:
                raise InvalidSettingsError(
                    f"the table at {self._place} has records of {show(name)} up to {row['newest']}, and with "
                    f"this new checkpoint those from {begins[name]} on would land again: name the checkpoint "
                    "that the table was made with, or another table"
                )

    def _of_logs(self, rows: DataFrame, logs: Mapping[LogName, int]) -> DataFrame:
        from pyspark.sql import functions as f

        return rows.where(f.col("topic").isin(sorted({topic for topic, _ in logs})))

    def _is_another(self, commit: LandedBatch) -> InvalidSettingsError:
        logs = ", ".join(show(name) for name in sorted(commit.positions))
        return InvalidSettingsError(
            f"the checkpoint has landed {commit.batch + 1} batches of {logs}, and {self._place} has none of "
            "that: name the table that it was made for, or another checkpoint"
        )


Table: TypeAlias = ParquetTable | LakeTable


def open_table(spark: SparkSession, settings: SidecarSettings) -> Table:
    """Return the table; reads nothing yet."""
    if settings.table_format is TableFormat.PARQUET:
        return ParquetTable(spark, settings)
    return LakeTable(spark, settings)


def columns_of(settings: SidecarSettings) -> dict[str, str]:
    """Return the columns of the query with Spark's names of their types."""
    schema = spark_schema(include_headers=settings.has_headers)
    found = {column.name: column.dataType.simpleString() for column in schema}
    made = {name: kind for name, kind in _MADE_COLUMNS.items() if name in settings.partition_by}
    return {**found, **made}


def check_columns(place: str, wanted: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Raise InvalidSettingsError if the columns ``wanted``, by name and type, do not fit those of a table.

    A table may have more columns, which stay empty, but not more partition columns.
    """
    found = {name.lower(): (name, kind) for name, kind in there.items()}
    lacking = [f"{name} {kind}" for name, kind in wanted.items() if name.lower() not in found]
    other = [
        f"{found[name.lower()][0]} is {found[name.lower()][1]} and not {kind}"
        for name, kind in wanted.items()
        if name.lower() in found and found[name.lower()][1] != kind
    ]
    empty = [name for name in _MADE_COLUMNS if name in found and name not in wanted]
    if lacking or other:
        said = [f"it lacks {', '.join(lacking)}"] if lacking else []
        raise InvalidSettingsError(
            f"the table at {place} has other columns than the log: {'; '.join(said + other)}; change the "
            "table, or name a new one"
        )
    if empty:
        raise InvalidSettingsError(
            f"the table at {place} has {' and '.join(empty)}, which would stay empty: name all that it is "
            "divided by with --partition-by"
        )


def quoted(name: str) -> str:
    """Return a table's name with its parts quoted for SQL."""
    parts: Sequence[str] = name.replace("`", "").split(".")
    return ".".join(f"`{part}`" for part in parts)


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
