"""Types: the columns of a collection as Spark has them, and back. No I/O.

Spark has no unsigned numbers, no nanoseconds and one width of text. Unsigned numbers become the next wider
type, the widest ``decimal(20,0)``; nanoseconds are cut to microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyspark.sql import types as spark
from pyspark.sql.types import DataType, StructField, StructType

from walstore import InvalidSettingsError, WalError

_SIMPLE: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "bool": (spark.BooleanType(), pa.bool_()),
    "int8": (spark.ByteType(), pa.int8()),
    "int16": (spark.ShortType(), pa.int16()),
    "int32": (spark.IntegerType(), pa.int32()),
    "int64": (spark.LongType(), pa.int64()),
    "uint8": (spark.ShortType(), pa.int16()),
    "uint16": (spark.IntegerType(), pa.int32()),
    "uint32": (spark.LongType(), pa.int64()),
    "uint64": (spark.DecimalType(20, 0), pa.decimal128(20, 0)),
    "float": (spark.FloatType(), pa.float32()),
    "double": (spark.DoubleType(), pa.float64()),
    "string": (spark.StringType(), pa.string()),
    "large_string": (spark.StringType(), pa.string()),
    "date32[day]": (spark.DateType(), pa.date32()),
    "date64[ms]": (spark.DateType(), pa.date32()),
}
_MOST_DIGITS: Final = 38


def spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type for a column of a collection; InvalidSettingsError if it has none."""
    return _types(kind)[0]


def arrow_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark takes a column of a collection; InvalidSettingsError."""
    return _types(kind)[1]


def spark_schema(columns: pa.Schema) -> StructType:
    """Return the columns as Spark has them, all nullable; InvalidSettingsError naming one that it has not."""
    fields = []
    for column in columns:
        try:
            fields.append(StructField(column.name, spark_type(column.type)))
        except InvalidSettingsError as error:
            raise InvalidSettingsError(f"the column {column.name!r}: {error}") from None
    return StructType(fields)


def given_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow columns that tasks get for columns of a DataFrame; InvalidSettingsError."""
    return pa.schema([pa.field(field.name, _given(field)) for field in schema.fields])


def selected(schema: StructType, columns: pa.Schema) -> tuple[str, ...]:
    """Return the names in a schema that may only choose from the columns; InvalidSettingsError otherwise.

    It may leave columns out and order them freely; the types are fixed.
    """
    for field in schema.fields:
        at = columns.get_field_index(field.name)
        wanted = None if at < 0 else spark_type(columns.field(at).type)
        if wanted != field.dataType or not field.nullable:
            known = ", ".join(
                f"{column.name} {spark_type(column.type).simpleString()}"
                for column in columns
                if column.name == field.name or at < 0
            )
            raise InvalidSettingsError(
                f"a schema chooses from the collection's columns ({known}), all nullable, not "
                f"{field.name} {field.dataType.simpleString()}; after evolve() load it again"
            )
    names = tuple(schema.fieldNames())
    if not names or len(set(names)) != len(names):
        raise InvalidSettingsError("a schema needs one or more columns, each named once")
    return names


def to_spark(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return columns of a table in the types that Spark takes; WalError for a value that it cannot have."""
    columns, fields = [], []
    for name in names:
        found = table.column(name)
        kind = arrow_type(found.type)
        try:
            columns.append(_cast(found, kind))
        except pa.ArrowInvalid as error:
            raise WalError(
                f"the column {name!r} has a value that Spark cannot have as {kind}: {error}"
            ) from error
        fields.append(pa.field(name, kind))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


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


def _types(kind: pa.DataType) -> tuple[DataType, pa.DataType]:
    found = _SIMPLE.get(str(kind))
    if found is not None:
        return found
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return spark.BinaryType(), pa.binary()
    if kinds.is_timestamp(kind):
        if kind.tz is None:
            return spark.TimestampNTZType(), pa.timestamp("us")
        return spark.TimestampType(), pa.timestamp("us", tz="UTC")
    if kinds.is_duration(kind):
        return spark.DayTimeIntervalType(), pa.duration("us")
    if (
        kinds.is_decimal(kind)
        and kind.precision <= _MOST_DIGITS
        and 0 <= kind.scale <= kind.precision
    ):
        wanted = spark.DecimalType(kind.precision, kind.scale)
        return wanted, pa.decimal128(kind.precision, kind.scale)
    raise InvalidSettingsError(
        f"this Spark source has no type for {kind}; choose columns without it"
    )


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    is_cut = kinds.is_timestamp(column.type) or kinds.is_duration(column.type)
    if is_cut and column.type.unit == "ns":
        return _micros(column).cast(kind)
    return pc.cast(column, kind, safe=True)


def _micros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return nanoseconds as whole microseconds, cut towards the past."""
    numbers = column.cast(pa.int64())
    quotient = pc.divide(numbers, 1000)
    is_later = pc.greater(pc.multiply(quotient, 1000), numbers)  # division cuts towards 1970
    floor = pc.if_else(is_later, pc.subtract(quotient, 1), quotient)
    unit = (
        pa.duration("us")
        if kinds.is_duration(column.type)
        else pa.timestamp("us", tz=column.type.tz)
    )
    return floor.cast(unit)
