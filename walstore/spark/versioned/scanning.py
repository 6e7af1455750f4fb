"""The updates of a scan as a DataFrame, by Spark's own Parquet reader or by Python tasks, and their content.

Objects whose updates all count are one scan of Spark for each set of stored types, however many there are.
The others are joined with a small table that says which of their updates count.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from uploader.versioned.merging import MergeInput
from uploader.versioned.scan import CollectionScan, ScanFile
from uploader.versioned.schema import DELETED, DIFF, TIME, CollectionSchema
from walstore import InvalidSettingsError
from walstore.spark.fast_path import jvm
from walstore.spark.versioned.object_tasks import (
    HASH_LONG,
    ORDER,
    CollectionObjects,
    sortable,
)
from walstore.spark.versioned.types import spark_schema, spark_type

TASK_BYTES: Final = 32 << 20
"""A Python task reads about so many bytes of objects, one after another."""
_KEY: Final = "_key"
_KEY_PARTS: Final = 3
"""Folders and name in the key of a batch's object."""
_VALUES: Final = "_values"
ArrowMap = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Narrow = Mapping[int, frozenset[str]]
"""For each older schema, the columns of unsigned 64-bit numbers that its objects store in 32 bits."""


def check_names(spark: SparkSession, schema: CollectionSchema) -> None:
    """Raise InvalidSettingsError if Spark does not distinguish two columns, or has no type for one."""
    spark_schema(schema)
    if spark.conf.get("spark.sql.caseSensitive", "false") == "true":
        return
    seen: dict[str, str] = {}
    for name in schema.columns.names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidSettingsError(
                f"Spark does not distinguish the columns {other!r} and {name!r}; set "
                "spark.sql.caseSensitive to true"
            )


def content(updates: DataFrame, schema: CollectionSchema) -> DataFrame:
    """Return the content that updates add up to; they have :data:`ORDER` in an ``upsert`` collection."""
    names = schema.columns.names
    if schema.kind == "diff":
        counted = updates.groupBy(*map(quoted, names)).agg(F.sum(DIFF).alias(DIFF))
        return counted.where(F.col(DIFF) != 0)
    others = [name for name in names if name not in schema.key]
    values = F.struct(*[quoted(name) for name in others], F.col(DELETED))
    last = updates.groupBy(*map(quoted, schema.key)).agg(
        F.max_by(values, F.col(ORDER)).alias(_VALUES)
    )
    live = last.where(~F.col(f"{_VALUES}.{DELETED}"))
    return live.select(
        *[
            quoted(name) if name in schema.key else F.col(_VALUES).getField(name).alias(name)
            for name in names
        ]
    )


def jvm_updates(
    spark: SparkSession, scan: CollectionScan, url: str, narrow: Narrow, *, is_shared: bool
) -> DataFrame:
    """Return the updates of a scan, as Spark's own Parquet reader reads them.

    FastPathError if it cannot. ``is_shared`` as of :func:`walstore.spark.fast_path.jvm.require_access`.
    """
    store = jvm.hadoop_store(url, os.environ)
    jvm.require_access(spark, store, is_shared=is_shared)
    needs_order = scan.schema.kind == "upsert"
    is_early = scan.as_of < (1 << 63) - 1  # times are longs, which are their own order
    groups: dict[tuple[bool, frozenset[str]], list[ScanFile]] = defaultdict(list)
    for file in scan.files:
        is_cut = not file.is_whole or (needs_order and _may_be_advanced(file, scan))
        groups[is_cut, narrow.get(file.schema_id, frozenset())].append(file)
    frames = []
    for (is_cut, columns), files in groups.items():
        found = jvm.scan(
            spark,
            stored_schema(scan.schema, columns, with_time=is_cut or needs_order),
            store,
            [file.key for file in files],
            size_bytes=sum(file.size_bytes for file in files),
            fail_on_data_loss=True,
        )
        rows = found.select(
            *_stored_columns(scan.schema, is_cut=is_cut, needs_order=needs_order, is_early=is_early)
        )
        frames.append(_cut(spark, rows, files, scan.schema, is_early=is_early) if is_cut else rows)
    return _union(spark, frames, scan.schema)


def python_updates(
    spark: SparkSession, objects: CollectionObjects, parts: Sequence[MergeInput], *, with_hash: bool
) -> DataFrame:
    """Return the updates of parts of objects, as Python tasks read and check them."""
    names = updates_schema(objects.schema, with_hash=with_hash)
    tasks = divide(parts)
    if not tasks:
        return spark.createDataFrame([], names)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from objects.rows(tasks[number], with_hash=with_hash)

    return map_in_arrow(spark.range(0, len(tasks), 1, len(tasks)), read, names)


def updates_schema(schema: CollectionSchema, *, with_hash: bool) -> StructType:
    """Return the columns of :func:`python_updates`."""
    fields = [field for field in spark_schema(schema, is_updates=True) if field.name != TIME]
    own = [ORDER, HASH_LONG] if with_hash else [ORDER]
    return StructType([*fields, *(StructField(name, LongType()) for name in own)])


def map_in_arrow(frame: DataFrame, function: ArrowMap, schema: StructType) -> DataFrame:
    """Return what ``frame.mapInArrow`` returns, without pandas, which PySpark requires and never uses there.

    With Spark Connect it is that, and needs pandas.
    """
    session: Any = frame
    try:
        java = session._jdf  # noqa: SLF001 - PySpark has no public way
    except (AttributeError, PySparkException):
        return frame.mapInArrow(function, schema)
    made = UserDefinedFunction(
        function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column: Any = made(*[frame[name] for name in frame.columns])
    return DataFrame(java.mapInArrow(column._jc, False, None), frame.sparkSession)  # noqa: FBT003, SLF001


def parts_of(files: Sequence[ScanFile]) -> list[MergeInput]:
    """Return what Python tasks read of the files of a scan."""
    return [
        MergeInput(
            key=file.key,
            start=file.start,
            limit=file.limit,
            latest=file.latest,
            size_bytes=file.size_bytes,
        )
        for file in files
    ]


def divide(parts: Sequence[MergeInput]) -> list[list[MergeInput]]:
    """Return parts for tasks of about the same size: the longest first, each to the least task. Pure."""
    total = sum(part.size_bytes for part in parts)
    count = min(len(parts), -(-total // TASK_BYTES) or 1)
    tasks: list[list[MergeInput]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for part in sorted(parts, key=lambda part: (-part.size_bytes, part.key)):
        size_bytes, number = heapq.heappop(heap)
        tasks[number].append(part)
        heapq.heappush(heap, (size_bytes + part.size_bytes, number))
    return [task for task in tasks if task]


def quoted(name: str) -> Column:
    """Return the column of exactly that name, which may have dots and backticks."""
    return F.col("`" + name.replace("`", "``") + "`")


def stored_schema(
    schema: CollectionSchema, narrow: frozenset[str], *, with_time: bool
) -> StructType:
    """Return what Spark is told of the stored columns; columns that older objects lack become null.

    Spark widens all stored types but unsigned ones to 64 bits, which must be declared as stored.
    """
    fields = [
        StructField(field.name, LongType() if field.name in narrow else _stored_type(field.type))
        for field in schema.columns
    ]
    own = {field.name: field.dataType for field in spark_schema(schema, is_updates=True)}
    names = [TIME, schema.effect] if with_time else [schema.effect]
    return StructType([*fields, *(StructField(name, own[name]) for name in names)])


def _stored_type(kind: pa.DataType) -> DataType:
    return IntegerType() if kinds.is_time32(kind) else spark_type(kind)


def _stored_columns(
    schema: CollectionSchema, *, is_cut: bool, needs_order: bool, is_early: bool
) -> list[Column]:
    columns = [_logical(field) for field in schema.columns]
    columns.append(F.col(schema.effect))
    if is_cut or needs_order:
        # Cheaper than a difference of decimals. Times that do not fit count in no object.
        time = F.col(TIME).try_cast("long") if is_early else F.col(TIME) - F.lit(Decimal(1 << 63))
        columns.append(time.cast("long").alias(ORDER))
    if is_cut:
        path = F.col("_metadata.file_path")
        columns.append(F.substring_index(path, "/", -_KEY_PARTS).alias(_KEY))
    return columns


def _logical(field: pa.Field) -> Column:
    column = quoted(field.name)
    if kinds.is_time32(field.type):
        column = column.cast("long")
        if field.type.unit == "s":  # stored in milliseconds
            column = (column / F.lit(1000)).cast("long")
    return column.cast(spark_type(field.type)).alias(field.name)


def _may_be_advanced(file: ScanFile, scan: CollectionScan) -> bool:
    """Return whether updates of the file may have a time after its interval."""
    return file.upper <= scan.since


def _cut(
    spark: SparkSession,
    rows: DataFrame,
    files: Sequence[ScanFile],
    schema: CollectionSchema,
    *,
    is_early: bool,
) -> DataFrame:
    """Return the updates that count, with advanced times limited to their batch's interval."""

    def bound(time: int) -> int:
        return min(time, (1 << 63) - 1) if is_early else sortable(time)

    table = spark.createDataFrame(
        [(file.key, bound(file.start), bound(file.limit), bound(file.latest)) for file in files],
        StructType(
            [
                StructField("_file", StringType()),
                *(StructField(name, LongType()) for name in ("_start", "_limit", "_latest")),
            ]
        ),
    )
    order = F.col(ORDER)
    found = rows.join(F.broadcast(table), F.col(_KEY) == F.col("_file"))
    found = found.where((order >= F.col("_start")) & (order < F.col("_limit")))
    columns = [*map(quoted, schema.columns.names), F.col(schema.effect)]
    if schema.kind == "upsert":
        columns.append(F.least(order, F.col("_latest")).alias(ORDER))
    return found.select(*columns)


def _union(spark: SparkSession, frames: Sequence[DataFrame], schema: CollectionSchema) -> DataFrame:
    if not frames:
        names = updates_schema(schema, with_hash=False)
        return spark.createDataFrame([], names)
    return reduce(DataFrame.union, frames)


def is_long_number(kind: pa.DataType) -> bool:
    """Return whether Spark reads a column as a decimal that older objects may store in 32 bits."""
    return spark_type(kind) == DecimalType(20, 0) and kinds.is_uint64(kind)
