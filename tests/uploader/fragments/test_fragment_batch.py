"""FragmentBatch: the same view of records as a local batch gives."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import batch_of, build, record_lists, values_only
from uploader.fragments.fragment_batch import FragmentBatch
from walstore.batches.arrow import SCHEMA
from walstore.records import NO_HEADERS, Record


def fragment_batch(records: list[Record], *cuts: int) -> FragmentBatch:
    """Return the records as they come from a fragment whose row groups end at these rows."""
    whole = batch_of(build(records)).to_arrow()
    bounds = [0, *cuts, len(records)]
    pieces = [whole.slice(low, high - low) for low, high in pairwise(bounds)]
    return FragmentBatch(pa.Table.from_batches(pieces, SCHEMA), start=records[0].offset)


@given(record_lists(), st.data())
def test_it_shows_what_a_local_batch_shows(records: list[Record], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=3)))
    local, found = batch_of(build(records)), fragment_batch(records, *cuts)
    assert (found.start, found.limit, len(found)) == (local.start, local.limit, len(local))
    assert list(found) == found.records() == records
    assert list(found.values) == list(local.values)
    assert list(found.keys) == list(local.keys)
    assert list(found.streams) == list(local.streams)
    assert list(found.headers) == list(local.headers)
    assert list(found.timestamps_us) == list(local.timestamps_us)
    assert found.to_arrow().equals(local.to_arrow())
    assert found.to_arrow().schema == SCHEMA
    for name in {record.stream for record in records} - {None}:
        assert found.may_hold_stream(name)
    assert not found.may_hold_stream("no such stream")


@given(record_lists(), st.data())
def test_the_records_of_a_stream(records: list[Record], data: st.DataObject) -> None:
    streams = data.draw(st.lists(st.sampled_from(["a", "b", None]), min_size=20, max_size=20))
    records = [r._replace(stream=s) for r, s in zip(records, streams, strict=False)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=3)))
    whole = fragment_batch(records, *cuts)
    low = data.draw(st.integers(whole.start, whole.limit))
    high = data.draw(st.integers(low, whole.limit))
    kept = [r for r in records if r.stream == "a" and low <= r.offset < high]
    for found in (
        whole.slice(low, high).select_stream("a"),
        whole.select_stream("a").slice(low, high),
    ):
        assert (found.start, found.limit, len(found)) == (low, high, len(kept))
        assert found.records() == kept
        assert list(found.offsets) == [record.offset for record in kept]
        assert list(found.streams) == ["a"] * len(kept)
        expected = batch_of(build(records)).slice(low, high).select_stream("a").to_arrow()
        assert found.to_arrow().equals(expected)


def test_a_fragment_of_one_stream_is_left_as_it_is() -> None:
    whole = fragment_batch([Record(1, b"a", stream="eu"), Record(2, b"b", stream="eu")])
    assert whole.select_stream("eu") is whole


@given(record_lists(), st.data())
def test_slices_are_slices(records: list[Record], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=2)))
    whole = fragment_batch(records, *cuts)
    low = data.draw(st.integers(whole.start, whole.limit))
    high = data.draw(st.integers(low, whole.limit))
    part = whole.slice(low, high)
    assert (part.start, part.limit) == (low, high)
    assert part.records() == records[low - whole.start : high - whole.start]
    assert part.to_arrow().column("value").to_pylist() == list(part.values)
    assert sum(batch.num_rows for batch in part.to_arrow_batches()) == len(part)
    again = part.slice(high, high)
    assert (again.records(), again.start, len(again.to_arrow())) == ([], high, 0)


def test_the_whole_is_not_sliced_again() -> None:
    whole = fragment_batch(values_only(b"a", b"b"))
    assert whole.slice(1, 3) is whole
    assert repr(whole) == "<FragmentBatch [1, 3)>"


@pytest.mark.parametrize(("start", "limit"), [(4, 6), (5, 9), (7, 6), (0, 0)])
def test_a_slice_lies_inside(start: int, limit: int) -> None:
    with pytest.raises(ValueError, match="not inside"):
        fragment_batch(values_only(b"a", b"b", start=5)).slice(start, limit)


def test_missing_headers_are_the_shared_value() -> None:
    plain = fragment_batch(values_only(b"a", b"b"))
    assert all(item is NO_HEADERS for item in plain.headers)
    mixed = fragment_batch([Record(1, b"a", headers={"h": b"1"}), Record(2, b"b")])
    assert mixed.headers[0] == {"h": b"1"}
    assert mixed.headers[1] is NO_HEADERS


def test_values_are_decoded_once() -> None:
    batch = fragment_batch(values_only(b"a", b"b"))
    assert batch.values is batch.values


def addresses(array: pa.Array) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None]


def test_arrow_shares_the_bytes() -> None:
    records = values_only(b"a" * 100, b"b" * 100, b"c" * 100)
    source = batch_of(build(records)).to_arrow()
    batch = FragmentBatch(pa.Table.from_batches([source], SCHEMA), start=1)
    for found in (batch, batch.slice(2, 3)):
        assert addresses(found.to_arrow().column("value")) == addresses(source.column("value"))
    cut = FragmentBatch(
        pa.Table.from_batches([source.slice(0, 1), source.slice(1)], SCHEMA), start=1
    )
    for piece in cut.to_arrow_batches():
        assert addresses(piece.column("value")) == addresses(source.column("value"))


def test_sizes_are_of_the_part_it_covers() -> None:
    batch = fragment_batch(values_only(*[bytes(1000)] * 100))
    assert 100_000 <= batch.nbytes <= 110_000
    assert 10_000 <= batch.slice(11, 21).nbytes <= 11_000


def test_other_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        FragmentBatch(pa.table({"offset": [1]}), start=1)
