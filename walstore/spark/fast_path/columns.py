"""From a fragment's columns to those of ``format("walstore")``: same names, types and nulls. No I/O.

Spark reads unsigned 64-bit numbers as 20-digit decimals, unless the schema declares them as longs. That is
fastest, but fails on dictionary-encoded numbers. Our files do not dictionary-encode offsets and record times;
wal3's files are read as decimals.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from walstore.spark.fast_path.footers import FragmentKind
from walstore.spark.fast_path.planner import Scan
from walstore.spark.rows import PRODUCER_TIME
from walstore.spark.schema import HEADERS, spark_schema

_FIELDS: Final[dict[FragmentKind, dict[str, DataType]]] = {
    FragmentKind.OURS: {
        "offset": LongType(),
        "body": BinaryType(),
        "record_timestamp_us": LongType(),
        "stream": StringType(),
        "key": BinaryType(),
        "headers": MapType(StringType(), BinaryType()),
    },
    FragmentKind.WAL3: {
        "offset": DecimalType(20, 0),
        "timestamp_us": DecimalType(20, 0),
        "body": BinaryType(),
    },
}


def stored_schema(kind: FragmentKind) -> StructType:
    """Return the columns to read, with their types for Spark."""
    return StructType([StructField(name, found) for name, found in _FIELDS[kind].items()])


def project(stored: DataFrame, scan: Scan, *, include_headers: bool) -> DataFrame:
    """Return the rows of a scan; ``stored`` has the columns of :func:`stored_schema`."""
    schema = spark_schema(include_headers=include_headers)
    rows = stored.select([_column(field, scan).alias(field.name) for field in schema.fields])
    if scan.cut is None:
        return rows
    start, limit = scan.cut
    return rows.where((F.col("offset") >= F.lit(start)) & (F.col("offset") < F.lit(limit)))


def rename(rows: DataFrame, topic: str, partition: int) -> DataFrame:
    """Return rows of ``format("walstore")`` as those of another topic and partition."""
    return rows.withColumns(
        {"topic": constant(topic, StringType()), "partition": constant(partition).cast("int")}
    )


def constant(value: object, kind: DataType | None = None) -> Column:
    """Return a constant column that is nullable in the schema; Spark folds it."""
    return F.nullif(F.lit(value), F.lit(None).cast(kind or "int"))


def _column(field: StructField, scan: Scan) -> Column:
    is_ours = scan.kind is FragmentKind.OURS
    match field.name:
        case "value":
            return F.col("body")
        case "topic":
            return constant(scan.topic, StringType())
        case "partition":
            return constant(scan.partition)
        case "timestampType":
            return constant(PRODUCER_TIME)
        case "offset":
            return F.col("offset").cast("long")
        case "timestamp":
            time_us = "record_timestamp_us" if is_ours else "timestamp_us"
            return F.timestamp_micros(F.col(time_us).cast("long"))
    if not is_ours:
        return F.lit(None).cast(field.dataType)
    if field.name == HEADERS:
        return F.map_entries(HEADERS).cast(field.dataType)
    return F.col(field.name)
