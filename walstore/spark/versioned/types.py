"""The columns of a collection for Spark: types, and the conversion of Arrow tables. No I/O.

Every value of a collection has one in Spark, and the conversion back gives the same value. Where Spark's type
would lose a part (nanoseconds) or is missing (times of day in Spark 4.0), the column is a long that counts
the unit of its collection's type. All columns are nullable, as those that Spark reads from files.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyspark.sql import types as spark
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from uploader.versioned.schema import DELETED, DIFF, TIME, CollectionSchema
from walstore import InvalidSettingsError, WalError
from walstore.spark.rows import check_chosen

MOST_DIGITS: Final = 38
"""A decimal of Spark has at most so many."""
_SIMPLE: Final[dict[pa.DataType, tuple[DataType, pa.DataType]]] = {
    pa.int8(): (ByteType(), pa.int8()),
    pa.int16(): (ShortType(), pa.int16()),
    pa.int32(): (IntegerType(), pa.int32()),
    pa.int64(): (LongType(), pa.int64()),
    pa.uint8(): (ShortType(), pa.int16()),
    pa.uint16(): (IntegerType(), pa.int32()),
    pa.uint32(): (LongType(), pa.int64()),
    pa.uint64(): (DecimalType(20, 0), pa.decimal128(20, 0)),
    pa.float32(): (FloatType(), pa.float32()),
    pa.float64(): (DoubleType(), pa.float64()),
    pa.bool_(): (BooleanType(), pa.bool_()),
    pa.string(): (StringType(), pa.string()),
    pa.large_string(): (StringType(), pa.string()),
    pa.binary(): (BinaryType(), pa.binary()),
    pa.large_binary(): (BinaryType(), pa.binary()),
    pa.date32(): (DateType(), pa.date32()),
    pa.date64(): (DateType(), pa.date32()),
}


def spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type for a column of a collection; InvalidSettingsError if Spark has none."""
    return _types(kind)[0]


def arrow_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type of a column in batches for Spark; InvalidSettingsError as :func:`spark_type`."""
    return _types(kind)[1]


def spark_schema(schema: CollectionSchema, *, is_updates: bool = False) -> StructType:
    """Return the columns of a collection's content, or of its updates.

    The content has the columns, and in a ``diff`` collection the count ``_d``; updates also have their time
    ``_t`` and ``_d`` or ``_deleted``. InvalidSettingsError naming the column for which Spark has no type.
    """
    fields = _visible(schema, is_updates=is_updates)
    return StructType([StructField(field.name, _of(field)[0]) for field in fields])


def arrow_schema(schema: CollectionSchema, *, is_updates: bool = False) -> pa.Schema:
    """Return the Arrow schema of batches that Spark takes as rows of :func:`spark_schema`."""
    fields = _visible(schema, is_updates=is_updates)
    return pa.schema([pa.field(field.name, _of(field)[1]) for field in fields])


def to_spark(table: pa.Table) -> pa.Table:
    """Return a table with columns of a collection's types for Spark, of the same names and order.

    WalError naming the column if a value is beyond Spark's range: a timestamp of some 300 000 years.
    """
    columns = [_to_spark(table.column(index), field) for index, field in enumerate(table.schema)]
    return pa.Table.from_arrays(columns, names=table.schema.names)


def from_spark(table: pa.Table, schema: CollectionSchema) -> pa.Table:
    """Return rows of Spark with longs as the times that they count, as writers of a collection take them.

    Other columns stay as they are: ``Writer.append`` converts them, and refuses those that do not fit.
    InvalidSettingsError for a long that is no value of the column's type.
    """
    for index, field in enumerate(table.schema):
        if field.name not in schema.columns.names:
            continue
        kind = schema.columns.field(field.name).type
        if _is_counted(kind) and kinds.is_integer(field.type):
            column = _counted(table.column(index), kind, field.name)
            table = table.set_column(index, pa.field(field.name, kind), column)
    return table


def _visible(schema: CollectionSchema, *, is_updates: bool) -> list[pa.Field]:
    fields = list(schema.columns)
    if is_updates:
        effect = pa.int64() if schema.kind == "diff" else pa.bool_()
        own = DIFF if schema.kind == "diff" else DELETED
        return [*fields, pa.field(TIME, pa.uint64()), pa.field(own, effect)]
    return [*fields, pa.field(DIFF, pa.int64())] if schema.kind == "diff" else fields


def _of(field: pa.Field) -> tuple[DataType, pa.DataType]:
    try:
        return _types(field.type)
    except InvalidSettingsError as error:
        raise InvalidSettingsError(f"the column {field.name!r}: {error}") from None


def _types(kind: pa.DataType) -> tuple[DataType, pa.DataType]:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if _is_counted(kind):
        return LongType(), pa.int64()
    if kinds.is_timestamp(kind):
        if kind.tz is None:
            return TimestampNTZType(), pa.timestamp("us")
        return TimestampType(), pa.timestamp("us", tz="UTC")
    if kinds.is_fixed_size_binary(kind):
        return BinaryType(), pa.binary()
    if kinds.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= MOST_DIGITS:
        precision, scale = kind.precision, kind.scale
        return DecimalType(precision, scale), pa.decimal128(precision, scale)
    raise InvalidSettingsError(
        f"Spark has no type for {kind}; its decimals have up to {MOST_DIGITS} digits"
    )


def _is_counted(kind: pa.DataType) -> bool:
    """Return whether a column is a long that counts units of time."""
    return bool(
        kinds.is_time(kind)
        or kinds.is_duration(kind)
        or (kinds.is_timestamp(kind) and kind.unit == "ns")
    )


def _to_spark(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    wanted = _of(field)[1]
    if column.type.equals(wanted):
        return column
    if kinds.is_time32(column.type):
        column = pc.cast(column, pa.int32())
    try:
        return pc.cast(column, wanted)
    except pa.ArrowInvalid as error:
        raise WalError(
            f"a value of the column {field.name!r} does not fit Spark: {error}"
        ) from None


def _counted(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        if kinds.is_time(kind):
            _check_day(column, kind)
        return pc.cast(pc.cast(column, pa.int32()) if kinds.is_time32(kind) else column, kind)
    except pa.ArrowInvalid as error:
        raise InvalidSettingsError(f"the column {name!r} does not fit {kind}: {error}") from None


def _check_day(column: pa.ChunkedArray, kind: pa.DataType) -> None:
    day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    least, most = (bound.as_py() for bound in pc.min_max(column).values())
    if least is not None and not 0 <= least <= most < day:
        raise pa.ArrowInvalid(f"a time of day is 0 to {day - 1}, not {least} to {most}")


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
