"""From Spark's rows to Arrow batches, for versions of Spark whose stream writers get no Arrow. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, Row, StructType

from walstore.spark.schema import HEADERS_ARROW

_ROWS: Final = 10_000


def row_batches(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches; the columns are those of ``schema``, which ``check_columns`` has passed."""
    names = schema.fieldNames()
    types = [_type(field.name, field.dataType) for field in schema.fields]
    waiting = iter(rows)
    while part := list(islice(waiting, _ROWS)):
        columns = [
            pa.array([_value(row[at]) for row in part], kind) for at, kind in enumerate(types)
        ]
        yield pa.RecordBatch.from_arrays(columns, names=names)


def _type(name: str, found: object) -> pa.DataType:
    if name in {"value", "key"}:
        return pa.binary() if isinstance(found, BinaryType) else pa.string()
    return {
        "headers": HEADERS_ARROW,
        "partition": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }.get(name, pa.string())


def _value(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):  # without a zone it is the machine's
        return value.astimezone(UTC)
    if isinstance(value, list):
        return [{"key": one[0], "value": _value(one[1])} for one in value]
    return value
