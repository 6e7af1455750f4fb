"""Framing: converts records of fragments to the columns of local batches. Pure: Arrow in, columns out.

The opposite of ``batches.arrow``. Columns are computed whole, and values are not copied on their way to
the frame; only headers, which Arrow stores in another layout, are converted record by record.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from walstore.batches.batch_builder import BATCH_RECORDS
from walstore.format import frame
from walstore.format.frame import Column, ColumnKind

_WIDTHS: Final = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}
_IS_LITTLE: Final = sys.byteorder == "little"


@dataclass(frozen=True, slots=True)
class FramedRecords:
    """The content of a frame, except for its position in the log."""

    columns: list[Column]
    """In the order in which they are written."""
    count: int
    """Records; at least one."""
    base_timestamp_us: int
    """Time of the first record."""
    last_timestamp_us: int
    """Time of the last record."""
    streams: Sequence[str]
    """Streams with records here."""
    opened: Mapping[str, int]
    """Those of them that are new, each with the row of its first record."""


def frame_records(
    records: pa.RecordBatch, *, floor_us: int, batch_bytes: int, known_streams: Container[str]
) -> Iterator[FramedRecords]:
    """Yield the contents of the frames for some records, in order.

    ``records`` has the columns of ``arrow.SCHEMA``. No time is less than ``floor_us`` or that of an
    earlier record: a local log's times never go back, and older ones are raised as its writer does. A
    frame has at most ``BATCH_RECORDS`` records, and values, keys and headers of about ``batch_bytes``
    each.
    """
    times = pc.cumulative_max(
        pc.max_element_wise(records.column("timestamp_us"), pa.scalar(floor_us, pa.uint64()))
    )
    values, keys = records.column("value"), records.column("key")
    headers = _pack_headers(records.column("headers"))
    bounds: list[Sequence[int]] = [_bounds(values)]
    if keys.null_count < len(keys):
        bounds.append(_bounds(keys))
    if headers is not None:
        bounds.append(list(accumulate((len(item or b"") for item in headers), initial=0)))
    low, rows = 0, records.num_rows
    while low < rows:
        high = min(low + BATCH_RECORDS, rows)
        for ends in bounds:
            fitting = bisect_right(ends, ends[low] + batch_bytes, lo=low, hi=high + 1) - 1
            high = min(high, max(fitting, low + 1))
        count = high - low
        yield _frame(
            times.slice(low, count),
            values.slice(low, count),
            keys.slice(low, count),
            records.column("stream").slice(low, count),
            None if headers is None else headers[low:high],
            known_streams,
        )
        low = high


def _frame(
    times: pa.Array,
    values: pa.Array,
    keys: pa.Array,
    streams: pa.Array,
    headers: Sequence[bytes | None] | None,
    known_streams: Container[str],
) -> FramedRecords:
    base, last = int(times[0].as_py()), int(times[-1].as_py())
    columns = [_uint_column(ColumnKind.VALUE_LENGTHS, pc.binary_length(values))]
    if last > base:
        deltas = pc.subtract(times, pa.scalar(base, pa.uint64()))
        columns.append(_uint_column(ColumnKind.TIMESTAMP_DELTAS, deltas))
    names: Sequence[str] = ()
    opened: Mapping[str, int] = {}
    if streams.null_count < len(streams):
        encoded = streams.dictionary_encode()
        ids = pc.fill_null(pc.add(encoded.indices, 1), 0)
        names = encoded.dictionary.to_pylist()
        columns += _stream_columns(ids, names)
        opened = {
            name: int(pc.index(ids, number).as_py())
            for number, name in enumerate(names, 1)
            if name not in known_streams
        }
    if keys.null_count < len(keys):
        columns += _key_columns(keys)
    if headers is not None and any(headers):
        columns += _header_columns(headers)
    columns.append(_blob_column(ColumnKind.VALUES, values))
    return FramedRecords(columns, len(values), base, last, names, opened)


def _uint_column(kind: ColumnKind, numbers: pa.Array) -> Column:
    """As :func:`walstore.format.frame.uint_column`, for an Arrow array without nulls."""
    bounds = pc.min_max(numbers)
    low, high = int(bounds["min"].as_py()), int(bounds["max"].as_py())
    if low == high < 1 << 32:
        return Column(kind, frame.CONSTANT, (struct.pack("<I", high),), 4)
    if not _IS_LITTLE:
        return frame.uint_column(kind, numbers.to_pylist())
    width = next(width for width in _WIDTHS if high < 1 << (8 * width))
    narrow = numbers.cast(_WIDTHS[width])
    data = memoryview(narrow.buffers()[1])
    data = data[narrow.offset * width : (narrow.offset + len(narrow)) * width]
    return Column(kind, width, (data,), len(data))


def _blob_column(kind: ColumnKind, items: pa.Array) -> Column:
    """Return the bytes of an array without nulls back to back, shared."""
    ends = _bounds(items)
    data = items.buffers()[2]
    blob = memoryview(b"" if data is None else data)[ends[0] : ends[-1]]
    return frame.blob_column(kind, (blob,), len(blob))


def _bounds(items: pa.Array) -> Sequence[int]:
    """Return where each item of a binary array begins in its data, and where the last one ends."""
    ends = memoryview(items.buffers()[1]).cast("i")
    return ends[items.offset : items.offset + len(items) + 1]


def _stream_columns(ids: pa.Array, names: Sequence[str]) -> list[Column]:
    packed = msgpack.packb(names)
    return [
        _uint_column(ColumnKind.STREAM_IDS, ids),
        frame.blob_column(ColumnKind.STREAM_NAMES, (packed,), len(packed)),
    ]


def _key_columns(keys: pa.Array) -> list[Column]:
    sizes = pc.fill_null(pc.add(pc.binary_length(keys), 1), 0)
    there = keys.drop_null() if keys.null_count else keys
    return [_uint_column(ColumnKind.KEY_LENGTHS, sizes), _blob_column(ColumnKind.KEYS, there)]


def _header_columns(headers: Sequence[bytes | None]) -> list[Column]:
    sizes = [0 if item is None else len(item) + 1 for item in headers]
    pieces = [item for item in headers if item]
    return [
        frame.uint_column(ColumnKind.HEADER_LENGTHS, sizes),
        frame.blob_column(ColumnKind.HEADERS, pieces, sum(map(len, pieces))),
    ]


def _pack_headers(column: pa.Array) -> list[bytes | None] | None:
    """Return the headers of each record as a frame has them; None if no record has any."""
    if column.null_count == len(column):
        return None
    # Records of one producer mostly have the same headers.
    packed: dict[tuple[tuple[str, bytes], ...], bytes] = {}
    found: list[bytes | None] = []
    for item in column.to_pylist():
        if not item:
            found.append(None)
            continue
        pairs = tuple(item)
        data = packed.get(pairs)
        if data is None:
            data = packed[pairs] = msgpack.packb(dict(pairs))
        found.append(data)
    return found
