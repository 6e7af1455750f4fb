"""FrameScan: the frames of a segment in order, and the next one behind damage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import build, values_only
from walstore.core.format import frame
from walstore.core.format.frame_scan import FrameScan, LookalikesError

SALT, BEGIN = 7, 64


def segment_of(sizes: list[int]) -> list[bytes]:
    """Return frames of one value each, as they are in a segment behind its header."""
    found: list[bytes] = []
    for at, size in enumerate(sizes):
        place = frame.place(SALT, BEGIN + sum(map(len, found)))
        found.append(build(values_only(bytes([at]) * size, start=1 + at), at=place))
    return found


def starts(scan: FrameScan, behind=None) -> list[int]:
    return [header.start for _, header, _ in scan.frames(BEGIN, behind)]


def scan_of(data: bytes, **options: int) -> FrameScan:
    """Scan bytes behind a header of a segment, read in pieces."""
    whole = bytes(BEGIN) + data
    return FrameScan(lambda size, at: whole[at : at + size], len(whole), SALT, **options)


@given(sizes=st.lists(st.integers(0, 400), max_size=8), ahead=st.integers(1, 600), junk=st.binary())
def test_all_frames_come_in_order_however_much_is_read_at_once(sizes, ahead, junk) -> None:
    frames = segment_of(sizes)
    scan = scan_of(b"".join(frames) + junk, ahead_bytes=ahead)
    position = BEGIN
    for (at, header, view), data in zip(scan.frames(BEGIN), frames, strict=True):
        assert (at, header.length) == (position, len(data))
        assert bytes(view[header.position : header.end]) == data
        position += header.length


def test_nothing_at_or_behind_the_end_is_read() -> None:
    frames = segment_of([3, 3])
    read: list[int] = []
    data = bytes(BEGIN) + b"".join(frames)

    def note(size: int, at: int) -> bytes:
        read.append(at + size)
        return data[at : at + size]

    assert starts(FrameScan(note, len(data) - 1, SALT)) == [1]
    assert max(read) == len(data) - 1


def test_a_damaged_length_is_not_read() -> None:
    read: list[int] = []
    data = bytearray(bytes(BEGIN) + b"".join(segment_of([3, 900])))
    struct.pack_into("<I", data, BEGIN + 8, 800)

    def note(size: int, at: int) -> bytes:
        read.append(size)
        return bytes(data[at : at + size])

    assert FrameScan(note, len(data), SALT, ahead_bytes=100).whole_at(BEGIN) is None
    assert max(read) == 100


@pytest.mark.parametrize("ahead", [1, 200, 1 << 20])
def test_the_caller_says_where_the_walk_goes_on_behind_damage(ahead: int) -> None:
    frames = segment_of([30] * 5)
    data = bytearray(b"".join(frames))
    data[len(frames[0]) + 20] ^= 1
    data[-1] ^= 1
    places: list[int] = []

    def behind(at: int) -> int | None:
        places.append(at)
        return scan.next_whole(at)

    scan = scan_of(bytes(data), ahead_bytes=ahead)
    assert starts(scan) == [1]
    assert starts(scan, behind) == [1, 3, 4]
    assert places == [BEGIN + len(frames[0]), BEGIN + 4 * len(frames[0])]
    assert starts(scan_of(frames[0]), behind) == [1]
    assert len(places) == 2  # the end is no damage


def test_what_a_writer_finished_since_it_was_read_is_whole() -> None:
    first, second = segment_of([10, 10])
    data = bytearray(bytes(BEGIN) + first + bytes(len(second)))
    scan = FrameScan(lambda size, at: bytes(data[at : at + size]), len(data), SALT)
    found = []
    for _, header, _ in scan.frames(BEGIN):
        found.append(header.start)
        data[-len(second) :] = second
    assert found == [1, 2]


def test_a_frame_is_whole_only_at_its_place() -> None:
    first, second = segment_of([10, 10])
    assert scan_of(second).whole_at(BEGIN) is None
    assert scan_of(first + second).whole_at(BEGIN + len(first)) is not None


@pytest.mark.parametrize("ahead", [1, 100, 1 << 20])
def test_lengths_alone_lead_from_frame_to_frame(ahead: int) -> None:
    frames = segment_of([30, 300, 3])
    ends = [BEGIN + sum(map(len, frames[:count])) for count in range(4)]
    data = bytearray(b"".join(frames))
    data[len(frames[0]) - 20] ^= 1  # nothing is checked
    scan = scan_of(bytes(data), ahead_bytes=ahead)
    assert [(at, one.start) for at, one in scan.claimed(BEGIN)] == [
        (ends[0], 1),
        (ends[1], 2),
        (ends[2], 3),
    ]
    assert [scan.claimed_limit(BEGIN, limit) for limit in (BEGIN, ends[1] - 1)] == [BEGIN] * 2
    assert [scan.claimed_limit(BEGIN, limit) for limit in (ends[1], ends[2] - 1)] == [ends[1]] * 2
    assert scan.claimed_limit(ends[1], 1 << 40) == ends[3]
    assert scan.claimed_limit(BEGIN + 8, ends[3]) == BEGIN + 8


# -- looking behind damage ------------------------------------------------------------------------


def first_whole(data: bytes | bytearray, position: int = 0) -> tuple[int, int] | None:
    """Return place and first offset of the first whole frame of version 1 at or behind a position."""
    scan = FrameScan.of(memoryview(data), 0, None)
    found = next(((at, one.start) for at, one in scan.whole_frames(position)), None)
    assert scan.next_whole(position) == (found and found[0])
    return found


@given(st.binary(max_size=300))
def test_there_is_no_frame_in_junk(junk: bytes) -> None:
    assert first_whole(junk) is None


def test_a_frame_behind_damage_is_found_at_aligned_places_only() -> None:
    first, second = build(values_only(b"one")), build(values_only(b"two", start=2))
    data = b"\xff" * len(first) + second
    assert first_whole(data) == (len(first), 2)
    assert first_whole(data, len(first) + 8) is None
    assert first_whole(b"\xff" * 3 + second) is None
    assert first_whole(b"WBF1" * 20 + second) == (80, 2)


def test_a_damaged_frame_is_passed_over() -> None:
    first, second, third = (build(values_only(b"v%d" % n, start=n)) for n in (1, 2, 3))
    damaged = bytearray(second)
    damaged[-1] ^= 1
    assert first_whole(first + damaged + third, len(first)) == (len(first + damaged), 3)


def test_a_frame_inside_another_or_of_an_earlier_offset_is_passed_over() -> None:
    inner = build(values_only(b"inner", start=50))
    outer = [build(values_only(bytes(pad) + inner, start=9)) for pad in range(frame.ALIGNMENT)]
    nested = next(one for one in outer if one.index(inner) % frame.ALIGNMENT == 0)
    data = build(values_only(b"early")) + nested + build(values_only(b"last", start=10))
    scan = FrameScan.of(memoryview(data), 1 << 40, None)
    assert [one.start for _, one in scan.whole_frames(1 << 40)] == [1, 9, 10]
    assert [one.start for _, one in scan.whole_frames(1 << 40, 9)] == [9, 10]
    assert [one.start for _, one in scan.whole_frames(1 << 40, 10)] == [50, 10]


@given(st.integers(1, 40), st.integers(0, 400))
def test_no_frame_falls_between_two_reads(ahead: int, junk: int) -> None:
    frames = segment_of([5, junk, 5])
    data = b"".join(frames)
    scan = scan_of(bytes(len(frames[0])) + data[len(frames[0]) :], ahead_bytes=ahead)
    found = [at for at, _ in scan.whole_frames(BEGIN, 2)]
    assert found == [BEGIN + len(frames[0]), BEGIN + len(frames[0]) + len(frames[1])]


def test_overlapping_lookalikes_are_not_checked_without_end() -> None:
    """Values made for it: each header claims a trailer far behind, so that each check is long."""
    size, count = 1 << 20, 4000
    data = bytearray(size)
    for at in range(0, 88 * count, 88):
        end = size - 8 * (count - at // 88)
        struct.pack_into("<IIII", data, at, frame.FRAME_MAGIC, 0, end + 8 - at, 0)
        frame.TRAILER.pack_into(data, end, end + 8 - at, frame.TRAILER_MAGIC)
    scan = FrameScan.of(memoryview(data), 0, 1)
    with pytest.raises(LookalikesError):
        list(scan.whole_frames(0))
    assert scan.next_whole(0) is None


def test_what_has_no_trailer_is_passed_over_however_much_of_it_there_is() -> None:
    data = bytearray(1 << 20)
    for at in range(0, 88 * 100, 88):
        struct.pack_into("<IIII", data, at, frame.FRAME_MAGIC, 0, 1_000_000, 0)
    assert first_whole(data + build(values_only(b"one"))) == (1 << 20, 1)


def test_the_trailer_tells_written_from_cut() -> None:
    data = bytearray(build(values_only(b"one", b"two")))
    data[0:8] = b"\xff" * 8

    def ends(data: bytes, position: int) -> list[int]:
        return list(FrameScan.of(memoryview(data), 0, None).trailer_limits(position))

    assert ends(data, 0) == ends(data + build(values_only(b"on")), 0) == [len(data)]
    assert ends(bytes(16) + data, 16) == [16 + len(data)]
    assert ends(data[:-4], 0) == ends(data, 8) == ends(b"WEnd" * 8, 0) == []
    assert ends(b"\x08\0\0\0WEnd", 0) == [8]
