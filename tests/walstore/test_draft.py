"""Draft: groups and plain values become the columns of one frame, and come back the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from walstore import Record, frame
from walstore.batch import FrameBatch
from walstore.draft import Draft
from walstore.group import make_group
from walstore.records import NO_HEADERS

NOW_US = 1_000_000


def encode(draft: Draft, *, now_us: int = NOW_US, floor_us: int = 0) -> FrameBatch:
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
    draft = Draft(3, [b"a", b"", b"bcd"])
    batch = encode(draft)
    assert batch.header.column_count == 2
    assert (batch.start, batch.limit, draft.limit) == (3, 6, 6)
    assert list(batch.values) == [b"a", b"", b"bcd"]
    assert list(batch.timestamps_us) == [NOW_US] * 3


def test_a_draft_of_empty_values() -> None:
    batch = encode(Draft(1, [b""] * 5))
    assert list(batch.values) == [b""] * 5


def test_empty_keys_and_no_keys_are_told_apart() -> None:
    draft = Draft(1)
    draft.extend(make_group([b"1"], b"", None, None, None))
    draft.extend(make_group([b"2"], None, None, None, None))
    assert list(encode(draft).keys) == [b"", None]


def test_timestamps_never_go_back_whatever_callers_ask_for() -> None:
    draft = Draft(1)
    for asked in (None, 50, NOW_US + 7, 60, None):
        draft.extend(make_group([b""], None, None, None, asked))
    batch = encode(draft, floor_us=100)
    assert list(batch.timestamps_us) == [NOW_US, NOW_US, NOW_US + 7, NOW_US + 7, NOW_US + 7]
    assert batch.header.max_timestamp_us == NOW_US + 7


def test_a_clock_that_went_back_is_held_at_the_last_record() -> None:
    batch = encode(Draft(1, [b""]), now_us=5, floor_us=NOW_US)
    assert list(batch.timestamps_us) == [NOW_US]


def test_times_that_are_all_alike_take_no_column() -> None:
    draft = Draft(1)
    draft.extend(make_group([b"a", b"b"], None, None, None, 7))
    base_us, last_us, deltas = draft.times(NOW_US, 0)
    assert (base_us, last_us, deltas) == (7, 7, None)


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
    draft = Draft(10)
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
