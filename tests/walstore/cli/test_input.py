"""Cutting input into records: the same records however the input arrives."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walstore import RecordTooLargeError
from walstore.cli.errors import UsageError
from walstore.cli.input import LengthPrefixed, Lines, Splitter

VALUES = st.lists(st.binary(max_size=30), max_size=20)


def _feed(splitter: Splitter, data: bytes, cuts: list[int]) -> list[bytes]:
    records = []
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for low, high in pairwise(places):
        records += splitter.feed(data[low:high])
    return [*records, *splitter.finish()]


@given(VALUES, st.lists(st.integers(0, 1000)), st.booleans())
def test_lines(values: list[bytes], cuts: list[int], ends: bool) -> None:
    lines = [value.replace(b"\n", b"") for value in values]
    data = b"".join(line + b"\n" for line in lines)
    if not ends and lines and lines[-1]:
        data = data[:-1]
    assert _feed(Lines(), data, cuts) == lines


@given(VALUES, st.lists(st.integers(0, 1000)))
def test_length_prefixed(values: list[bytes], cuts: list[int]) -> None:
    data = b"".join(struct.pack(">I", len(value)) + value for value in values)
    assert _feed(LengthPrefixed(), data, cuts) == values


@pytest.mark.parametrize("splitter", [Lines(), LengthPrefixed()])
def test_a_record_over_the_limit_is_refused_before_it_is_gathered(splitter: Splitter) -> None:
    splitter.max_record_bytes = 100
    chunk = struct.pack(">I", 101) + bytes(97)
    with pytest.raises(RecordTooLargeError):
        list(splitter.feed(chunk))


def test_a_record_at_the_limit_is_taken() -> None:
    lines, prefixed = Lines(), LengthPrefixed()
    lines.max_record_bytes = prefixed.max_record_bytes = 100
    assert list(lines.feed(b"x" * 100 + b"\n")) == [b"x" * 100]
    assert list(lines.feed((b"x" * 60 + b"\n") * 5)) == [b"x" * 60] * 5
    assert list(prefixed.feed(struct.pack(">I", 100) + bytes(100))) == [bytes(100)]


def test_an_endless_line_in_pieces_is_refused() -> None:
    lines = Lines()
    lines.max_record_bytes = 100
    assert list(lines.feed(bytes(60))) == []
    with pytest.raises(RecordTooLargeError) as caught:
        list(lines.feed(bytes(60)))
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (120, 100)


def test_input_that_ends_within_a_record() -> None:
    splitter = LengthPrefixed()
    assert list(splitter.feed(struct.pack(">I", 2) + b"ab" + b"\0\0")) == [b"ab"]
    assert splitter.pending_bytes == 2
    with pytest.raises(UsageError, match="within record 2: 2 bytes are left"):
        splitter.finish()


@pytest.mark.parametrize(
    ("splitter", "chunk"),
    [(Lines(), b"a\nb\nlonger\nc\n"), (LengthPrefixed(), b"\0\0\0\1a\0\0\0\1b\0\0\0\6longer")],
)
def test_records_before_one_over_the_limit_come_first(splitter: Splitter, chunk: bytes) -> None:
    splitter.max_record_bytes = 5
    found = splitter.feed(chunk)
    assert [next(found), next(found)] == [b"a", b"b"]
    with pytest.raises(RecordTooLargeError, match="--max-record-bytes"):
        next(found)


def test_what_is_left_of_an_unfinished_line() -> None:
    lines = Lines()
    assert list(lines.feed(b"whole\nhalf")) == [b"whole"]
    assert lines.pending_bytes == 4
    assert list(lines.finish()) == [b"half"]
