"""The columns of a fragment, made from batches; from long ones without a Python object for each record.

Owns the way from frames to Arrow, and which bytes are hashed. Values are shared with the frames; the small
columns are computed for a whole batch at once. Only batches of a few records are taken apart, and batches of
other kinds go through their own Arrow form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from uploader.format.setsum import Setsum
from walstore.batches.arrow import SCHEMA, offsets_array, values_array
from walstore.batches.batch import Batch, FrameBatch
from walstore.format.frame import ColumnKind

_UINTS: Final = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}
_TOGETHER_ROWS: Final = 1024
"""So many records of short batches are made columns together."""
_FEW_ROWS: Final = 64
"""Making Arrow columns of a batch takes some 100 µs however short it is; below this, going record by record
and making columns of many batches together takes less."""


def to_table(batches: Sequence[Batch]) -> pa.Table:
    """Return the records in the columns of ``walstore.batches.arrow.SCHEMA``; the values' bytes are shared.

    The batches have a record each, and follow each other.
    """
    parts = [_part(run[0]) if len(run) == 1 else _together(run) for run in _grouped(batches)]
    columns = [offsets_array(batches[0].start, batches[-1].limit)]
    columns += [
        pa.chunked_array([part[at] for part in parts], SCHEMA.field(at + 1).type)
        for at in range(len(SCHEMA) - 1)
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def setsum_of(batches: Sequence[Batch], timestamp_us: int) -> Setsum:
    """Return the sum of the batches' records under the fragment's time."""
    return Setsum.total(_sum(run, timestamp_us) for run in _grouped(batches))


def setsum_of_column(values: pa.ChunkedArray, start: int, timestamp_us: int) -> Setsum:
    """Return the sum of the records with these values, from the offset ``start`` on; nothing is copied."""
    sums = []
    for chunk in values.chunks:
        if len(chunk):
            sums.append(Setsum.of_slices(start, timestamp_us, *_slices(chunk)))
        start += len(chunk)
    return Setsum.total(sums)


def _grouped(batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    """Yield short batches that follow each other together, about _TOGETHER_ROWS records, others alone."""
    run: list[Batch] = []
    rows = 0
    for batch in batches:
        is_short = len(batch) < _FEW_ROWS
        if run and (not is_short or rows >= _TOGETHER_ROWS):
            yield run
            run, rows = [], 0
        if is_short:
            run.append(batch)
            rows += len(batch)
        else:
            yield [batch]
    if run:
        yield run


def _together(run: Sequence[Batch]) -> list[pa.Array]:
    """Return the columns of several short batches but for the offsets; everything is copied."""
    held = [_undecoded(batch) for batch in run]
    columns = [
        chain.from_iterable(batch.timestamps_us for batch in held),
        chain.from_iterable(batch.values for batch in held),
        chain.from_iterable(batch.keys for batch in held),
        chain.from_iterable(batch.streams for batch in held),
        (list(item.items()) or None for batch in held for item in batch.headers),
    ]
    types = SCHEMA.types[1:]
    return [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]


def _undecoded(batch: Batch) -> Batch:
    """Return a view, so that the values decoded from it do not stay in memory with the frame."""
    if isinstance(batch, FrameBatch) and not batch.has_decoded_values:
        return batch.view(batch.start, batch.limit)
    return batch


def _part(batch: Batch) -> list[pa.Array]:
    """Return a batch's columns but for the offsets."""
    if isinstance(batch, FrameBatch):
        return [
            _timestamps(batch),
            values_array(batch),
            _keys(batch),
            _streams(batch),
            _headers(batch),
        ]
    return list(batch.to_arrow().columns[1:])


def _timestamps(batch: FrameBatch) -> pa.Array:
    base = pa.scalar(batch.header.base_timestamp_us, pa.uint64())
    if not batch.has(ColumnKind.TIMESTAMP_DELTAS):
        return pa.repeat(base, len(batch))
    return _cut(batch, pc.add(_uints(batch, ColumnKind.TIMESTAMP_DELTAS).cast(pa.uint64()), base))


def _keys(batch: FrameBatch) -> pa.Array:
    """Return the keys: a length of 0 means that there is none, n + 1 means n bytes."""
    if not batch.has(ColumnKind.KEYS):
        return pa.nulls(len(batch), pa.binary())
    batch.sizes(
        ColumnKind.KEY_LENGTHS, ColumnKind.KEYS
    )  # Arrow would read what is behind the buffer
    lengths = _uints(batch, ColumnKind.KEY_LENGTHS).cast(pa.int32())
    is_there = pc.greater(lengths, 0)
    sizes = pc.subtract(lengths, is_there.cast(pa.int32()))
    bounds = pc.cumulative_sum(pa.concat_arrays([pa.array([0], pa.int32()), sizes]))
    buffers = [
        is_there.buffers()[1],
        bounds.buffers()[1],
        pa.py_buffer(batch.column(ColumnKind.KEYS)[1]),
    ]
    return _cut(batch, pa.Array.from_buffers(pa.binary(), len(lengths), buffers))


def _streams(batch: FrameBatch) -> pa.Array:
    if not batch.has(ColumnKind.STREAM_IDS):
        return pa.nulls(len(batch), pa.string())
    names = pa.array([None, *batch.stream_names], pa.string())
    try:
        return names.take(_cut(batch, _uints(batch, ColumnKind.STREAM_IDS)))
    except pa.ArrowIndexError:
        batch.refuse("a stream that has no name")


def _headers(batch: FrameBatch) -> pa.Array:
    type_ = SCHEMA.field("headers").type
    if not batch.has(ColumnKind.HEADERS):
        return pa.nulls(len(batch), type_)
    return pa.array([list(item.items()) or None for item in batch.headers], type_)


def _uints(batch: FrameBatch, kind: ColumnKind) -> pa.Array:
    """Return an integer column of the whole frame."""
    found = batch.uints(kind)
    if isinstance(found, list):  # all alike
        return pa.repeat(pa.scalar(found[0], pa.uint64()), len(found))
    whole = memoryview(found)  # type: ignore[arg-type]
    return pa.Array.from_buffers(_UINTS[whole.itemsize], len(found), [None, pa.py_buffer(whole)])


def _cut(batch: FrameBatch, column: pa.Array) -> pa.Array:
    low, high = batch.rows()
    return column.slice(low, high - low)


def _sum(run: Sequence[Batch], timestamp_us: int) -> Setsum:
    first = run[0]
    if len(run) > 1:
        values = [value for batch in run for value in _undecoded(batch).values]
        return Setsum.of_records(first.start, timestamp_us, values)
    return setsum_of_column(pa.chunked_array([_values(first)]), first.start, timestamp_us)


def _values(batch: Batch) -> pa.Array:
    if isinstance(batch, FrameBatch):
        return values_array(batch)
    return batch.to_arrow().column("value")


def _slices(values: pa.BinaryArray) -> tuple[memoryview, memoryview]:
    """Return the bytes of values that are not null, and where each begins and the last one ends."""
    _, bounds, data = values.buffers()
    cuts = memoryview(bounds).cast("i")[values.offset : values.offset + len(values) + 1]
    return memoryview(data or b""), cuts
