"""Batches as Arrow. Imported only on request, so that the core runs without pyarrow."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from walstore.format.frame import ColumnKind
from walstore.runtime.extras import needs_extra

with needs_extra("cloud", "Arrow"):
    import pyarrow as pa
    import pyarrow.compute as pc

if TYPE_CHECKING:
    from walstore.batches.batch import Batch, FrameBatch

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


def to_arrow(batch: FrameBatch) -> pa.RecordBatch:
    """Return the batch as a RecordBatch of :data:`SCHEMA`; the values' bytes are shared."""
    return _from_frame(batch, batch, values_array(batch)) if len(batch) else empty()


def selected_to_arrow(selected: Batch, source: FrameBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Return the records at ``rows`` of a frame, those of ``selected``; their values are copied."""
    if not rows:
        return empty()
    return _from_frame(selected, source, values_array(source).take(pa.array(rows, pa.int32())))


def _from_frame(batch: Batch, source: FrameBatch, values: pa.BinaryArray) -> pa.RecordBatch:
    """Return records of the frame ``source``; missing columns are cheap."""
    rows = len(batch)
    columns = [
        offsets_of(batch),
        pa.array(batch.timestamps_us, pa.uint64())
        if source.has(ColumnKind.TIMESTAMP_DELTAS)
        else pa.repeat(pa.scalar(source.header.base_timestamp_us, pa.uint64()), rows),
        values,
        pa.array(batch.keys, pa.binary())
        if source.has(ColumnKind.KEYS)
        else pa.nulls(rows, pa.binary()),
        pa.array(batch.streams, pa.string())
        if source.has(ColumnKind.STREAM_IDS)
        else pa.nulls(rows, pa.string()),
        pa.array([list(item.items()) or None for item in batch.headers], HEADERS_TYPE)
        if source.has(ColumnKind.HEADERS)
        else pa.nulls(rows, HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def of_records(batch: Batch) -> pa.RecordBatch:
    """Return any batch as a RecordBatch of :data:`SCHEMA`; everything is copied."""
    columns = [
        offsets_of(batch),
        pa.array(batch.timestamps_us, pa.uint64()),
        pa.array(batch.values, pa.binary()),
        pa.array(batch.keys, pa.binary()),
        pa.array(batch.streams, pa.string()),
        pa.array([list(item.items()) or None for item in batch.headers], HEADERS_TYPE),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def take(records: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Return some rows of a RecordBatch, copied."""
    return records.take(pa.array(rows, pa.int64()))


def offsets_of(batch: Batch) -> pa.UInt64Array:
    """Return the offsets of a batch's records."""
    offsets = batch.offsets
    if isinstance(offsets, range):
        return offsets_array(offsets.start, offsets.stop)
    return pa.array(offsets, pa.uint64())


def offsets_array(start: int, limit: int) -> pa.UInt64Array:
    """Return the offsets ``[start, limit)``; twenty times as fast as an array of a ``range``."""
    one = pa.scalar(1, pa.uint64())
    behind = pc.cumulative_sum(pa.repeat(one, limit - start), start=pa.scalar(start, pa.uint64()))
    return pc.subtract(behind, one)


def values_array(batch: FrameBatch) -> pa.BinaryArray:
    """Return the values as an Arrow array over the frame's own bytes."""
    blob, lengths = batch.value_buffer()
    low, high = batch.rows()
    whole = pa.BinaryArray.from_buffers(
        pa.binary(), len(lengths), [None, _bounds(lengths), pa.py_buffer(blob)]
    )
    return whole.slice(low, high - low)


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
