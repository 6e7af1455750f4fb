"""BatchBuilder: groups and plain values become the columns of one frame, and come back the same."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from walstore import Record
from walstore.core.batches.append_request import make_group
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.format import frame
from walstore.core.format.ledger import Marks
from walstore.records import NO_HEADERS

NOW_US = 1_000_000


def encode(draft: BatchBuilder, *, now_us: int = NOW_US, floor_us: int = 0) -> FrameBatch:
    draft.pad()
    base_us, last_us, deltas = draft.times(now_us, floor_us)
    data, _ = frame.encode(
        draft.columns(deltas),
        start=draft.start,
        count=len(draft.values),
        base_timestamp_us=base_us,
        max_timestamp_us=last_us,
        epoch=1,
        previous_crc=0,
        synced_limit=draft.start,
    )
    view = memoryview(data)
    header = frame.parse_header(view, 0)
    assert header is not None
    assert frame.is_whole(view, header)
    return FrameBatch(view, header)


def test_plain_values_need_two_columns() -> None:
    draft = BatchBuilder(3, [b"a", b"", b"bcd"])
    batch = encode(draft)
    assert batch.header.column_count == 2
    assert (batch.start, batch.limit, draft.limit) == (3, 6, 6)
    assert list(batch.values) == [b"a", b"", b"bcd"]
    assert list(batch.timestamps_us) == [NOW_US] * 3


def test_a_draft_of_empty_values() -> None:
    batch = encode(BatchBuilder(1, [b""] * 5))
    assert list(batch.values) == [b""] * 5


def test_empty_keys_and_no_keys_are_told_apart() -> None:
    draft = BatchBuilder(1)
    draft.extend(make_group([b"1"], b"", None, None, None))
    draft.extend(make_group([b"2"], None, None, None, None))
    assert list(encode(draft).keys) == [b"", None]


def test_timestamps_never_go_back_whatever_callers_ask_for() -> None:
    draft = BatchBuilder(1)
    for asked in (None, 50, NOW_US + 7, 60, None):
        draft.extend(make_group([b""], None, None, None, asked))
    batch = encode(draft, floor_us=100)
    assert list(batch.timestamps_us) == [NOW_US, NOW_US, NOW_US + 7, NOW_US + 7, NOW_US + 7]
    assert batch.header.max_timestamp_us == NOW_US + 7


def test_a_clock_that_went_back_is_held_at_the_last_record() -> None:
    batch = encode(BatchBuilder(1, [b""]), now_us=5, floor_us=NOW_US)
    assert list(batch.timestamps_us) == [NOW_US]


def test_times_that_are_all_alike_take_no_column() -> None:
    draft = BatchBuilder(1)
    draft.extend(make_group([b"a", b"b"], None, None, None, 7))
    base_us, last_us, deltas = draft.times(NOW_US, 0)
    assert (base_us, last_us, deltas) == (7, 7, None)


# -- parts -------------------------------------------------------------------------------------


def filled() -> BatchBuilder:
    """Return four records: plain, with everything, with a key, plain and not padded."""
    draft = BatchBuilder(10, [b"a"])
    draft.extend(make_group([b"b"], b"k", "s", {"h": b"1"}, 7))
    draft.extend(make_group([b"c"], b"l", None, None, None))
    draft.values.append(b"d")
    return draft


def test_a_part_is_padded() -> None:
    """Also where the draft it is taken from is not."""
    part = filled().part(1, 4)
    assert (part.start, part.limit) == (11, 14)
    assert part.values == [b"b", b"c", b"d"]
    assert part.keys == [b"k", b"l", None]
    assert part.streams == ["s", None, None]
    assert part.timestamps_us == [7, None, None]
    assert part.headers == [b"\x81\xa1h\xc4\x011", None, None]


def test_a_part_behind_all_that_a_column_has() -> None:
    part = filled().part(3, 4)
    assert (part.start, part.values, part.keys, part.streams) == (13, [b"d"], [None], [None])


def test_a_part_has_no_columns_that_the_draft_has_not() -> None:
    part = BatchBuilder(1, [b"a", b"b"]).part(1, 2)
    assert part == BatchBuilder(2, [b"b"])
    assert part.only_value == b"b"


def test_parts_may_be_empty() -> None:
    for at in range(5):
        part = filled().part(at, at)
        assert part.is_empty
        assert part.start == part.limit == 10 + at
        assert part.keys == []


def test_a_part_is_a_draft_of_its_own() -> None:
    draft = filled()
    part = draft.part(0, 4)
    assert draft.keys == [None, b"k", b"l"]  # not padded
    part.extend(make_group([b"x"], b"x", "x", {"x": b""}, 1))
    assert draft == filled()
    draft.extend(make_group([b"y"], b"y", "y", {"y": b""}, 2))
    assert part.values == [b"a", b"b", b"c", b"d", b"x"]
    assert part.keys == [None, b"k", b"l", None, b"x"]
    assert part.timestamps_us == [None, 7, None, None, 1]


def test_of_what_else_a_draft_has_a_part_takes_nothing_over() -> None:
    draft = filled()
    draft.size_bytes, draft.serial, draft.accepted_at, draft.marks = 99, 3, 4.5, Marks()
    part = draft.part(0, 1)
    assert (part.size_bytes, part.serial, part.accepted_at, part.marks) == (0, 0, None, None)


PLAIN = st.tuples(st.just("plain"), st.binary(max_size=5))
GROUPS = st.tuples(
    st.just("group"),
    st.lists(st.binary(max_size=5), min_size=1, max_size=3),
    st.none() | st.binary(max_size=3),
    st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=3),
    st.none() | st.dictionaries(st.text("ab", max_size=2), st.binary(max_size=2), max_size=2),
    st.none() | st.integers(0, 2 * NOW_US),
)


@given(st.lists(PLAIN | GROUPS, min_size=1, max_size=12), st.integers(0, NOW_US * 2))
def test_any_mixture_comes_back_as_it_went_in(steps, floor_us) -> None:
    draft = BatchBuilder(10)
    expected: list[Record] = []
    latest_us = floor_us
    for step in steps:
        if step[0] == "plain":
            draft.values.append(step[1])
            rows, key, stream, headers, asked = [step[1]], None, None, None, None
        else:
            _, rows, key, stream, headers, asked = step
            draft.extend(make_group(rows, key, stream, headers, asked))
        latest_us = max(latest_us, NOW_US if asked is None else asked)
        for value in rows:
            offset = 10 + len(expected)
            expected.append(Record(offset, value, key, stream, headers or NO_HEADERS, latest_us))
    found = encode(draft, floor_us=floor_us).records()
    assert [r._replace(headers=dict(r.headers)) for r in found] == [
        r._replace(headers=dict(r.headers)) for r in expected
    ]


@settings(max_examples=25)
@given(st.lists(PLAIN | GROUPS, min_size=1, max_size=8), st.data())
def test_parts_together_are_the_whole(steps, data) -> None:
    draft = BatchBuilder(10)
    for step in steps:
        if step[0] == "plain":
            draft.values.append(step[1])
        else:
            draft.extend(make_group(*step[1:]))
    rows = len(draft.values)
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=3)))
    found: list[Record] = []
    floor_us = 0
    for low, high in pairwise([0, *cuts, rows]):
        if low < high:
            batch = encode(draft.part(low, high), floor_us=floor_us)
            found += batch.records()
            floor_us = batch.header.max_timestamp_us
    assert found == encode(draft).records()
