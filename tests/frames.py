"""Frames for tests, built from records by the rules of docs/format.md."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
from hypothesis import strategies as st

from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.format import frame
from walstore.core.format.frame import Column, ColumnKind, FrameHeader
from walstore.records import NO_HEADERS, Record


def columns_of(records: Sequence[Record]) -> list[Column]:
    """Return the columns of a frame that holds these records."""
    values = [record.value for record in records]
    base = records[0].timestamp_us
    deltas = [record.timestamp_us - base for record in records]
    names = list(dict.fromkeys(record.stream for record in records if record.stream is not None))
    packed = [msgpack.packb(dict(r.headers)) if r.headers else None for r in records]

    columns = [frame.uint_column(ColumnKind.VALUE_LENGTHS, [len(value) for value in values])]
    if any(deltas):
        columns.append(frame.uint_column(ColumnKind.TIMESTAMP_DELTAS, deltas))
    if names:
        ids = [0 if r.stream is None else names.index(r.stream) + 1 for r in records]
        blob = msgpack.packb(names)
        columns.append(frame.uint_column(ColumnKind.STREAM_IDS, ids))
        columns.append(frame.blob_column(ColumnKind.STREAM_NAMES, [blob], len(blob)))
    columns += _optional(
        ColumnKind.KEY_LENGTHS, ColumnKind.KEYS, [record.key for record in records]
    )
    columns += _optional(ColumnKind.HEADER_LENGTHS, ColumnKind.HEADERS, packed)
    columns.append(frame.blob_column(ColumnKind.VALUES, values, sum(map(len, values))))
    return columns


def build(
    records: Sequence[Record],
    *,
    previous_crc: int = 0,
    epoch: int = 1,
    synced_limit: int | None = None,
    synced_position: int = 0,
    at: bytes = frame.NOWHERE,
    extra: Sequence[Column] = (),
) -> bytes:
    """Return a frame of consecutive records, with further columns if given.

    Of version 1, unless ``at`` is its place in a segment.
    """
    data, _ = frame.encode(
        [*columns_of(records), *extra],
        start=records[0].offset,
        count=len(records),
        base_timestamp_us=records[0].timestamp_us,
        max_timestamp_us=records[-1].timestamp_us,
        epoch=epoch,
        previous_crc=previous_crc,
        synced_limit=records[0].offset if synced_limit is None else synced_limit,
        synced_position=synced_position,
        at=at,
    )
    return bytes(data)


def values_only(*values: bytes, start: int = 1, timestamp_us: int = 0) -> list[Record]:
    """Return plain records."""
    return [Record(start + at, v, timestamp_us=timestamp_us) for at, v in enumerate(values)]


def header_of(data: bytes, position: int = 0, at: bytes = frame.NOWHERE) -> FrameHeader:
    """Return the header of the whole frame at a position; ``at`` is its place in a segment."""
    buffer = memoryview(data)
    header = frame.parse_header(buffer, position)
    assert header is not None
    assert frame.is_whole(buffer, header, at)
    return header


def batch_of(data: bytes, position: int = 0, at: bytes = frame.NOWHERE) -> FrameBatch:
    """Return the batch in the whole frame at a position; ``at`` is its place in a segment."""
    return FrameBatch(memoryview(data), header_of(data, position, at))


def _optional(lengths: ColumnKind, blob: ColumnKind, items: Sequence[bytes | None]) -> list[Column]:
    if all(item is None for item in items):
        return []
    sizes = [0 if item is None else len(item) + 1 for item in items]
    joined = b"".join(item for item in items if item)
    return [frame.uint_column(lengths, sizes), frame.blob_column(blob, [joined], len(joined))]


NAMES = st.text(min_size=1, max_size=10)
RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        value=st.binary(max_size=40),
        key=st.none() | st.binary(max_size=10),
        stream=st.none() | NAMES,
        headers=st.just(NO_HEADERS) | st.dictionaries(NAMES, st.binary(max_size=5), min_size=1),
        timestamp_us=st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=20,
)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    """Consecutive records with every mixture of optional columns, times not decreasing."""
    found = draw(RECORDS)
    start = draw(st.integers(1, 1 << 40))
    times = sorted(record.timestamp_us for record in found)
    return [
        record._replace(offset=start + at, timestamp_us=time)
        for at, (record, time) in enumerate(zip(found, times, strict=True))
    ]
