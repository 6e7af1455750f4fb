"""A fragment's records, taken in two goes: some before it is cut, the rest at the cut."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uploader.fragments.fragment import verify_fragment
from uploader.fragments.fragment_builder import (
    FragmentFile,
)
from uploader.fragments.fragment_file import fragment_timestamp
from uploader.write.pending_fragment import Encoding
from walstore.core.batches.append_request import make_group
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.runtime.threads import Worker
from walstore.records import NO_HEADERS, Record

START = 100
NOW_US = 1_000_000
FLOOR_US = 500_000
TIME_US = 1_234_567_890_123_456


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Two threads: what keeps its order does not owe it to them."""
    worker = Worker("test", threads=2)
    yield worker
    worker.close()


@pytest.fixture
def encoding(worker: Worker) -> Encoding:
    return make_encoding(worker)


def make_encoding(worker: Worker, *, floor_us: int = FLOOR_US) -> Encoding:
    return Encoding(start=START, timestamp_us=TIME_US, floor_us=floor_us, writer="w", worker=worker)


def add(
    builder: BatchBuilder, *values: bytes, key=None, stream=None, headers=None, time_us=None
) -> None:
    builder.extend(make_group(values, key, stream, headers, time_us))


def drawn(encoding: Encoding, builder: BatchBuilder, now_us: int = NOW_US) -> list[Record]:
    """Take what is new and return it as readers see it."""
    return [record for batch in encoding.take(builder, now_us)() for record in batch.records()]


def times(records: Sequence[Record]) -> list[int]:
    return [record.timestamp_us for record in records]


def test_offsets_go_on(encoding: Encoding) -> None:
    """They are those of the place in the log, whatever the draft counts from."""
    builder = BatchBuilder(7)
    add(builder, b"a", b"b")
    first = drawn(encoding, builder)
    add(builder, b"c")
    add(builder, b"d")
    second = drawn(encoding, builder)
    assert [(r.offset, r.value) for r in first] == [(100, b"a"), (101, b"b")]
    assert [(r.offset, r.value) for r in second] == [(102, b"c"), (103, b"d")]


def test_any_number_of_goes(encoding: Encoding) -> None:
    builder = BatchBuilder(1)
    found: list[Record] = []
    for count in (2, 1, 0, 3, 1):
        builder.values += [b"x"] * count
        found += drawn(encoding, builder)
    assert [record.offset for record in found] == list(range(100, 107))


def test_what_was_taken_is_not_changed_by_what_comes(encoding: Encoding) -> None:
    """It is encoded on a thread, while the draft goes on growing."""
    builder = BatchBuilder(1)
    add(builder, b"a", key=b"k", time_us=NOW_US + 1)
    taken = encoding.take(builder, NOW_US)
    add(builder, b"b", key=b"l", stream="s", time_us=NOW_US + 2)
    (batch,) = taken()
    assert batch.records() == [Record(100, b"a", b"k", timestamp_us=NOW_US + 1)]


def test_records_without_a_time_are_of_the_moment_they_were_taken(encoding: Encoding) -> None:
    builder = BatchBuilder(1)
    add(builder, b"a", b"b")
    assert times(drawn(encoding, builder, NOW_US)) == [NOW_US] * 2
    assert encoding.latest_us == NOW_US
    add(builder, b"c")
    assert times(drawn(encoding, builder, NOW_US + 9)) == [NOW_US + 9]
    assert encoding.latest_us == NOW_US + 9


def test_times_are_held_at_the_floor(encoding: Encoding) -> None:
    builder = BatchBuilder(1)
    add(builder, b"a")
    add(builder, b"b", time_us=7)
    assert times(drawn(encoding, builder, 5)) == [FLOOR_US] * 2
    assert encoding.latest_us == FLOOR_US
    assert encoding.floor_us == FLOOR_US


def test_a_clock_that_goes_back_is_held_at_the_part_before(encoding: Encoding) -> None:
    builder = BatchBuilder(1)
    add(builder, b"a")
    drawn(encoding, builder, NOW_US)
    add(builder, b"b")
    assert times(drawn(encoding, builder, NOW_US - 50)) == [NOW_US]
    assert encoding.latest_us == NOW_US


def test_callers_times_are_kept(encoding: Encoding) -> None:
    """Unless they are below one before, also below the last one of the part before."""
    builder = BatchBuilder(1)
    add(builder, b"a", time_us=FLOOR_US + 1)
    add(builder, b"b", time_us=NOW_US + 10)
    assert times(drawn(encoding, builder)) == [FLOOR_US + 1, NOW_US + 10]
    add(builder, b"c", time_us=NOW_US + 5)
    add(builder, b"d")
    add(builder, b"e", time_us=NOW_US + 20)
    assert times(drawn(encoding, builder)) == [NOW_US + 10, NOW_US + 10, NOW_US + 20]
    assert encoding.latest_us == NOW_US + 20


def test_optional_columns_that_appear_in_the_second_part_only(encoding: Encoding) -> None:
    builder = BatchBuilder(1)
    add(builder, b"a")
    assert drawn(encoding, builder) == [Record(100, b"a", timestamp_us=NOW_US)]
    add(builder, b"b")
    add(builder, b"c", key=b"", stream="s", headers={"h": b"1", "i": b""}, time_us=NOW_US + 1)
    assert drawn(encoding, builder) == [
        Record(101, b"b", timestamp_us=NOW_US),
        Record(102, b"c", b"", "s", {"h": b"1", "i": b""}, NOW_US + 1),
    ]


def test_optional_columns_that_end_with_the_first_part(encoding: Encoding) -> None:
    """Plain values are added without padding the columns there are."""
    builder = BatchBuilder(1)
    add(builder, b"a", key=b"k", stream="s", headers={"h": b"1"}, time_us=NOW_US)
    builder.values.append(b"b")
    assert drawn(encoding, builder) == [
        Record(100, b"a", b"k", "s", {"h": b"1"}, NOW_US),
        Record(101, b"b", timestamp_us=NOW_US),
    ]
    builder.values.append(b"c")
    assert drawn(encoding, builder) == [Record(102, b"c", timestamp_us=NOW_US)]


def test_nothing_new_is_an_empty_second_part(encoding: Encoding) -> None:
    builder = BatchBuilder(1)
    assert list(encoding.take(builder, NOW_US)()) == []
    assert encoding.latest_us == FLOOR_US
    add(builder, b"a")
    drawn(encoding, builder)
    assert list(encoding.take(builder, NOW_US + 1)()) == []
    assert encoding.latest_us == NOW_US


STEPS = st.lists(
    st.tuples(
        st.lists(st.binary(max_size=5), min_size=1, max_size=3),
        st.none() | st.binary(max_size=3),
        st.none() | st.text("abc", min_size=1, max_size=3),
        st.none() | st.dictionaries(st.text("ab", max_size=2), st.binary(max_size=2), max_size=2),
        st.none() | st.integers(0, 2 * NOW_US),
    ),
    max_size=6,
)


@settings(max_examples=25)
@given(STEPS, STEPS, st.integers(0, 2 * NOW_US), st.integers(0, 2 * NOW_US))
def test_any_records_in_two_goes(first, second, floor_us: int, later_us: int) -> None:
    worker = Worker("test")
    encoding, builder = make_encoding(worker, floor_us=floor_us), BatchBuilder(1)
    expected, found, latest_us = [], [], floor_us
    for steps, now_us in ((first, NOW_US), (second, later_us)):
        for values, key, stream, headers, asked in steps:
            builder.extend(make_group(values, key, stream, headers, asked))
            latest_us = max(latest_us, now_us if asked is None else asked)
            for value in values:
                at = START + len(expected)
                expected.append(Record(at, value, key, stream, headers or NO_HEADERS, latest_us))
        found += drawn(encoding, builder, now_us)
        assert encoding.latest_us == latest_us
    worker.close()
    assert found == expected
    assert all(low <= high for low, high in pairwise([floor_us, *times(found)]))


# -- built -------------------------------------------------------------------------------------


async def records_in(file: FragmentFile, encoding: Encoding) -> list[Record]:
    fragment = file.summed(await encoding.building.sum())
    checked = await asyncio.to_thread(verify_fragment, fragment.data, fragment.entry(1))
    assert await asyncio.to_thread(fragment_timestamp, fragment.data) == TIME_US
    return checked.records()


async def test_both_parts_are_in_the_fragment(encoding: Encoding) -> None:
    builder = BatchBuilder(1)
    add(builder, b"a", b"b", stream="s")
    await encoding.building.add(encoding.take(builder, NOW_US))
    add(builder, b"c", key=b"k")
    file = await encoding.building.write(encoding.take(builder, NOW_US + 1))
    assert (file.start, file.limit) == (100, 103)
    assert await records_in(file, encoding) == [
        Record(100, b"a", None, "s", timestamp_us=NOW_US),
        Record(101, b"b", None, "s", timestamp_us=NOW_US),
        Record(102, b"c", b"k", timestamp_us=NOW_US + 1),
    ]


async def test_a_fragment_of_which_all_was_taken_early(encoding: Encoding) -> None:
    builder = BatchBuilder(1)
    add(builder, b"a")
    await encoding.building.add(encoding.take(builder, NOW_US))
    file = await encoding.building.write(encoding.take(builder, NOW_US + 1))
    assert (file.start, file.limit) == (100, 101)
    assert await records_in(file, encoding) == [Record(100, b"a", timestamp_us=NOW_US)]
