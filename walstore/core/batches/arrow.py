"""Columns of records as Arrow. Imported only on request, so that the core runs without pyarrow."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from walstore.core.runtime.extras import needs_extra
from walstore.core.validation.arguments import as_texts
from walstore.errors import InvalidSettingsError

with needs_extra("cloud", "Arrow"):
    import pyarrow as pa
    import pyarrow.compute as pc

_UINTS: Final = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}

HEADERS_TYPE: Final = pa.map_(pa.string(), pa.binary())

SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("timestamp_us", pa.uint64(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("stream", pa.string()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""Columns of :meth:`walstore.Batch.to_arrow`; ``timestamp_us`` counts from 1970 UTC."""

ROWS: Final = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("stream", pa.string()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""Columns of records for other engines, with the names of Spark's source and types that every engine has."""


def of_columns(
    offsets: Sequence[int],
    timestamps_us: Sequence[int] | int,
    values: Sequence[bytes] | pa.Array,
    keys: Sequence[bytes | None] | None,
    streams: Sequence[str | None] | None,
    headers: Sequence[Mapping[str, bytes]] | None,
) -> pa.RecordBatch:
    """Return records as a RecordBatch of :data:`SCHEMA`; all but an array of values is copied.

    A column that is None has no value for any record, and one number is the time of all: both are cheap.
    """
    rows = len(offsets)
    columns = [
        offsets_of(offsets),
        pa.repeat(pa.scalar(timestamps_us, pa.uint64()), rows)
        if isinstance(timestamps_us, int)
        else pa.array(timestamps_us, pa.uint64()),
        values if isinstance(values, pa.Array) else pa.array(values, pa.binary()),
        pa.nulls(rows, pa.binary()) if keys is None else pa.array(keys, pa.binary()),
        pa.nulls(rows, pa.string()) if streams is None else pa.array(streams, pa.string()),
        pa.nulls(rows, HEADERS_TYPE)
        if headers is None
        else pa.array([list(item.items()) or None for item in headers], HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def take(records: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Return some rows of a RecordBatch, copied."""
    return records.take(pa.array(rows, pa.int64()))


def offsets_of(offsets: Sequence[int]) -> pa.UInt64Array:
    """Return offsets of records."""
    if isinstance(offsets, range):
        return offsets_array(offsets.start, offsets.stop)
    return pa.array(offsets, pa.uint64())


def offsets_array(start: int, limit: int) -> pa.UInt64Array:
    """Return the offsets ``[start, limit)``; twenty times as fast as an array of a ``range``."""
    one = pa.scalar(1, pa.uint64())
    behind = pc.cumulative_sum(pa.repeat(one, limit - start), start=pa.scalar(start, pa.uint64()))
    return pc.subtract(behind, one)


def values_array(blob: memoryview, lengths: Sequence[int]) -> pa.BinaryArray:
    """Return values that are back to back, as an array over the same bytes."""
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, _bounds(lengths), pa.py_buffer(blob)]
    )


def take_values(values: pa.BinaryArray, rows: Sequence[int]) -> pa.BinaryArray:
    """Return some of the values, copied."""
    return values.take(pa.array(rows, pa.int32()))


def _bounds(lengths: Sequence[int]) -> pa.Buffer:
    """Return where each value begins and the last one ends, in Arrow's 32-bit integers."""
    if isinstance(lengths, array):
        buffers = [None, pa.py_buffer(lengths)]
        found = pa.Array.from_buffers(_UINTS[lengths.itemsize], len(lengths), buffers)
    elif lengths and lengths.count(lengths[0]) == len(lengths):
        found = pa.repeat(lengths[0], len(lengths))
    else:
        found = pa.array(lengths, pa.int32())
    from_zero = pa.concat_arrays([pa.array([0], pa.int32()), found.cast(pa.int32())])
    return pc.cumulative_sum(from_zero).buffers()[1]


def concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of several batches as one."""
    found = pa.Table.from_batches(batches, schema=SCHEMA).combine_chunks().to_batches()
    return found[0] if found else empty()


def empty() -> pa.RecordBatch:
    """Return a batch of :data:`SCHEMA` without rows."""
    return pa.RecordBatch.from_pylist([], schema=SCHEMA)


def check_columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return names of :data:`ROWS` as given, all for None.

    TypeError for one text; InvalidSettingsError for no name, one that is given twice, and one that is not
    there.
    """
    if columns is None:
        return tuple(ROWS.names)
    names = as_texts(columns, "columns")
    for name in names:
        if name not in ROWS.names:
            raise InvalidSettingsError(
                f"a log's columns are {', '.join(ROWS.names)}, not {name[:80]!r}"
            )
    if not names or len(set(names)) != len(names):
        raise InvalidSettingsError("give one or more columns, each once")
    return names


def schema_of(names: Sequence[str]) -> pa.Schema:
    """Return the columns ``names`` of :data:`ROWS`, in this order."""
    return pa.schema([ROWS.field(name) for name in names])


def rows_of(records: pa.RecordBatch, names: Sequence[str] = ROWS.names) -> pa.RecordBatch:
    """Return records that have the columns :data:`SCHEMA` in columns of :data:`ROWS`, sharing the bytes.

    InvalidSettingsError if an offset or a time does not fit a signed number, as it may be in a log of wal3.
    """
    columns = [_row_column(records, name) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(names))


def table_of(batches: list[pa.RecordBatch], names: Sequence[str]) -> pa.Table:
    """Return batches of :func:`rows_of` as a table; none are a table without rows."""
    return pa.Table.from_batches(batches, schema=schema_of(names))


def stream_of(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return batches in the columns of :data:`ROWS` as a stream, which takes each when it is wanted."""
    return pa.RecordBatchReader.from_batches(ROWS, batches)


def _row_column(records: pa.RecordBatch, name: str) -> pa.Array:
    if name not in {"offset", "timestamp"}:
        return records.column(name)
    try:
        found = records.column("offset" if name == "offset" else "timestamp_us").cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidSettingsError(
            f"the column {name!r} has a number above 2**63 - 1, which signed columns cannot have"
        ) from error
    return found.view(ROWS.field(name).type)
