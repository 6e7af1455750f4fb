"""SegmentWriter: one segment of a log being built, with a temporary name until it is whole. Blocking.

Owns its file. Frames, chain and footer are those of a log's own writer; but as no append waits, a
segment is synced only once, at its end.

:func:`frame_records` converts records of fragments to the columns of its frames, the opposite of
``batches.arrow``. Columns are computed whole, and values are not copied on their way to the frame; only
headers, which Arrow stores in another layout, are converted record by record.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Final, NamedTuple

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from walstore.core.batches.batch_builder import marks_column
from walstore.core.batches.conditions import MAX_STREAMS
from walstore.core.batches.cost import BATCH_RECORDS
from walstore.core.batches.framer import Framer
from walstore.core.format import frame, segment
from walstore.core.format.frame import Column, ColumnKind
from walstore.core.format.ledger import Ledger, Marks, StreamInfo
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentHeader, SegmentIndex, SegmentStreams, SegmentSummary
from walstore.core.ports import FileSystem

SPARE_NAME: Final = "restore.tmp"
_WRITE_BYTES: Final = 4 << 20
"""Frames are written once they have this many bytes together."""
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
    """As :func:`walstore.core.format.frame.uint_column`, for an Arrow array without nulls."""
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


class EncodedFrame(NamedTuple):
    """A frame without a position in the log yet: its header is blank."""

    data: bytearray
    body: frame.Body
    framed: FramedRecords
    marks: Marks


def encode_frame(
    framed: FramedRecords, start: int, ledger: Ledger, *, compress: bool
) -> EncodedFrame:
    """Return the frame of some records, the first of which has the offset ``start``.

    Streams that they open are marked as if appending had opened them. Streams above the limit of a log
    are left out, and appends to them will be refused.
    """
    room = MAX_STREAMS - len(ledger.streams)
    opened = {
        name: StreamInfo(is_open=True, metadata={}, opened_at=start + row)
        for name, row in islice(framed.opened.items(), room)
    }
    marks = Marks(streams=opened)
    columns = [marks_column(marks), *framed.columns] if opened else framed.columns
    data, body = frame.encode_body(columns, count=framed.count, compress=compress)
    return EncodedFrame(data, body, framed, marks)


class SegmentWriter:
    """A segment that continues the log at a chain, which advances with each frame."""

    def __init__(
        self, fs: FileSystem, directory: Path, chain: Chain, *, log_id: bytes, now_us: int
    ) -> None:
        """Create the file, replacing one of an interrupted writer; OSError."""
        assert chain.ledger is not None
        self._fs = fs
        self._directory = directory
        self._chain = chain
        self._ledger: Ledger = chain.ledger
        self._start = chain.next_offset
        self.index = SegmentIndex(SegmentStreams())
        """Of the frames so far."""
        self.size_bytes = segment.HEADER_BYTES
        """Length of header and frames so far."""
        spare = directory / SPARE_NAME
        with contextlib.suppress(FileNotFoundError):
            fs.remove(spare)
        self._file = fs.open(spare, "x")
        self.salt = segment.make_salt()
        """The segment's salt."""
        header = SegmentHeader(
            log_id, self._start, chain.epoch, now_us, chain.previous_crc, self.salt
        )
        self._waiting: list[bytes | bytearray] = [segment.encode_header(header)]
        self._waiting_bytes = self._written_bytes = 0
        if not self._ledger.is_empty:
            self.index.add(self._start, self.size_bytes, chain.timestamp_us)
            spot = frame.place(self.salt, self.size_bytes), self._start, 0
            self._take(Framer(chain, compress=False).frame_ledger(spot))

    @property
    def is_empty(self) -> bool:
        """Whether it holds no record yet."""
        return self._chain.next_offset == self._start

    def add(self, encoded: EncodedFrame) -> None:
        """Add a frame; OSError."""
        chain, framed, data = self._chain, encoded.framed, encoded.data
        header, crc = frame.encode_header(
            encoded.body,
            start=chain.next_offset,
            base_timestamp_us=framed.base_timestamp_us,
            max_timestamp_us=framed.last_timestamp_us,
            epoch=chain.epoch,
            previous_crc=chain.previous_crc,
            synced_limit=self._start,
            at=frame.place(self.salt, self.size_bytes),
        )
        data[: frame.HEADER_BYTES] = header
        self.index.add(chain.next_offset, self.size_bytes, framed.base_timestamp_us)
        self.index.streams.add(framed.streams)
        self._ledger.apply(encoded.marks)
        chain.next_offset += framed.count
        chain.previous_crc = crc
        chain.timestamp_us = framed.last_timestamp_us
        self._take(data)
        if self._waiting_bytes >= _WRITE_BYTES:
            self._write()

    def seal(self) -> SegmentSummary:
        """Write the footer, make the segment durable, and give it its name; OSError."""
        chain = self._chain
        summary = SegmentSummary(
            self._start,
            chain.next_offset,
            self.size_bytes,
            chain.previous_crc,
            chain.timestamp_us,
        )
        self._waiting.append(segment.encode_footer(summary, self.index))
        self._place()
        return summary

    def leave_open(self) -> None:
        """As :meth:`seal`, without the footer: the active segment of a log without records. OSError."""
        self._place()

    def close(self) -> None:
        """Release the file; twice is allowed. The next writer deletes a file without its final name."""
        self._file.close()

    # -- inside ------------------------------------------------------------------------------

    def _take(self, data: bytearray) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.size_bytes += len(data)

    def _write(self) -> None:
        self._file.pwrite(self._waiting, self._written_bytes)
        self._written_bytes += sum(map(len, self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _place(self) -> None:
        self._write()
        self._file.datasync()
        self._file.close()
        path = self._directory / segment.file_name(self._start)
        self._fs.replace(self._directory / SPARE_NAME, path)
        self._fs.sync_directory(self._directory)
