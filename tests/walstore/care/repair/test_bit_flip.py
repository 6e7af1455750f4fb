"""Mending: any single flipped bit of a small frame is found, and of the header of a large one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import build, header_of, record_lists, values_only
from walstore.care.repair.bit_flip import MOST_BYTES, Mended, mend
from walstore.core.format import frame
from walstore.core.format.recovery import Chain
from walstore.records import Record


def _mend(data: bytes, chain: Chain | None = None, place: bytes = frame.NOWHERE) -> Mended | None:
    return mend(lambda size: data[:size], len(data), chain or Chain(1, 7, 0, 1), place)


def _flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


SMALL = build(values_only(b"one", b"two", b"three"), previous_crc=7)


def test_the_bits_of_a_small_frame() -> None:
    for bit in range(0, 8 * len(SMALL), 3):
        mended = _mend(_flip(SMALL, bit) + b"what follows")
        assert mended is not None
        assert (mended.data, mended.position) == (SMALL, bit // 8)
        assert mended.header == header_of(SMALL)


def test_the_bits_of_a_frame_that_is_checked_with_its_place() -> None:
    place = frame.place(0xFEDCBA98, 4711)
    data = build(values_only(b"one", b"two", b"three"), previous_crc=7, at=place)
    for bit in range(1, 8 * len(data), 3):
        mended = _mend(_flip(data, bit), place=place)
        assert mended is not None
        assert (mended.data, mended.position) == (data, bit // 8)
        assert _mend(_flip(data, bit)) is None


@pytest.mark.slow
@given(record_lists(), st.integers(0))
def test_any_bit_of_any_frame(records: list[Record], bit: int) -> None:
    data = build(records, previous_crc=7)
    mended = _mend(_flip(data, bit % (8 * len(data))), Chain(records[0].offset, 7, 0, 1))
    assert mended is not None
    assert mended.data == data


def test_of_a_large_frame_the_header_alone() -> None:
    data = build(values_only(bytes(2 * MOST_BYTES)), previous_crc=7)
    for bit in range(0, 8 * frame.HEADER_BYTES, 7):
        mended = _mend(_flip(data, bit))
        assert mended is not None
        assert mended.data == data
    assert _mend(_flip(data, 8 * 500)) is None


@pytest.mark.parametrize("bits", [(700, 701), (100, 900), (40, 950)])
def test_two_bits_are_left_alone(bits: tuple[int, int]) -> None:
    assert _mend(_flip(_flip(SMALL, bits[0]), bits[1])) is None


def test_a_frame_from_elsewhere_is_left_alone() -> None:
    damaged = _flip(SMALL, 800)
    assert _mend(damaged, Chain(2, 7, 0, 1)) is None
    assert _mend(damaged, Chain(1, 8, 0, 1)) is None
    assert _mend(damaged, Chain(1, 7, 0, 2)) is None


def test_a_frame_that_was_cut_off_is_left_alone() -> None:
    for size in range(0, len(SMALL), 8):
        assert _mend(SMALL[:size]) is None
