"""Framing: records of fragments give the very bytes that the log's own writer would have framed."""

from __future__ import annotations

from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from walstore.care.building.segment_writer import FramedRecords, frame_records
from walstore.core.batches.arrow import SCHEMA
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.batches.cost import BATCH_RECORDS
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.format import frame

Row = tuple[bytes, bytes | None, str | None, dict[str, bytes], int]

ROWS = st.lists(
    st.tuples(
        st.binary(max_size=300),
        st.none() | st.binary(max_size=5),
        st.none() | st.sampled_from(["eu", "us", "ø"]),
        st.dictionaries(st.sampled_from("abc"), st.binary(max_size=3), max_size=2),
        st.integers(0, 300) | st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=40,
)


def table(rows: list[Row], *, start: int = 1) -> pa.RecordBatch:
    """Return records as a fragment holds them."""
    values, keys, streams, headers, times = zip(*rows, strict=True)
    columns = [
        range(start, start + len(rows)),
        times,
        values,
        keys,
        streams,
        [list(item.items()) or None for item in headers],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def drafted(rows: list[Row], floor_us: int) -> tuple[list[tuple[int, int, bytes]], int, int]:
    """Return the columns that the log's writer makes of the rows."""
    values, keys, streams, headers, times = (list(column) for column in zip(*rows, strict=True))
    draft = BatchBuilder(
        1,
        values,
        keys if any(key is not None for key in keys) else None,
        streams if any(name is not None for name in streams) else None,
        [msgpack.packb(item) if item else None for item in headers] if any(headers) else None,
        times,
    )
    base, last, deltas = draft.times(0, floor_us)
    return plain(draft.columns(deltas)), base, last


def plain(columns: Any) -> list[tuple[int, int, bytes]]:
    for column in columns:
        assert sum(map(len, column.pieces)) == column.size_bytes
    return [(column.kind, column.encoding, b"".join(column.pieces)) for column in columns]


def framed(
    rows: list[Row], floor_us: int = 0, batch_bytes: int = 1 << 20, **options
) -> list[FramedRecords]:
    options = {"known_streams": (), **options}
    found = frame_records(table(rows), floor_us=floor_us, batch_bytes=batch_bytes, **options)
    return list(found)


@pytest.mark.slow
@given(ROWS, st.integers(0, 500))
@example([(b"", None, None, {}, 0)], 0)
@example([(b"", b"", None, {}, 7), (b"a", None, "eu", {"a": b""}, 5)], 6)
def test_as_the_writer_of_the_log_would(rows: list[Row], floor_us: int) -> None:
    (one,) = framed(rows, floor_us)
    columns, base, last = drafted(rows, floor_us)
    assert plain(one.columns) == columns
    assert (one.base_timestamp_us, one.last_timestamp_us) == (base, last)
    assert one.count == len(rows)


@pytest.mark.slow
@given(ROWS, st.integers(1, 500), st.integers(0, 39))
def test_cut_anywhere_it_is_the_same_records(rows: list[Row], batch_bytes: int, skip: int) -> None:
    """Also from a slice of an array, as row groups are."""
    rows = [*rows[-1:], *rows]
    skip = min(skip, len(rows) - 1)
    part = table(rows).slice(skip)
    found: list[FrameBatch] = []
    at = 1 + skip
    floor = 0
    for one in frame_records(part, floor_us=floor, batch_bytes=batch_bytes, known_streams=()):
        data, _ = frame.encode(
            one.columns,
            start=at,
            count=one.count,
            base_timestamp_us=one.base_timestamp_us,
            max_timestamp_us=one.last_timestamp_us,
            epoch=1,
            previous_crc=0,
            synced_limit=1,
        )
        view = memoryview(data)
        header = frame.parse_header(view, 0)
        assert header is not None
        found.append(FrameBatch(view, header))
        at += one.count
    records = [record for batch in found for record in batch]
    expected = rows[skip:]
    assert [(r.value, r.key, r.stream, dict(r.headers)) for r in records] == [
        row[:4] for row in expected
    ]
    assert [r.offset for r in records] == list(range(1 + skip, 1 + len(rows)))
    for batch in found:
        for column in ([r.value for r in batch], [r.key or b"" for r in batch]):
            assert len(batch) == 1 or sum(map(len, column)) <= batch_bytes


def test_streams_and_where_they_begin() -> None:
    rows: list[Row] = [(b"", None, name, {}, 0) for name in ("a", None, "b", "a", "c", "b")]
    (one,) = framed(rows, known_streams={"b"})
    assert list(one.streams) == ["a", "b", "c"]
    assert one.opened == {"a": 0, "c": 4}


def test_batches_are_not_too_long() -> None:
    rows: list[Row] = [(b"", None, None, {}, 0)] * (BATCH_RECORDS + 1)
    assert [one.count for one in framed(rows)] == [BATCH_RECORDS, 1]


def test_large_headers_are_bounded_too() -> None:
    rows: list[Row] = [(b"", None, None, {"h": b"%d" % n + bytes(1000)}, 0) for n in range(10)]
    assert [one.count for one in framed(rows, batch_bytes=2500)] == [2] * 5


@pytest.mark.parametrize("width", [1, 2, 4])
def test_numbers_are_as_narrow_as_they_can_be(width: int) -> None:
    size = (1 << 8 * (width - 1)) if width > 1 else 3
    if width == 4:
        size = 1 << 17
    rows: list[Row] = [(bytes(size), None, None, {}, 0), (b"", None, None, {}, 0)]
    (one,) = framed(rows)
    assert one.columns[0].encoding == width
