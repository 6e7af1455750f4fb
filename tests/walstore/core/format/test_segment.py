"""Segment headers, footers, index and names: what was written comes back, what was damaged shows."""

from __future__ import annotations

import dataclasses
import threading
from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from walstore import CorruptionError, FormatVersionError
from walstore.core.format import segment
from walstore.core.format.segment import SegmentHeader, SegmentIndex, SegmentStreams, SegmentSummary

HEADER = SegmentHeader(bytes(range(16)), 101, 7, 1_750_000_000_000_000, 0xDEADBEEF, 0xA5A5)
SUMMARY = SegmentSummary(101, 250, 70_000, 0xCAFE, 1_750_000_000_000_001)


def make_index(entries: int = 4) -> SegmentIndex:
    index = SegmentIndex()
    for at in range(entries):
        position = segment.HEADER_BYTES + at * segment.INDEX_INTERVAL_BYTES
        index.add(101 + 10 * at, position, 1000 * at)
    return index


def test_names_sort_like_offsets() -> None:
    starts = [1, 2, 10, 99, 100, 10**12, 2**64 - 1]
    names = [segment.file_name(start) for start in starts]
    assert names == sorted(names)
    assert [segment.parse_file_name(name) for name in names] == starts
    assert names[0] == "00000000000000000001.wal"


@pytest.mark.parametrize(
    "name",
    [
        "1.wal",
        "0000000000000000000a.wal",
        "00000000000000000001",
        "00000000000000000001.wal.tmp",
        "LOCK",
        "next.tmp",
        ".wal",
        "\u0660" * 20 + ".wal",
        "+0000000000000000001.wal",
    ],
)
def test_other_names_are_no_segments(name) -> None:
    assert segment.parse_file_name(name) is None


def test_header_round_trip() -> None:
    data = segment.encode_header(HEADER)
    assert len(data) == segment.HEADER_BYTES
    assert segment.HEADER_BYTES % 8 == 0
    assert segment.decode_header(data, "f") == HEADER
    for other in (
        dataclasses.replace(HEADER, salt=None),
        dataclasses.replace(HEADER, salt=0),
        dataclasses.replace(HEADER, flags=segment.REUSES_BLOCKS | 0x8000),
    ):
        assert segment.decode_header(segment.encode_header(other), "f") == other
    assert not HEADER.reuses_blocks
    assert dataclasses.replace(HEADER, flags=segment.REUSES_BLOCKS).reuses_blocks


def test_an_unknown_flag_is_refused() -> None:
    data = segment.encode_header(dataclasses.replace(HEADER, flags=0x80))
    with pytest.raises(FormatVersionError, match="newer version"):
        segment.decode_header(data, "f")


def test_every_flipped_bit_of_a_header_is_found() -> None:
    for bit in range(8 * segment.HEADER_BYTES):
        with case(bit):
            data = bytearray(segment.encode_header(HEADER))
            data[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptionError) as found:
                segment.decode_header(bytes(data), "some/file")
            assert found.value.path == "some/file"


@pytest.mark.parametrize("size", [0, 7, 8, segment.HEADER_BYTES - 1])
def test_a_short_header_is_no_segment(size) -> None:
    with pytest.raises(CorruptionError, match="not a walstore segment"):
        segment.decode_header(segment.encode_header(HEADER)[:size], "f")


def test_a_newer_version_is_named() -> None:
    fields = list(segment.HEADER.unpack(segment.encode_header(HEADER)))
    fields[2] = segment.FORMAT_VERSION + 1
    data = bytearray(segment.HEADER.pack(*fields))
    data[8:12] = crc32c(bytes(data[12:])).to_bytes(4, "little")
    with pytest.raises(FormatVersionError) as found:
        segment.decode_header(bytes(data), "f")
    assert (found.value.found, found.value.supported) == (3, 2)


def test_footer_round_trip() -> None:
    index = make_index()
    data = segment.encode_footer(SUMMARY, index)
    assert segment.parse_seal(data[-segment.SEAL.size :]) == SUMMARY.data_bytes
    summary, found = segment.decode_footer(data, SUMMARY.start, "f")
    assert summary == SUMMARY
    assert found.to_bytes() == index.to_bytes()


@pytest.mark.parametrize("names", [[], ["eu"], ["eu", "us", "größer"]])
def test_a_footer_that_names_streams(names) -> None:
    index = SegmentIndex(SegmentStreams())
    index.add(101, segment.HEADER_BYTES, 7)
    index.streams.add(names)
    data = segment.encode_footer(SUMMARY, index)
    summary, found = segment.decode_footer(data, SUMMARY.start, "f")
    assert summary == SUMMARY
    assert found.to_bytes() == index.to_bytes()
    assert found.streams.is_known
    assert all(found.streams.may_hold(name) for name in names)
    assert not found.streams.may_hold("asia")
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            segment.decode_footer(bytes(damaged), SUMMARY.start, "f")


def test_a_footer_without_streams_is_the_one_of_before() -> None:
    """So segments sealed before streams were noted stay readable, and deny nothing."""
    data = segment.encode_footer(SUMMARY, make_index())
    assert len(data) == segment.FOOTER.size + 4 * SegmentIndex.ENTRY_BYTES + segment.SEAL.size
    assert data[44:48] == bytes(4)
    streams = segment.decode_footer(data, SUMMARY.start, "f")[1].streams
    assert not streams.is_known
    assert streams.may_hold("anything")


def test_the_bytes_of_a_footer_that_names_streams() -> None:
    """What was written once stays readable."""
    index = SegmentIndex(SegmentStreams())
    index.add(1, segment.HEADER_BYTES, 9)
    index.streams.add(["eu", "us"])
    data = segment.encode_footer(SegmentSummary(1, 3, 200, 0xCAFE, 9), index)
    assert data == bytes.fromhex(
        "57414c4944580d0aebf1df49010000000300000000000000c8000000000000000900000000000000"
        "feca0000030000000100000000000000400000000000000009000000000000006eebbc6807fdd871"
        "c80000000000000057414c454e440d0a"
    )


def test_a_footer_of_an_empty_index() -> None:
    data = segment.encode_footer(SUMMARY, SegmentIndex())
    assert segment.decode_footer(data, SUMMARY.start, "f")[0] == SUMMARY


def test_every_flipped_bit_of_a_footer_is_found() -> None:
    whole = segment.encode_footer(SUMMARY, make_index(2))
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            segment.decode_footer(bytes(data), SUMMARY.start, "f")


def test_a_cut_or_extended_footer_is_found() -> None:
    whole = segment.encode_footer(SUMMARY, make_index(2))
    for data in (whole[:-1], whole[1:], whole + b"\0", whole[:10], b""):
        with pytest.raises(CorruptionError):
            segment.decode_footer(data, SUMMARY.start, "f")


def test_what_is_no_seal() -> None:
    assert segment.parse_seal(b"") is None
    assert segment.parse_seal(bytes(segment.SEAL.size)) is None


def test_the_index_is_sparse() -> None:
    index = SegmentIndex()
    for at in range(1000):
        index.add(1 + at, segment.HEADER_BYTES + 100 * at, at)
    assert len(index.starts) == -(-100 * 1000 // (segment.INDEX_INTERVAL_BYTES + 36))
    gaps = {b - a for a, b in pairwise(index.positions)}
    assert min(gaps) >= segment.INDEX_INTERVAL_BYTES


def test_look_ups() -> None:
    index = make_index()
    positions = list(index.positions)
    assert index.locate(101) == positions[0]
    assert index.locate(110) == positions[0]
    assert index.locate(111) == positions[1]
    assert index.locate(10**9) == positions[3]
    assert index.locate(1) == segment.HEADER_BYTES
    assert index.locate_time(0) == segment.HEADER_BYTES
    assert index.locate_time(1000) == positions[0]
    assert index.locate_time(1001) == positions[1]
    assert index.locate_time(10**9) == positions[3]
    assert SegmentIndex().locate(5) == segment.HEADER_BYTES
    assert SegmentIndex().locate_time(5) == segment.HEADER_BYTES


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=50), st.integers(0, 80))
def test_a_time_look_up_never_skips_a_record_that_is_young_enough(steps, wanted_us) -> None:
    index = SegmentIndex()
    start, now_us, entries = 1, 0, []
    for count, later in steps:
        now_us += later
        position = segment.HEADER_BYTES + len(entries) * segment.INDEX_INTERVAL_BYTES
        index.add(start, position, now_us)
        entries.append((position, now_us))
        start += count
    at = index.locate_time(wanted_us)
    assert all(time_us < wanted_us for position, time_us in entries if position < at)


def test_index_bytes_round_trip() -> None:
    index = make_index(5)
    data = index.to_bytes()
    assert len(data) == 5 * SegmentIndex.ENTRY_BYTES
    again = SegmentIndex.from_bytes(memoryview(data), 5)
    assert (again.starts, again.positions, again.timestamps_us) == (
        index.starts,
        index.positions,
        index.timestamps_us,
    )


def test_look_ups_beside_an_appending_thread_never_miss_a_position() -> None:
    index = SegmentIndex()
    done = threading.Event()

    def append() -> None:
        for at in range(20_000):
            index.add(1 + at, segment.HEADER_BYTES + at * segment.INDEX_INTERVAL_BYTES, at)
        done.set()

    writer = threading.Thread(target=append)
    writer.start()
    while not done.is_set():
        index.locate(10**9)
        index.locate_time(10**9)
    writer.join()


@pytest.mark.parametrize("visible", [1, 2, 3])
def test_an_entry_half_added_is_no_trouble(visible) -> None:
    """Whatever another thread sees of an addition, every look-up finds a position."""
    index = make_index(3)
    order: list[str] = []

    class Column:
        def __init__(self, name: str, inner) -> None:
            self.name, self.inner = name, inner

        def append(self, value: int) -> None:
            order.append(self.name)
            if len(order) <= visible:
                self.inner.append(value)

        def __len__(self) -> int:
            return len(self.inner)

        def __getitem__(self, at):
            return self.inner[at]

    for name in ("starts", "positions", "timestamps_us"):
        setattr(index, name, Column(name, getattr(index, name)))
    index.add(10**6, 10**6, 10**6)
    assert len(order) == 3
    index.locate(10**9)
    index.locate_time(10**9)


def test_summaries_compare_by_value() -> None:
    assert dataclasses.replace(SUMMARY) == SUMMARY
    assert dataclasses.replace(SUMMARY, last_crc=1) != SUMMARY


@pytest.mark.slow
@given(st.lists(st.sets(st.text(min_size=1, max_size=8), max_size=5), max_size=8), st.text())
def test_what_was_added_may_be_there(added: list[set[str]], other: str) -> None:
    streams = SegmentStreams()
    for names in added:
        streams.add(names)
    every = {name for names in added for name in names}
    again = SegmentStreams.from_bytes(streams.to_bytes())
    for found in (streams, again):
        assert found.is_known
        assert len(found) == len({crc32c(name.encode()) for name in every})
        assert all(found.may_hold(name) for name in every)
        assert found.may_hold(other) == (
            crc32c(other.encode()) in {crc32c(name.encode()) for name in every}
        )
    assert again.to_bytes() == streams.to_bytes()
    assert len(streams.to_bytes()) == SegmentStreams.ENTRY_BYTES * len(streams)


def test_an_empty_list_denies_everything_an_unknown_one_nothing() -> None:
    assert not SegmentStreams().may_hold("eu")
    assert not SegmentStreams.from_bytes(b"").may_hold("eu")
    unknown = SegmentStreams.unknown()
    assert unknown.may_hold("eu")
    assert (unknown.is_known, len(unknown), unknown.to_bytes()) == (False, 0, b"")


def test_nothing_can_be_added_to_what_is_unknown_or_was_read() -> None:
    unknown = SegmentStreams.unknown()
    unknown.add(["eu"])
    assert not unknown.is_known
    read = SegmentStreams.from_bytes(b"")
    read.add(["eu"])
    assert not read.may_hold("eu")


@pytest.mark.parametrize("names", [segment.MOST_STREAMS, segment.MOST_STREAMS + 100])
def test_too_many_streams_are_not_counted(names: int) -> None:
    streams = SegmentStreams()
    for number in range(0, names, 50):
        streams.add([f"s{at}" for at in range(number, min(number + 50, names))])
    assert streams.is_known == (names <= segment.MOST_STREAMS)
    assert streams.may_hold("s0")
    assert streams.may_hold("never") != streams.is_known


def test_the_numbers_are_those_of_the_format() -> None:
    streams = SegmentStreams()
    streams.add(["us", "eu"])
    expected = sorted([crc32c(b"eu"), crc32c(b"us")])
    assert streams.to_bytes() == b"".join(n.to_bytes(4, "little") for n in expected)
