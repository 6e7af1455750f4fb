"""Batches give back the records that were framed, whole and in slices."""

from __future__ import annotations

import ctypes
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import batch_of, build, columns_of, record_lists, values_only
from walstore.core.batches.cost import BATCH_RECORDS
from walstore.core.batches.derived import ConcatBatch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.format import frame
from walstore.core.format.frame import Column, ColumnKind
from walstore.errors import CorruptionError
from walstore.records import NO_HEADERS, Record

MIXED = [
    Record(10, b"one", b"k1", "eu", {"h": b"1"}, 100),
    Record(11, b"", None, None, NO_HEADERS, 100),
    Record(12, b"three", b"", "us", NO_HEADERS, 105),
    Record(13, b"four", b"k4", "eu", {"h": b"2", "i": b""}, 1 << 40),
]


@pytest.mark.slow
@given(record_lists())
def test_records_go_round(records: list[Record]) -> None:
    batch = batch_of(build(records))
    assert batch.records() == records
    assert list(batch) == records
    assert (batch.start, batch.limit, len(batch)) == (
        records[0].offset,
        records[-1].offset + 1,
        len(records),
    )
    assert list(batch.values) == [record.value for record in records]
    assert list(batch.keys) == [record.key for record in records]
    assert list(batch.streams) == [record.stream for record in records]
    assert list(batch.headers) == [record.headers for record in records]
    assert list(batch.timestamps_us) == [record.timestamp_us for record in records]


@given(record_lists(), st.data())
def test_slices_hold_their_part(records: list[Record], data: st.DataObject) -> None:
    batch = batch_of(build(records))
    start = data.draw(st.integers(batch.start, batch.limit))
    limit = data.draw(st.integers(start, batch.limit))
    part = batch.slice(start, limit)
    expected = records[start - batch.start : limit - batch.start]
    assert (part.start, part.limit, part.records()) == (start, limit, expected)
    inner = data.draw(st.integers(start, limit))
    assert part.slice(inner, limit).records() == expected[inner - start :]
    assert batch.records() == records


@given(record_lists(), st.integers(0, 100))
def test_the_first_records_of_so_many_bytes(records: list[Record], most_bytes: int) -> None:
    whole = batch_of(build(records))
    cut = whole.start + 1
    parts = [whole.slice(whole.start, cut), whole.slice(cut, whole.limit)]
    for batch in (whole, ConcatBatch(parts)):
        found = batch.first(most_bytes).records()
        assert found == records[: len(found)]
        assert len(found) == 1 or sum(map(_bytes_of, found)) <= most_bytes


def test_the_first_records_are_as_many_as_fit() -> None:
    batch = batch_of(build(values_only(*[b"x" * 10] * 8))).slice(2, 9)
    sizes = [len(batch.first(most)) for most in (0, 9, 10, 19, 20, 69, 70, 1000)]
    assert sizes == [1, 1, 1, 1, 2, 6, 7, 7]


def _bytes_of(record: Record) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers.items())
    return len(record.value) + len(record.key or b"") + len(record.stream or "") + headers


def test_some_of_a_frame_of_many_bytes_is_unpacked_without_the_rest() -> None:
    batch = batch_of(build([Record(at, bytes([at]) * (1 << 20)) for at in range(1, 11)]))
    part = batch.slice(4, 6)
    assert list(part.values) == [b"\4" * (1 << 20), b"\5" * (1 << 20)]
    assert not batch.has_decoded_values


@pytest.mark.slow
@given(record_lists(), st.data())
def test_arrow_holds_the_same(records: list[Record], data: st.DataObject) -> None:
    batch = batch_of(build(records))
    start = data.draw(st.integers(batch.start, batch.limit))
    part = batch.slice(start, batch.limit)
    arrow = part.to_arrow()
    assert arrow.validate(full=True) is None
    assert arrow.to_pylist() == [
        {
            "offset": record.offset,
            "timestamp_us": record.timestamp_us,
            "value": record.value,
            "key": record.key,
            "stream": record.stream,
            "headers": list(record.headers.items()) or None,
        }
        for record in part
    ]


def test_arrow_shares_the_bytes_of_the_values() -> None:
    data = bytearray(build(values_only(b"a" * 1000, b"b" * 1000, start=1)))
    arrow = batch_of(data).to_arrow()
    low = ctypes.addressof(ctypes.c_char.from_buffer(data))
    assert low < arrow.column("value").buffers()[2].address < low + len(data)


def test_values_of_equal_length_need_one_length() -> None:
    records = values_only(*(b"%04d" % number for number in range(500)))
    data = build(records)
    assert len(data) == 80 + 2 * 8 + 4 + 2000 + 4 + 8
    assert batch_of(data).records() == records


@pytest.mark.parametrize("count", [1, 3])
def test_empty_values(count: int) -> None:
    records = values_only(*[b""] * count)
    assert batch_of(build(records)).records() == records


def test_optional_columns_cost_nothing_when_absent() -> None:
    batch = batch_of(build(values_only(b"a", b"bc", start=7, timestamp_us=9)))
    assert batch.header.column_count == 2
    assert (list(batch.keys), list(batch.streams), list(batch.timestamps_us)) == (
        [None, None],
        [None, None],
        [9, 9],
    )
    assert list(batch.headers) == [{}, {}]
    assert not any(
        batch.has(kind) for kind in set(ColumnKind) - {ColumnKind.VALUES, ColumnKind.VALUE_LENGTHS}
    )


def test_iterating_makes_records_of_the_public_type_one_by_one() -> None:
    batch = batch_of(build(MIXED))
    one, other = iter(batch), iter(batch)
    assert next(one) == next(other) == MIXED[0]
    assert [*one] == MIXED[1:]
    assert next(one, None) is None
    again = next(other)
    assert type(again) is Record
    assert (again, again.stream, again._replace(key=b"k").key) == (MIXED[1], None, b"k")
    assert pickle.loads(pickle.dumps(again)) == again
    assert list(batch) == batch.records() == MIXED


def test_columns_are_decoded_before_the_first_record_is_taken() -> None:
    """So a damaged batch delivers nothing, instead of a part."""
    records = [Record(1, b"v", stream="a"), Record(2, b"w", stream="b")]
    columns = [
        column
        if column.kind != ColumnKind.STREAM_IDS
        else Column(column.kind, 1, (b"\x01\x09",), 2)
        for column in columns_of(records)
    ]
    data, _ = frame.encode(
        columns,
        start=1,
        count=2,
        base_timestamp_us=0,
        max_timestamp_us=0,
        epoch=1,
        previous_crc=0,
        synced_limit=1,
    )
    with pytest.raises(CorruptionError, match="a stream that has no name"):
        iter(batch_of(data))


def test_records_of_a_frame_with_two_columns_have_only_values() -> None:
    """The columns that a frame lacks are not asked for one by one."""
    records = values_only(b"a", b"bc", b"d", start=7, timestamp_us=9)
    batch = batch_of(build(records))
    assert batch.header.column_count == 2
    assert (list(batch), batch.slice(8, 9).records()) == (records, records[1:2])
    assert all(record.headers is NO_HEADERS for record in batch)
    timed = [Record(1, b"a", timestamp_us=5), Record(2, b"b", timestamp_us=6)]
    assert batch_of(build(timed)).header.column_count == 3
    assert list(batch_of(build(timed))) == timed


def test_a_slice_shares_the_frame_and_the_decoded_values() -> None:
    batch = batch_of(build(MIXED))
    part = batch.slice(11, 13)
    assert part.values[1] is batch.values[2]
    assert part.nbytes == batch.nbytes == batch.header.length
    assert part.rows() == (1, 3)
    assert batch.slice(10, 14) is batch
    assert len(batch.slice(12, 12)) == 0
    assert batch.slice(12, 12).records() == []


def test_a_view_keeps_what_it_decodes_to_itself() -> None:
    batch = batch_of(build(MIXED))
    view = batch.view(11, 14)
    assert (view.start, view.limit, view.records()) == (11, 14, MIXED[1:])
    assert view.slice(12, 13).values[0] is view.values[1]
    assert not batch.has_decoded_values
    assert batch.view(10, 14) is not batch
    with pytest.raises(ValueError, match="not inside"):
        batch.view(9, 14)


def test_the_size_counts_what_compressed_columns_take_in_memory() -> None:
    pytest.importorskip("zstandard")
    records = values_only(*[bytes(1000)] * 20)
    data, _ = frame.encode(
        columns_of(records),
        start=1,
        count=20,
        base_timestamp_us=0,
        max_timestamp_us=0,
        epoch=1,
        previous_crc=0,
        synced_limit=1,
        compress=True,
    )
    batch = batch_of(bytes(data))
    assert batch.records() == records
    assert len(data) < 1000
    assert batch.nbytes == len(data) + batch.header.body_bytes > 20_000


@pytest.mark.parametrize(("start", "limit"), [(9, 12), (11, 15), (13, 12), (15, 15)])
def test_a_slice_outside_is_refused(start: int, limit: int) -> None:
    with pytest.raises(ValueError, match=r"not inside \[10, 14\)"):
        batch_of(build(MIXED)).slice(start, limit)


def test_streams_can_be_ruled_out_without_decoding() -> None:
    batch = batch_of(build(MIXED))
    assert batch.may_hold_stream("eu")
    assert batch.slice(11, 12).may_hold_stream("eu"), "a slice may say yes for the whole frame"
    assert not batch.may_hold_stream("asia")
    assert not batch_of(build(values_only(b"a"))).may_hold_stream("eu")


def test_a_batch_shows_its_bounds() -> None:
    assert repr(batch_of(build(MIXED))) == "<FrameBatch [10, 14)>"


def test_a_frame_without_records_is_an_empty_batch() -> None:
    data, _ = frame.encode(
        [],
        start=5,
        count=0,
        base_timestamp_us=0,
        max_timestamp_us=0,
        epoch=1,
        previous_crc=0,
        synced_limit=5,
    )
    batch = batch_of(bytes(data))
    assert (batch.start, batch.limit, batch.records()) == (5, 5, [])


def test_a_frame_of_a_newer_version_is_refused() -> None:
    future = Column(100, frame.BLOB, (b"?",), 1)
    data = build(MIXED, extra=[future])
    header = frame.parse_header(memoryview(data), 0)
    assert header is not None
    with pytest.raises(ValueError, match="column kind 100"):
        FrameBatch(memoryview(data), header)


@pytest.mark.slow
@pytest.mark.parametrize("is_even", [True, False])
def test_any_part_of_a_large_frame_is_what_the_whole_says(is_even: bool) -> None:
    """Parts are decoded on their own, wherever they begin, without what lies around them."""
    count = 2 * BATCH_RECORDS + 3000
    records = [
        Record(
            5 + row,
            b"%07d" % row if is_even else b"x" * (row % 5),
            None if row % 3 == 0 else b"k" * (row % 4),
            None if row % 7 == 0 else f"s{row % 2}",
            {"h": b"%d" % row} if row % 11 == 0 else {},
            1000 + row // 2,
        )
        for row in range(count)
    ]
    data = build(records)
    edges = (0, 1, 500, BATCH_RECORDS - 1, BATCH_RECORDS, 2 * BATCH_RECORDS + 7, count - 1, count)
    batch = batch_of(data)
    for low in reversed(edges):
        for high in (low, low + 1, low + 700, count):
            if high <= count:
                part = batch.slice(5 + low, 5 + high)
                if high - low < 1000:
                    assert part.records() == records[low:high]
                    assert not part.has_decoded_values
    rest = batch_of(data)
    found: list[Record] = []
    while len(rest):
        cut = min(rest.start + 4096, rest.limit)
        found += rest.slice(rest.start, cut).records()
        rest = rest.slice(cut, rest.limit)
    assert found == records == batch.records()
    assert batch.slice(8, 10).values[0] is batch.values[3], "what is decoded is shared"
