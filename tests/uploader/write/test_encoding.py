"""A fragment's records, taken in two goes: some before it is cut, the rest at the cut.

And how it is built on the worker's threads: the order, what breaks it, and summing next to other work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frames import batch_of, build, values_only
from tests.waiting import until
from uploader.format.setsum import Setsum
from uploader.fragments.fragment import verify_fragment
from uploader.fragments.fragment_builder import (
    Building,
    EncodedFragment,
    FragmentFile,
    encode_fragment,
)
from uploader.fragments.fragment_file import fragment_timestamp
from uploader.write.pending_fragment import Encoding
from walstore.batches.append_request import make_group
from walstore.batches.batch import Batch
from walstore.batches.batch_builder import BatchBuilder
from walstore.records import NO_HEADERS, Record
from walstore.runtime.threads import Worker

START = 100
NOW_US = 1_000_000
FLOOR_US = 500_000
TIME_US = 1_234_567_890_123_456
VALUES = [b"a", b"b", b"c", b"d"]


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


# -- parts on the worker's threads -------------------------------------------------------------


@pytest.fixture
def building(worker: Worker) -> Building:
    return Building(worker, timestamp_us=TIME_US)


class Gate:
    """Records that are not there before the gate is opened."""

    def __init__(self, records: Callable[[], Sequence[Batch]]) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self._records = records

    def __call__(self) -> Sequence[Batch]:
        self.entered.set()
        assert self.opened.wait(20)
        return self._records()


def record(number: int) -> Callable[[], list[Batch]]:
    """Return the record at this offset, as a caller would give it."""
    return lambda: [batch_of(build(values_only(VALUES[number - 1], start=number)))]


def nothing() -> list[Batch]:
    return []


def failing() -> list[Batch]:
    raise OSError("no records")


async def values_of(fragment: EncodedFragment) -> list[bytes]:
    found = await asyncio.to_thread(verify_fragment, fragment.data, fragment.entry(1))
    return list(found.values)


async def test_parts_and_the_end(building: Building) -> None:
    await building.add(record(1))
    await building.add(nothing)
    await building.add(record(2))
    fragment = await building.finish(record(3))
    assert (fragment.start, fragment.limit) == (1, 4)
    assert await values_of(fragment) == VALUES[:3]
    assert not building.is_broken


async def test_the_file_first_then_its_sum(building: Building) -> None:
    await building.add(record(1))
    file = await building.write(record(2))
    assert (file.start, file.limit) == (1, 3)
    setsum = await building.sum()
    assert setsum == Setsum.of_records(1, TIME_US, VALUES[:2])
    assert await values_of(file.summed(setsum)) == VALUES[:2]


async def test_the_writer_goes_into_the_file(worker: Worker) -> None:
    for writer in (None, "w"):
        made = await Building(worker, timestamp_us=TIME_US, writer=writer).finish(record(1))
        batches = record(1)()
        assert made == await asyncio.to_thread(
            encode_fragment, batches, timestamp_us=TIME_US, writer=writer
        )


async def test_no_record_at_all_is_told(building: Building) -> None:
    await building.add(nothing)
    with pytest.raises(ValueError, match="at least one record"):
        await building.finish(nothing)


# -- order of a building's calls ----------------------------------------------------------


async def test_calls_follow_one_another_as_they_were_made(building: Building) -> None:
    """Although there is a thread to spare. Records are asked for when it is their turn."""
    gate = Gate(record(1))
    asked: list[int] = []

    def noted(number: int) -> Callable[[], list[Batch]]:
        def records() -> list[Batch]:
            asked.append(number)
            return record(number)()

        return records

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(building.add(gate))
        tasks.create_task(building.add(noted(2)))
        tasks.create_task(building.add(noted(3)))
        writing = tasks.create_task(building.write(noted(4)))
        summing = tasks.create_task(building.sum())
        await until(gate.entered.is_set)
        assert asked == []
        gate.opened.set()
    assert asked == [2, 3, 4]
    assert await values_of(writing.result().summed(summing.result())) == VALUES


async def test_records_are_asked_for_on_a_thread(building: Building) -> None:
    threads: list[int] = []

    def noted() -> list[Batch]:
        threads.append(threading.get_ident())
        return record(len(threads))()

    await building.add(noted)
    await building.finish(noted)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_the_sum_is_computed_beside_other_work(worker: Worker, building: Building) -> None:
    """One thread of two is busy all the while, as it is when the next fragment is being encoded."""
    gate = Gate(record(1))
    await building.add(record(1))
    await building.write(record(2))
    other = Building(worker, timestamp_us=TIME_US)
    async with asyncio.TaskGroup() as tasks:
        adding = tasks.create_task(other.add(gate))
        await until(gate.entered.is_set)
        async with asyncio.timeout(20):
            assert await building.sum() == Setsum.of_records(1, TIME_US, VALUES[:2])
        assert not adding.done()
        gate.opened.set()
    assert (await other.finish(nothing)).limit == 2


async def test_the_sum_is_computed_on_a_thread_too(worker: Worker, building: Building) -> None:
    """It waits for one, if all are busy, rather than hold up the loop."""
    await building.write(record(1))
    gates = [Gate(nothing), Gate(nothing)]
    async with asyncio.TaskGroup() as tasks:
        for gate in gates:
            tasks.create_task(Building(worker, timestamp_us=TIME_US).add(gate))
        await until(lambda: all(gate.entered.is_set() for gate in gates))
        summing = tasks.create_task(building.sum())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not summing.done()
        for gate in gates:
            gate.opened.set()
    assert summing.result() == Setsum.of_records(1, TIME_US, VALUES[:1])


# -- what breaks a building ----------------------------------------------------------------------------


async def test_a_part_that_does_not_follow_breaks_it(building: Building) -> None:
    await building.add(record(1))
    assert not building.is_broken
    with pytest.raises(ValueError, match="does not follow"):
        await building.add(record(3))
    assert building.is_broken


async def test_records_that_cannot_be_had_break_it(building: Building) -> None:
    with pytest.raises(OSError, match="no records"):
        await building.add(failing)
    assert building.is_broken


async def test_it_stays_broken(building: Building) -> None:
    with pytest.raises(OSError, match="no records"):
        await building.add(failing)
    await building.add(record(2))
    assert building.is_broken


async def test_to_be_cancelled_breaks_it(building: Building) -> None:
    gate = Gate(record(1))
    async with asyncio.TaskGroup() as tasks:
        adding = tasks.create_task(building.add(gate))
        await until(gate.entered.is_set)
        assert not building.is_broken
        adding.cancel()
        await asyncio.wait((adding,))
        assert adding.cancelled()
        assert building.is_broken
        gate.opened.set()


async def test_to_be_cancelled_before_a_thread_is_free_breaks_it(worker: Worker) -> None:
    gates = [Gate(record(1)), Gate(record(1))]
    buildings = [Building(worker, timestamp_us=TIME_US) for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for building, gate in zip(buildings, gates, strict=False):
            tasks.create_task(building.add(gate))
        await until(lambda: all(gate.entered.is_set() for gate in gates))
        adding = tasks.create_task(buildings[2].add(failing))
        await asyncio.sleep(0)
        adding.cancel()
        await asyncio.wait((adding,))
        for gate in gates:
            gate.opened.set()
    assert [building.is_broken for building in buildings] == [False, False, True]


async def test_to_be_cancelled_while_another_part_is_added_breaks_it(building: Building) -> None:
    gate = Gate(record(1))
    async with asyncio.TaskGroup() as group:
        group.create_task(building.add(gate))
        await until(gate.entered.is_set)
        waiting = group.create_task(building.add(record(2)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        gate.opened.set()
    assert building.is_broken
    for end in (building.finish, building.write):
        with pytest.raises(RuntimeError, match="given up"):
            await end(nothing)


async def test_a_part_whose_task_never_began_is_missed(building: Building) -> None:
    await building.add(record(1))
    adding = asyncio.create_task(building.add(record(2)))
    adding.cancel()
    await asyncio.wait((adding,))
    with pytest.raises(RuntimeError, match="given up"):
        await building.finish(nothing)
