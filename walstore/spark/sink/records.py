"""From the Arrow batches of a task to records, each with its partition. No I/O.

Converts one batch at a time. The partition of a key is ``crc32(key) % partitions``, in Spark
``pmod(crc32(key), partitions)``. A task's rows without a key go to one partition.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from uploader.partitioned.stager import RECORDS
from walstore import InvalidSettingsError, WalError
from walstore.spark.rows import HEADERS_ARROW

COLUMNS: Final[dict[str, str]] = {
    "value": "binary or string",
    "key": "binary or string",
    "headers": "array<struct<key string, value binary>>",
    "stream": "string",
    "partition": "int",
    "timestamp": "timestamp",
}
"""Columns that can be written; ``value`` is required."""
_BYTES: Final = (BinaryType, StringType)
_WHOLE: Final = (IntegerType, LongType, ShortType, ByteType)
_US: Final = pa.timestamp("us", tz="UTC")


def check_columns(schema: StructType, partition_by: str | None = None) -> tuple[str, ...]:
    """Return the names of the columns.

    InvalidSettingsError if a log cannot take one of them, or a required one is missing: ``value``, and the
    column that selects the partition.
    """
    names = tuple(schema.fieldNames())
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise InvalidSettingsError(
                f"a log has no column {field.name!r}; it takes {_known()}: drop it, or pack it into value "
                "(to_json(struct(...)))"
            )
        if not _fits(field.name, field.dataType):
            raise InvalidSettingsError(
                f"the column {field.name} must be {COLUMNS[field.name]}, not "
                f"{field.dataType.simpleString()}: cast it"
            )
    if "value" not in names:
        raise InvalidSettingsError(f"rows need a column value; a log takes {_known()}")
    needed = {"key": "key", "column": "partition"}.get(partition_by or "", "value")
    if needed not in names:
        raise InvalidSettingsError(f"partitionBy={partition_by} needs a column {needed}")
    if len(set(names)) != len(names):
        raise InvalidSettingsError("two columns have the same name; rename or drop one of them")
    return names


def to_records(batch: pa.RecordBatch, names: Sequence[str], *, now_us: int) -> pa.Table:
    """Return the rows in the columns of ``RECORDS``; rows without a timestamp get ``now_us``.

    WalError for a row that cannot be a record.
    """
    found = dict(zip(names, batch.columns, strict=True))
    rows = batch.num_rows
    if found["value"].null_count:
        raise WalError("a row has no value (null); filter such rows out, or give them one")
    columns = [
        _times(found.get("timestamp"), rows, now_us),
        found["value"].cast(pa.binary()),
        found["key"].cast(pa.binary()) if "key" in found else pa.nulls(rows, pa.binary()),
        found["stream"].cast(pa.string()) if "stream" in found else pa.nulls(rows, pa.string()),
        _headers(found["headers"])
        if "headers" in found
        else pa.nulls(rows, RECORDS.field("headers").type),
    ]
    return pa.Table.from_arrays(columns, schema=RECORDS)


def partition_column(batch: pa.RecordBatch, names: Sequence[str], partitions: int) -> pa.Array:
    """Return the rows' partitions from the column; WalError for a number out of range."""
    found = batch.column(names.index("partition")).cast(pa.int64())
    low, high = pc.min_max(found).as_py().values()
    if found.null_count or low < 0 or high >= partitions:
        worst = None if found.null_count else (low if low < 0 else high)
        raise WalError(
            f"the column partition must be from 0 to {partitions - 1}, for there are {partitions} logs; "
            f"a row has {'null' if worst is None else worst}"
        )
    return found


def _known() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def _fits(name: str, found: DataType) -> bool:
    if name in {"value", "key"}:
        return isinstance(found, _BYTES)
    if name == "headers":
        return isinstance(found, ArrayType) and _is_header(found.elementType)
    if name == "partition":
        return isinstance(found, _WHOLE)
    return isinstance(found, TimestampType if name == "timestamp" else StringType)


def _is_header(found: DataType) -> bool:
    return (
        isinstance(found, StructType)
        and found.fieldNames() == ["key", "value"]
        and isinstance(found["key"].dataType, StringType)
        and isinstance(found["value"].dataType, BinaryType)
    )


def _times(column: pa.Array | None, rows: int, now_us: int) -> pa.Array:
    if column is None:
        return pa.repeat(pa.scalar(now_us, pa.uint64()), rows)
    times = pc.fill_null(column.cast(_US).cast(pa.int64()), now_us)
    if rows and pc.min(times).as_py() < 0:
        raise WalError("a row has a timestamp before 1970, which a record cannot have")
    return times.cast(pa.uint64())


def _headers(column: pa.Array) -> pa.Array:
    """Return lists of pairs as maps; WalError for a header that a record has twice."""
    lists = column.cast(HEADERS_ARROW)
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    bounds = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    keys, values = lists.flatten().flatten()
    if keys.null_count or values.null_count:
        raise WalError("a header has no key or no value (null); a record's headers have both")
    _check_once(keys, bounds)
    if lists.null_count:
        is_null = pa.concat_arrays([lists.is_null(), pa.array([False])])
        bounds = pc.if_else(is_null, pa.scalar(None, pa.int32()), bounds)
    maps = pa.MapArray.from_arrays(bounds, keys, values)
    return maps.cast(RECORDS.field("headers").type)


def _check_once(keys: pa.Array, bounds: pa.Array) -> None:
    names, ends = keys.to_pylist(), bounds.to_pylist()
    for start, limit in pairwise(ends):
        if limit - start > 1 and len(set(names[start:limit])) < limit - start:
            raise WalError(f"a record's headers have each name once: {names[start:limit]}")


def key_partitions(keys: pa.ChunkedArray, partitions: int, task: int) -> pa.Array:
    """Return the partition of each key; for null, that of the task."""
    own, crc32 = task % partitions, zlib.crc32
    return pa.array(
        [own if key is None else crc32(key) % partitions for key in keys.to_pylist()], pa.int64()
    )


def split(records: pa.Table, numbers: pa.Array) -> Iterator[tuple[int, pa.Table]]:
    """Yield the records of each partition, in order; copies the records once."""
    order = pc.sort_indices(numbers)  # stable
    counts = pc.value_counts(numbers.take(order))
    sorted_records = records.take(order)
    start = 0
    for number, count in zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True):
        yield number, sorted_records.slice(start, count)
        start += count
