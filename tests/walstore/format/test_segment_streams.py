"""Which streams a segment holds: a "no" is certain, whatever was noted and however it was kept."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from walstore.format import segment_streams
from walstore.format.segment_streams import SegmentStreams


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


@pytest.mark.parametrize("names", [segment_streams.MOST, segment_streams.MOST + 100])
def test_too_many_streams_are_not_counted(names: int) -> None:
    streams = SegmentStreams()
    for number in range(0, names, 50):
        streams.add([f"s{at}" for at in range(number, min(number + 50, names))])
    assert streams.is_known == (names <= segment_streams.MOST)
    assert streams.may_hold("s0")
    assert streams.may_hold("never") != streams.is_known


def test_the_numbers_are_those_of_the_format() -> None:
    streams = SegmentStreams()
    streams.add(["us", "eu"])
    expected = sorted([crc32c(b"eu"), crc32c(b"us")])
    assert streams.to_bytes() == b"".join(n.to_bytes(4, "little") for n in expected)
