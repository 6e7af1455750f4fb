"""A selection shows the chosen records of a batch, whatever the batch is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import batch_of, build, record_lists, values_only
from walstore.core.batches.batch import Batch, SelectedBatch
from walstore.core.batches.derived import ConcatBatch, EmptyBatch, covering, spanning
from walstore.core.batches.frame_batch import FrameBatch, FrameSelection
from walstore.records import NO_HEADERS, Record

MIXED = [
    Record(10, b"one", b"k1", "eu", {"h": b"1"}, 100),
    Record(11, b"", None, None, NO_HEADERS, 100),
    Record(12, b"three", b"", "us", NO_HEADERS, 105),
    Record(13, b"four", b"k4", "eu", {"h": b"2", "i": b""}, 1 << 40),
    Record(14, b"five", None, "eu", NO_HEADERS, 1 << 40),
]
NAMES = st.sampled_from(["a", "b", "c"])


@st.composite
def lists_of_streams(draw: st.DrawFn) -> list[Record]:
    """Consecutive records with every mixture of columns, in few streams or none."""
    return [record._replace(stream=draw(st.none() | NAMES)) for record in draw(record_lists())]


def of_stream(records: list[Record], name: str) -> list[Record]:
    return [record for record in records if record.stream == name]


def check(batch: Batch, records: list[Record], start: int, limit: int) -> None:
    """Assert that a batch shows exactly these records, in every way it can."""
    assert (batch.start, batch.limit, len(batch)) == (start, limit, len(records))
    assert batch.records() == list(batch) == records
    assert list(batch.offsets) == [record.offset for record in records]
    assert list(batch.values) == [record.value for record in records]
    assert list(batch.keys) == [record.key for record in records]
    assert list(batch.streams) == [record.stream for record in records]
    assert list(batch.headers) == [record.headers for record in records]
    assert list(batch.timestamps_us) == [record.timestamp_us for record in records]
    arrow = batch.to_arrow()
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
        for record in records
    ]


def other_kinds(records: list[Record], data: st.DataObject) -> Batch:
    """The same records, as one batch or as several."""
    whole = batch_of(build(records))
    cut = data.draw(st.integers(whole.start, whole.limit))
    if cut in (whole.start, whole.limit):
        return whole
    return ConcatBatch([whole.slice(whole.start, cut), whole.slice(cut, whole.limit)])


@pytest.mark.slow
@given(lists_of_streams(), NAMES, st.data())
def test_the_records_of_a_stream(records: list[Record], name: str, data: st.DataObject) -> None:
    batch = other_kinds(records, data)
    start = data.draw(st.integers(batch.start, batch.limit))
    limit = data.draw(st.integers(start, batch.limit))
    part = batch.slice(start, limit)
    if data.draw(st.booleans()):
        assert part.values is not None  # decoded before
    kept = [record for record in of_stream(records, name) if start <= record.offset < limit]
    check(part.select_stream(name), kept, start, limit)
    assert not kept or part.may_hold_stream(name)


@pytest.mark.slow
@given(lists_of_streams(), NAMES, st.data())
def test_slices_of_a_selection(records: list[Record], name: str, data: st.DataObject) -> None:
    batch = other_kinds(records, data).select_stream(name)
    for _ in range(3):
        start = data.draw(st.integers(batch.start, batch.limit))
        limit = data.draw(st.integers(start, batch.limit))
        batch = batch.slice(start, limit)
        kept = [record for record in of_stream(records, name) if start <= record.offset < limit]
        check(batch, kept, start, limit)


@pytest.mark.slow
@given(lists_of_streams(), st.data())
def test_a_selection_of_a_selection(records: list[Record], data: st.DataObject) -> None:
    batch = batch_of(build(records))
    rows = sorted(data.draw(st.sets(st.integers(0, len(records) - 1))))
    chosen = SelectedBatch(batch, rows, batch.start, batch.limit)
    check(chosen, [records[row] for row in rows], batch.start, batch.limit)
    for name in "abc":
        kept = of_stream([records[row] for row in rows], name)
        check(chosen.select_stream(name), kept, batch.start, batch.limit)


@pytest.mark.slow
@given(lists_of_streams(), NAMES, st.integers(0, 5), st.integers(0, 5))
def test_an_interval_may_reach_further(
    records: list[Record], name: str, before: int, behind: int
) -> None:
    batch = batch_of(build(records))
    start, limit = batch.start - before, batch.limit + behind
    check(spanning(batch, start, limit), records, start, limit)
    selected = batch.select_stream(name)
    kept = of_stream(records, name)
    check(spanning(selected, start, limit), kept, start, limit)
    part = spanning(selected, start, limit).slice(start + before, limit)
    check(part, kept, start + before, limit)


@pytest.mark.slow
@given(st.lists(lists_of_streams(), min_size=1, max_size=4), NAMES)
def test_what_is_kept_of_batches_covers_what_was_looked_at(lists, name: str) -> None:
    batches: list[Batch] = []
    records: list[Record] = []
    position = 5
    for some in lists:
        numbered = [record._replace(offset=position + at) for at, record in enumerate(some)]
        batches.append(batch_of(build(numbered)))
        records += numbered
        position += len(numbered)
    parts = [batch.select_stream(name) for batch in batches]
    kept = covering([part for part in parts if len(part)], 5, position)
    if not of_stream(records, name):
        assert kept == []
        return
    assert kept[0].start == 5
    assert [batch.limit for batch in kept] == [*(batch.start for batch in kept[1:]), position]
    assert all(len(batch) for batch in kept)
    check(ConcatBatch(kept), of_stream(records, name), 5, position)


def test_a_batch_of_one_stream_is_left_as_it_is() -> None:
    records = [record._replace(stream="eu") for record in MIXED]
    batch = batch_of(build(records))
    assert batch.select_stream("eu") is batch
    assert covering([batch], 10, 15) == [batch]
    mixed = batch_of(build(MIXED))
    assert type(mixed.slice(13, 15).select_stream("eu")) is FrameBatch


def test_a_selection_shows_its_bounds_and_refuses_others() -> None:
    part = batch_of(build(MIXED)).select_stream("eu")
    assert repr(part) == "<FrameSelection [10, 15)>"
    assert part.slice(10, 15) is part
    assert part.nbytes == batch_of(build(MIXED)).nbytes
    with pytest.raises(ValueError, match=r"not inside \[10, 15\)"):
        part.slice(9, 12)


def test_offsets_that_follow_each_other_are_a_range() -> None:
    batch = batch_of(build(MIXED))
    assert batch.offsets == range(10, 15)
    assert batch.slice(11, 13).offsets == range(11, 13)
    assert batch.select_stream("eu").offsets == [10, 13, 14]
    assert ConcatBatch([batch.slice(10, 12), batch.slice(12, 15)]).offsets == range(10, 15)
    assert EmptyBatch(7, 12).offsets == range(0)


def test_only_selected_values_are_decoded() -> None:
    batch = batch_of(build(MIXED))
    part = batch.select_stream("eu")
    assert list(part.values) == [b"one", b"four", b"five"]
    assert part.values is part.values
    assert not batch.has_decoded_values
    values = batch.values
    again = batch.select_stream("eu")
    assert again.values[1] is values[3], "what is decoded already is shared"


def test_no_value_is_read_to_rule_a_stream_out() -> None:
    batch = batch_of(build(MIXED))
    view = batch.view(11, 13)
    assert not view.may_hold_stream("asia")
    assert view.stream_names is batch.stream_names, "unpacked once for all views"
    assert not view.has_decoded_values
    assert view.stream_names == {"eu": 1, "us": 2}
    assert batch_of(build(values_only(b"a"))).stream_names == {}


def test_an_empty_batch_may_cover_an_interval() -> None:
    empty = EmptyBatch(7, 12)
    check(empty, [], 7, 12)
    check(empty.slice(8, 9), [], 8, 9)
    check(spanning(empty, 3, 20), [], 3, 20)
    check(empty.select_stream("a"), [], 7, 12)
    assert not empty.may_hold_stream("a")
    check(EmptyBatch(7), [], 7, 7)


def test_selections_are_generic() -> None:
    """Batches of other kinds are selected from by their columns."""
    whole = ConcatBatch([batch_of(build(MIXED[:2])), batch_of(build(MIXED[2:]))])
    part = Batch.select_stream(whole, "eu")
    assert type(part) is SelectedBatch
    check(part, of_stream(MIXED, "eu"), 10, 15)
    assert type(batch_of(build(MIXED)).select_stream("us")) is FrameSelection


def test_records_of_many_rows_keep_their_times_and_headers() -> None:
    records = [
        Record(1 + at, b"%d" % at, b"k" * (at % 3), f"s{at % 300}", {}, 1000 + at)
        for at in range(3000)
    ]
    batch = batch_of(build(records))
    for name in ("s0", "s7", "s299"):
        check(batch.select_stream(name), of_stream(records, name), 1, 3001)
