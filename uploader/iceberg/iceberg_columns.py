"""The columns of a collection as Iceberg has them, which knows no unsigned numbers and no durations. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds

from walstore.errors import InvalidSettingsError

_MOST_DIGITS = 38


def iceberg_type(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the type with which a column of a collection is exported; InvalidSettingsError if there is none.

    The narrowest that has all values, except that times have microseconds: ``to_iceberg`` refuses finer ones.
    """
    if kinds.is_uint64(kind):
        return pa.decimal128(20, 0)
    if kinds.is_uint32(kind) or kinds.is_int64(kind) or kinds.is_duration(kind):
        return pa.int64()
    if kinds.is_integer(kind):
        return pa.int32()
    if kinds.is_date(kind):
        return pa.date32()
    if kinds.is_time(kind):
        return pa.time64("us")
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if kinds.is_large_string(kind):
        return pa.string()
    if kinds.is_large_binary(kind):
        return pa.binary()
    if kinds.is_decimal(kind):
        return _decimal(name, kind)
    return kind


def iceberg_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of the table: all may be null, so that those of a collection may become so."""
    return pa.schema(
        [pa.field(field.name, iceberg_type(field.name, field.type)) for field in columns]
    )


def to_iceberg(rows: pa.Table) -> pa.Table:
    """Return rows in the columns of :func:`iceberg_schema`.

    InvalidSettingsError naming the column that has a value that Iceberg cannot have.
    """
    schema = iceberg_schema(rows.schema)
    columns = []
    for field, column in zip(schema, rows.columns, strict=True):
        try:
            columns.append(_cast(column, field.type))
        except pa.ArrowInvalid as error:
            raise InvalidSettingsError(
                f"the column {field.name!r} has values that Iceberg cannot have as {field.type}; nothing was "
                f"exported: {error}"
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kinds.is_time(column.type) and column.type.unit == "s":
        column = column.cast(pa.time32("ms"))  # Arrow knows no direct way
    return column.cast(kind)


def _decimal(name: str, kind: pa.DataType) -> pa.DataType:
    digits, scale = kind.precision - min(kind.scale, 0), max(kind.scale, 0)
    if digits > _MOST_DIGITS or scale > digits:
        raise InvalidSettingsError(
            f"the column {name!r} has the type {kind}; Iceberg's decimals have at most {_MOST_DIGITS} digits"
        )
    return pa.decimal128(digits, scale)
