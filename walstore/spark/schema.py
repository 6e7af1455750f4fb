"""The columns of ``format("walstore")``: Kafka's, and ``stream``. Pure; one table for Spark and Arrow.

Spark compares the Arrow schema of a task's batches with its own exactly, but only for the first batch; so
every batch is built from :func:`arrow_schema`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from walstore import InvalidSettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence


_HEADER_FIELDS: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
HEADERS_ARROW: Final = pa.list_(pa.field("element", pa.struct(_HEADER_FIELDS)))
_HEADERS_SPARK: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
HEADERS: Final = "headers"

_COLUMNS: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestampType": (IntegerType(), pa.int32()),
    "stream": (StringType(), pa.string()),
    HEADERS: (_HEADERS_SPARK, HEADERS_ARROW),
}


def spark_schema(*, include_headers: bool) -> StructType:
    """Return all columns; ``headers`` only on request, since it costs the most to decode."""
    return StructType(
        [
            StructField(name, spark)
            for name, (spark, _) in _COLUMNS.items()
            if include_headers or name != HEADERS
        ]
    )


def column_names(schema: StructType) -> tuple[str, ...]:
    """Return the names in a schema, which the caller may have passed to ``.schema(...)``.

    It may leave columns out, which saves decoding them, and order them freely; the types are fixed.
    InvalidSettingsError otherwise.
    """
    for field in schema.fields:
        known = _COLUMNS.get(field.name)
        if known is None or known[0] != field.dataType or not field.nullable:
            columns = ", ".join(
                f"{name} {spark.simpleString()}" for name, (spark, _) in _COLUMNS.items()
            )
            raise InvalidSettingsError(
                f"a schema may only choose from the log's columns ({columns}), all nullable; "
                f"not {field.name} {field.dataType.simpleString()}"
            )
    names = tuple(schema.fieldNames())
    if not names or len(set(names)) != len(names):
        raise InvalidSettingsError("a schema needs one or more columns, each named once")
    return names


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema that Spark expects for these columns."""
    return pa.schema([pa.field(name, _COLUMNS[name][1]) for name in names])


_STORED_AS: Final = {
    "key": "key",
    "value": "value",
    "timestamp": "timestamp_us",
    "stream": "stream",
    HEADERS: "headers",
}
"""Columns that are stored in the log, as ``arrow.SCHEMA`` names them; the others are known without it."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Which columns and which records a read returns."""

    names: tuple[str, ...]
    """Columns of the rows, in order."""
    streams: frozenset[str] | None = None
    """The streams whose records are read; None for all records, also those without a stream."""

    @property
    def columns(self) -> frozenset[str]:
        """Stored columns to read; empty if topic, partition and offsets are enough."""
        filtered = {"stream"} if self.streams is not None else set()
        return frozenset(filtered | {_STORED_AS[name] for name in self.names if name in _STORED_AS})
