"""Records over a connection: appended ones as columns, read ones as frames of the log's own format. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

from walstore.core.batches.append_request import pack_headers
from walstore.core.batches.batch import Batch
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.batches.derived import ConcatBatch, EmptyBatch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.format import frame
from walstore.core.format.packed import MalformedError, unpack_headers
from walstore.net.wire.message import ProtocolViolationError
from walstore.records import NO_HEADERS

_SIZE_CODE: Final = "I"
_LENGTH_BYTES: Final = array(_SIZE_CODE).itemsize
_LARGE_BYTES: Final = 4 << 10


RecordOptions = tuple[bytes | None, str | None, bytes | None, int | None]
"""Key, stream, packed headers and time of a record, as an append takes them."""
NO_OPTIONS: Final[RecordOptions] = (None, None, None, None)


def pack_values(values: Sequence[bytes]) -> bytes:
    """Return the sizes of values, for the head; the values themselves are the payload."""
    return array(_SIZE_CODE, map(len, values)).tobytes()


def take_values(sizes: object, payload: memoryview) -> list[bytes]:
    """Return the values of a payload, and give its memory back: it cannot be used any more.

    ProtocolViolationError if the sizes are not those of it.
    """
    if not isinstance(sizes, bytes) or len(sizes) % _LENGTH_BYTES:
        raise ProtocolViolationError("sizes that are none")
    lengths = array(_SIZE_CODE)
    lengths.frombytes(sizes)
    ends = list(accumulate(lengths, initial=0))
    if ends[-1] != len(payload):
        raise ProtocolViolationError(
            f"sizes of {ends[-1]} bytes with a payload of {len(payload)} bytes"
        )
    if len(payload) > len(lengths) * _LARGE_BYTES:
        values = [bytes(payload[low:high]) for low, high in pairwise(ends)]
    else:  # parts of bytes are made faster than those of a view, but all are in memory twice meanwhile
        data = bytes(payload)
        values = [data[low:high] for low, high in pairwise(ends)]
    payload.release()
    return values


def pack_options(rows: Sequence[RecordOptions]) -> list[Any]:
    """Return the options of records as columns; None for one that no record uses."""
    return [
        column if any(item is not None for item in column) else None
        for column in map(list, zip(*rows, strict=True))
    ]


def unpack_options(options: object, count: int) -> Iterator[tuple[Any, ...]]:
    """Yield key, stream, headers and timestamp of each of ``count`` records, as an append takes them."""
    if not isinstance(options, list) or len(options) != len(NO_OPTIONS):
        raise ProtocolViolationError("options of records that are none")
    columns = [[None] * count if column is None else column for column in options]
    if any(not isinstance(column, list) or len(column) != count for column in columns):
        raise ProtocolViolationError(f"options of another number of records than {count}")
    keys, streams, headers, times = columns
    return zip(keys, streams, map(unpack_header, headers), times, strict=True)


def unpack_header(packed: object) -> Mapping[str, bytes] | None:
    """Return the headers of one record."""
    if packed is None:
        return None
    if not isinstance(packed, bytes):
        raise ProtocolViolationError("headers that are none")
    try:
        return unpack_headers(packed, [len(packed) + 1], NO_HEADERS)[0]
    except MalformedError:
        raise ProtocolViolationError("headers that are no map of text to bytes") from None


# -- read ------------------------------------------------------------------------------------


def pack_batch(batch: Batch) -> tuple[list[list[int]], list[bytes | memoryview]]:
    """Return the intervals of a batch and its records, as frames.

    For each frame: start and limit of its interval, and the bytes of the frame. An interval without
    records has no bytes.
    """
    intervals: list[list[int]] = []
    pieces: list[bytes | memoryview] = []
    for part in _parts(batch):
        framed = memoryview(_frame(part) if len(part) else b"")
        intervals.append([part.start, part.limit, len(framed)])
        pieces.append(framed)
    return intervals, pieces


def unpack_batches(intervals: object, payload: memoryview) -> list[Batch]:
    """Return the batches that were packed; ProtocolViolationError if they are damaged."""
    found: list[Batch] = []
    position = 0
    if not isinstance(intervals, list):
        raise ProtocolViolationError("intervals that are none")
    for interval in intervals:
        match interval:
            case [int(start), int(limit), int(size)] if 0 < start <= limit and size >= 0:
                pass
            case _:
                raise ProtocolViolationError(f"an interval that is none: {interval!r:.100}")
        if size:
            found.append(_unframe(payload[position : position + size], start, limit))
        else:
            found.append(EmptyBatch(start, limit))
        position += size
    if position != len(payload):
        raise ProtocolViolationError("a payload that is not that of its intervals")
    return found


def _parts(batch: Batch) -> Iterator[Batch]:
    if isinstance(batch, ConcatBatch):
        for part in batch.parts:
            yield from _parts(part)
    else:
        yield batch


def _frame(batch: Batch) -> bytearray:
    times = batch.timestamps_us
    base, last = times[0], times[-1]
    if isinstance(batch, FrameBatch) and batch.rows() == (0, batch.header.count):
        columns = list(batch.encoded_columns())
    else:
        columns = _columns(batch).columns(None if base == last else [at - base for at in times])
    data, _ = frame.encode(
        columns,
        start=batch.start,
        count=len(batch),
        base_timestamp_us=base,
        max_timestamp_us=last,
        epoch=0,
        previous_crc=0,
        synced_limit=batch.start,
    )
    return data


def _columns(batch: Batch) -> BatchBuilder:
    """Return the records of a batch as a builder has them, for the encoding of their columns."""

    def column(items: Sequence[Any]) -> list[Any] | None:
        return list(items) if any(item is not None for item in items) else None

    return BatchBuilder(
        batch.start,
        list(batch.values),
        column(batch.keys),
        column(batch.streams),
        column([pack_headers(one) if one else None for one in batch.headers]),
    )


def _unframe(data: memoryview, start: int, limit: int) -> Batch:
    header = frame.parse_header(data, 0)
    if header is None or header.length != len(data) or not frame.is_whole(data, header):
        raise ProtocolViolationError("a damaged batch of records")
    if header.start != start or header.limit != limit:
        raise ProtocolViolationError(
            f"a batch of [{header.start}, {header.limit}) for [{start}, {limit})"
        )
    try:
        return FrameBatch(data, header)
    except ValueError as error:
        raise ProtocolViolationError(f"a batch that cannot be read: {error}") from None
