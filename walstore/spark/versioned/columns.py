"""Columns: which a query selects of a collection, and which a write gives to it. No I/O."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.types import DataType, StructField, StructType

from uploader.versioned.schema import DIFF, TIME, CollectionSchema
from walstore import InvalidSettingsError
from walstore.spark.rows import check_chosen
from walstore.spark.versioned.types import spark_schema, spark_type

CHANGE: Final = "_change"


def change_schema(schema: CollectionSchema) -> StructType:
    """Return the columns of changes: the collection's, the time, the kind of change, and the count."""
    fields = [field for field in spark_schema(schema).fields if field.name != DIFF]
    fields.append(StructField(TIME, spark_type(pa.uint64())))
    fields.append(StructField(CHANGE, spark.StringType()))
    if schema.kind == "diff":
        fields.append(StructField(DIFF, spark.LongType()))
    return StructType(fields)


def check_selected(chosen: StructType, columns: StructType) -> None:
    """Raise InvalidSettingsError unless a schema only chooses from the columns, in any order."""
    known = {field.name: field.dataType for field in columns.fields}
    check_chosen(
        chosen,
        known,
        "a schema chooses from the columns {columns}, all nullable, not {field}; after evolve() load the "
        "collection again",
    )


def given_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow columns that tasks get for columns of a DataFrame; InvalidSettingsError."""
    return pa.schema([pa.field(field.name, _given(field)) for field in schema.fields])


_GIVEN: Final[dict[type[DataType], pa.DataType]] = {
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.StringType: pa.string(),
    spark.VarcharType: pa.string(),
    spark.CharType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", tz="UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.DayTimeIntervalType: pa.duration("us"),
}


def _given(field: StructField) -> pa.DataType:
    kind = field.dataType
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    found = _GIVEN.get(type(kind))
    if found is None:
        raise InvalidSettingsError(
            f"a collection has no column of type {kind.simpleString()}, as {field.name!r} is: cast it, or "
            "leave it out"
        )
    return found
