"""Fragments built in parts: the same records, bounds and sums as those of fragments built at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frames import batch_of, build, record_lists, values_only
from tests.uploader.parquet import read_by_arrow_rs
from uploader.format import layout
from uploader.format.setsum import Setsum
from uploader.fragments import fragment_builder
from uploader.fragments.fragment import (
    FragmentBatch,
    decode_fragment,
    inspect_fragment,
    verify_fragment,
)
from uploader.fragments.fragment_builder import EncodedFragment, FragmentBuilder, encode_fragment
from uploader.fragments.fragment_file import WRITER_KEY, Footer, read_footer
from walstore.core.batches.arrow import SCHEMA
from walstore.core.batches.batch import Batch
from walstore.records import Record

TIME_US = 1_234_567_890_123_456
PATH = layout.fragment_path(7)
MAX = layout.MAX_U64

Parts = Sequence[Sequence[Batch]]
Finish = Callable[[FragmentBuilder, Sequence[Batch]], EncodedFragment]


def at_once(builder: FragmentBuilder, batches: Sequence[Batch] = ()) -> EncodedFragment:
    return builder.finish(batches)


def file_first(builder: FragmentBuilder, batches: Sequence[Batch] = ()) -> EncodedFragment:
    file = builder.write(batches)
    return file.summed(builder.sum())


both_ways = pytest.mark.parametrize("finish", [at_once, file_first])


def in_parts(
    parts: Parts, finish: Finish = at_once, *, writer: str | None = None
) -> EncodedFragment:
    """Return the fragment of these parts, the last of which is left to ``finish``."""
    builder = FragmentBuilder(timestamp_us=TIME_US, writer=writer)
    for part in parts[:-1]:
        builder.add(part)
    return finish(builder, parts[-1])


def batch(*values: bytes, start: int = 1, timestamp_us: int = 0) -> Batch:
    return batch_of(build(values_only(*values, start=start, timestamp_us=timestamp_us)))


def batch_at(start: int) -> Batch:
    """Return one record said to lie at any number."""
    columns = [[0], [0], [b"x"], [None], [None], [None]]
    arrays = [pa.array(c, type_) for c, type_ in zip(columns, SCHEMA.types, strict=True)]
    return FragmentBatch(pa.Table.from_arrays(arrays, schema=SCHEMA), start=start)


def group_rows(data: bytes) -> list[int]:
    found = pq.read_metadata(pa.BufferReader(data))
    return [found.row_group(at).num_rows for at in range(found.num_row_groups)]


def footer(data: bytes) -> Footer:
    return read_footer(data, path=PATH)


@st.composite
def cut_up(draw: st.DrawFn) -> tuple[list[Record], list[list[Batch]]]:
    """Records, and their batches in parts; some parts and batches may be empty."""
    records = draw(record_lists())
    low, high = records[0].offset, records[-1].offset + 1
    whole = batch_of(build(records))
    cuts = st.lists(st.integers(low, high), max_size=3)
    parts: list[list[Batch]] = []
    for first, last in pairwise([low, *sorted(draw(cuts)), high]):
        inner = draw(st.lists(st.integers(first, last), max_size=2))
        bounds = [first, *sorted(inner), last]
        parts.append([whole.slice(a, b) for a, b in pairwise(bounds)])
    return records, parts


# -- parts -------------------------------------------------------------------------------------


@pytest.mark.slow
@both_ways
@settings(max_examples=25)
@given(cut=cut_up(), is_all_added=st.booleans())
def test_parts_make_the_same_fragment(
    finish: Finish, cut: tuple[list[Record], list[list[Batch]]], is_all_added: bool
) -> None:
    records, parts = cut
    whole = encode_fragment([batch_of(build(records))], timestamp_us=TIME_US)
    found = in_parts([*parts, []] if is_all_added else parts, finish)
    assert (found.start, found.limit) == (whole.start, whole.limit)
    assert found.setsum == whole.setsum
    entry = found.entry(7)
    assert inspect_fragment(found.data, PATH) == entry
    assert decode_fragment(found.data, entry).records() == records
    assert verify_fragment(found.data, entry).records() == records
    told, expected = footer(found.data), footer(whole.data)
    assert told.streams.to_text() == expected.streams.to_text()
    assert (told.times_us, told.offsets) == (expected.times_us, expected.offsets)
    assert (told.rows, told.columns, told.version) == (
        expected.rows,
        expected.columns,
        expected.version,
    )


@pytest.mark.slow
@settings(max_examples=15)
@given(cut_up())
def test_either_way_of_ending_it_gives_the_same(
    cut: tuple[list[Record], list[list[Batch]]],
) -> None:
    _, parts = cut
    assert in_parts(parts, file_first) == in_parts(parts, at_once) == in_parts(parts, at_once)


def test_parts_are_row_groups_of_their_own() -> None:
    parts = [
        [batch(b"a", b"b")],
        [batch(b"c", start=3), batch(b"d", start=4)],
        [batch(b"e", start=5)],
    ]
    assert group_rows(in_parts(parts).data) == [2, 2, 1]
    assert group_rows(in_parts([*parts, []]).data) == [2, 2, 1]


def test_the_footer_speaks_of_all_parts() -> None:
    streams = ["a", None, "b", "a", "c"]
    whole = batch_of(
        build([Record(1 + n, b"v", None, s, timestamp_us=10 + n) for n, s in enumerate(streams)])
    )
    parts = [[whole.slice(low, high)] for low, high in pairwise([1, 3, 4, 6])]
    found = footer(in_parts(parts).data)
    assert found.streams.names == frozenset("abc")
    assert (found.times_us, found.offsets, found.rows) == ((10, 14), (1, 5), 5)


def test_many_streams_are_known_in_every_part() -> None:
    """So many that they are not listed; half of them are in the first part only."""
    names = [f"stream {n}" for n in range(200)]
    whole = batch_of(build([Record(1 + n, b"", None, name) for n, name in enumerate(names)]))
    found = footer(in_parts([[whole.slice(1, 101)], [whole.slice(101, 201)]]).data).streams
    assert found.names is None
    assert all(map(found.may_hold, names))
    assert sum(found.may_hold(f"other {n}") for n in range(1000)) < 50


def test_columns_of_one_part_only() -> None:
    plain = [Record(1, b"a"), Record(2, b"b")]
    full = [Record(3, b"c", b"k", "s", {"h": b"1"}, 5), Record(4, b"d", timestamp_us=5)]
    for first, second in ((plain, full), ([r._replace(offset=r.offset - 2) for r in full], plain)):
        moved = [r._replace(offset=3 + n, timestamp_us=5) for n, r in enumerate(second)]
        found = in_parts([[batch_of(build(first))], [batch_of(build(moved))]])
        assert verify_fragment(found.data, found.entry(1)).records() == [*first, *moved]


def test_a_second_part_of_larger_records() -> None:
    parts = [[batch(*[b""] * 2000)], [batch(*[os.urandom(100_000)] * 10, start=2001)]]
    found = in_parts(parts)
    assert group_rows(found.data) == [2000, 10]
    values = [value for part in parts for each in part for value in each.values]
    assert list(verify_fragment(found.data, found.entry(1)).values) == values


def test_the_same_parts_give_the_same_bytes() -> None:
    def made(writer: str | None = None) -> bytes:
        parts = [[batch(b"a", b"b")], [batch(b"c", start=3)]]
        return in_parts(parts, writer=writer).data

    assert made() == made()
    assert made("w") == made("w")
    assert len({made(), made("v"), made("w")}) == 3
    assert pq.read_metadata(pa.BufferReader(made("w"))).metadata[WRITER_KEY] == b"w"


def test_how_a_part_is_cut_into_batches_changes_no_byte() -> None:
    whole, rest = batch(b"a", b"b", b"c"), batch(b"d", start=4)
    cut = [whole.slice(1, 2), whole.slice(2, 2), whole.slice(2, 4)]
    assert in_parts([[whole], [rest]]).data == in_parts([cut, [rest]]).data


def test_arrow_rs_reads_a_file_of_two_parts() -> None:
    first = [Record(1, b"a", b"k", "s", {"h": b"1"}, 5), Record(2, b"", timestamp_us=6)]
    second = [Record(3, b"c" * 500, None, "t", timestamp_us=7)]
    data = in_parts([[batch_of(build(first))], [batch_of(build(second))]]).data
    found = read_by_arrow_rs(data)
    assert found.column("offset").to_pylist() == [1, 2, 3]
    assert found.column("timestamp_us").to_pylist() == [TIME_US] * 3
    assert found.column("body").to_pylist() == [b"a", b"", b"c" * 500]
    assert found.column("record_timestamp_us").to_pylist() == [5, 6, 7]
    assert found.column("stream").to_pylist() == ["s", None, "t"]
    assert found.column("key").to_pylist() == [b"k", None, None]
    assert found.column("headers").to_pylist() == [[("h", b"1")], None, None]


# -- ends --------------------------------------------------------------------------------------


@both_ways
def test_empty_parts_are_passed_over(finish: Finish) -> None:
    full = batch(b"a")
    empty = full.slice(1, 1)
    expected = encode_fragment([full], timestamp_us=TIME_US)
    assert in_parts([[], [empty], [full], [], [empty, empty]], finish) == expected
    assert in_parts([[], [empty], [empty, full]], finish) == expected


@both_ways
def test_no_record_at_all_is_no_fragment(finish: Finish) -> None:
    empty = batch(b"a").slice(1, 1)
    every: list[list[list[Batch]]] = [[[]], [[], []], [[empty], [], [empty]]]
    for parts in every:
        with pytest.raises(ValueError, match="at least one record"):
            in_parts(parts, finish)


def test_the_sum_may_be_asked_for_again() -> None:
    builder = FragmentBuilder(timestamp_us=TIME_US)
    builder.add([batch(b"a")])
    builder.write([batch(b"b", start=2)])
    assert builder.sum() == builder.sum() == Setsum.of_records(1, TIME_US, [b"a", b"b"])


@both_ways
@pytest.mark.parametrize("start", [1, 2, 4, 100])
def test_parts_must_follow_each_other(finish: Finish, start: int) -> None:
    first, second = [batch(b"a", b"b")], [batch(b"c", start=start)]
    with pytest.raises(ValueError, match="does not follow offset 3"):
        in_parts([first, second], finish)
    with pytest.raises(ValueError, match="does not follow offset 3"):
        in_parts([first, second, []], finish)


@pytest.mark.parametrize("timestamp_us", [-1, MAX + 1])
def test_the_time_fits_64_bits(timestamp_us: int) -> None:
    with pytest.raises(ValueError, match="timestamp_us"):
        FragmentBuilder(timestamp_us=timestamp_us)


@both_ways
def test_offsets_fit_64_bits(finish: Finish) -> None:
    for number, name in ((-1, "start"), (MAX, "limit"), (MAX + 1, "start")):
        with pytest.raises(ValueError, match=name):
            in_parts([[batch_at(number)]], finish)
        with pytest.raises(ValueError, match=name):
            in_parts([[batch_at(number)], []], finish)


@both_ways
def test_parts_reach_up_to_the_largest_offset(finish: Finish) -> None:
    found = in_parts([[batch_at(MAX - 2)], [batch_at(MAX - 1)]], finish)
    assert (found.start, found.limit) == (MAX - 2, MAX)
    assert found.setsum == Setsum.of_records(MAX - 2, TIME_US, [b"x"] * 2)
    assert footer(found.data).offsets == (MAX - 2, MAX - 1)
    with pytest.raises(ValueError, match="limit"):
        in_parts([[batch_at(MAX - 1)], [batch_at(MAX)]], finish)


# -- threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "threads"), [(50, 0), (300, 1)])
@pytest.mark.parametrize("added", [0, 10], ids=["at once", "in parts"])
def test_much_is_hashed_while_another_thread_makes_the_file(
    count: int, threads: int, added: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 256 KiB on; what comes out is the same."""
    started = []

    class Noted(ThreadPoolExecutor):
        def submit(self, *args, **options):
            started.append(args)
            return super().submit(*args, **options)

    monkeypatch.setattr(fragment_builder, "ThreadPoolExecutor", Noted)
    values = [os.urandom(1000) for _ in range(added + count)]
    whole = batch(*values)
    parts = [[whole.slice(1, 1 + added)], [whole.slice(1 + added, whole.limit)]]
    found = in_parts(parts, at_once)
    assert len(started) == threads
    assert found == in_parts(parts, file_first)
    assert len(started) == threads
    assert found.setsum == Setsum.of_records(1, TIME_US, values)
    assert list(verify_fragment(found.data, found.entry(1)).values) == values


def test_much_on_a_machine_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller makes the file, too."""
    large = batch(*(b"v" * 1024 for _ in range(300)))
    expected = encode_fragment([large], timestamp_us=1)

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert encode_fragment([large], timestamp_us=1) == expected


def test_batches_that_are_refused_change_nothing() -> None:
    builder = FragmentBuilder(timestamp_us=TIME_US)
    builder.add([batch_at(1)])
    for call in (builder.add, builder.write, builder.finish):
        with pytest.raises(ValueError, match="does not follow"):
            call([batch_at(2), batch_at(9)])
    expected = encode_fragment([batch_at(1), batch_at(2)], timestamp_us=TIME_US)
    found = builder.finish([batch_at(2)])
    assert (found.start, found.limit, found.setsum) == (1, 3, expected.setsum)


@pytest.mark.slow
@pytest.mark.parametrize("few", [0, 64], ids=["column by column", "record by record"])
@given(records=record_lists(), data=st.data())
def test_the_columns_are_those_of_the_batches(few: int, records: list[Record], data) -> None:
    limit = records[-1].offset + 1
    places = st.integers(records[0].offset, limit)
    cuts = data.draw(st.sets(places, max_size=4)) | {records[0].offset, limit}
    whole = batch_of(build(records))
    batches = [whole.slice(low, high) for low, high in pairwise(sorted(cuts))]
    values = [record.value for record in records]
    with mock.patch.object(fragment_builder, "_FEW_ROWS", few):
        found = fragment_builder.to_table(batches)
        setsum = fragment_builder.setsum_of(batches, TIME_US)
    found.validate(full=True)
    assert found.schema == SCHEMA
    expected = pa.Table.from_batches([batch.to_arrow() for batch in batches], SCHEMA)
    assert found.combine_chunks().equals(expected.combine_chunks())
    assert setsum == Setsum.of_records(records[0].offset, TIME_US, values)


def test_many_short_batches_are_taken_together() -> None:
    """Making the columns of each would take longer than all else."""
    batches: list[Batch] = [
        batch_of(build(values_only(b"%d" % at, start=at))) for at in range(1, 3001)
    ]
    batches.insert(1000, batch_of(build(values_only(*[b"x"] * 100, start=1001))))
    batches = [*batches[:1001], *(_moved(batch, 100) for batch in batches[1001:])]
    found = fragment_builder.to_table(batches)
    assert found.column("offset").to_pylist() == list(range(1, 3101))
    assert [len(chunk) for chunk in found.column("value").chunks] == [1000, 100, 1024, 976]
    values = found.column("value").to_pylist()
    assert fragment_builder.setsum_of(batches, TIME_US) == Setsum.of_records(1, TIME_US, values)


def _moved(batch: Batch, by: int) -> Batch:
    return batch_of(build(values_only(*batch.values, start=batch.start + by)))


def test_batches_of_any_kind() -> None:
    records = [Record(5, b"a", b"k", "s", {"h": b"1"}, 7), Record(6, b"b", timestamp_us=8)]
    encoded = encode_fragment([batch_of(build(records))], timestamp_us=TIME_US)
    batch = decode_fragment(encoded.data, encoded.entry(1))
    again = batch_of(build([Record(7, b"c", timestamp_us=9)]))
    found = fragment_builder.to_table([batch, again])
    assert found.column("offset").to_pylist() == [5, 6, 7]
    assert found.column("key").to_pylist() == [b"k", None, None]
    expected = Setsum.of_records(5, TIME_US, [b"a", b"b", b"c"])
    assert fragment_builder.setsum_of([batch, again], TIME_US) == expected


def test_values_are_shared_with_the_frame() -> None:
    batch = batch_of(build(values_only(*[b"x" * 1000] * 64)))
    column = fragment_builder.to_table([batch]).column("value").chunk(0)
    blob, _ = batch.value_buffer()
    assert column.buffers()[2].address == pa.py_buffer(blob).address


def test_hashing_leaves_no_values_behind() -> None:
    """Frames stay in the log's cache; what is decoded for a fragment must not stay with them."""
    for count in (1, 100):
        batch = batch_of(build(values_only(*[b"x"] * count)))
        fragment_builder.setsum_of([batch], TIME_US)
        fragment_builder.to_table([batch])
        assert not batch.has_decoded_values
