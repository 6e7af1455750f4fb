"""Which streams a fragment holds, as its footer says it."""

from __future__ import annotations

import base64
import hashlib

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import case
from uploader.fragments.bloom import (
    BITS_PER_NAME,
    HASHES,
    MOST,
    MOST_BITS_BYTES,
    MOST_LISTED,
    StreamSet,
)

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable())


@given(st.sets(NAMES, max_size=60))
@settings(max_examples=50)
def test_what_is_there_is_never_denied(names: set[str]) -> None:
    made = StreamSet.of(names)
    text = made.to_text()
    assert text is not None
    assert text.isascii()
    for found in (made, StreamSet.from_text(text), StreamSet.from_text(text.encode())):
        assert found.is_known
        assert all(map(found.may_hold, names))
        assert found.to_text() == text


def test_few_names_are_listed() -> None:
    found = StreamSet.from_text(StreamSet.of(["eu", "us", "é"]).to_text())
    assert found.names == {"eu", "us", "é"}
    assert [found.may_hold(name) for name in ("eu", "é", "e", "")] == [True, True, False, False]
    body = 'names ["eu","us","\\u00e9"]'
    assert StreamSet.of(["us", "é", "eu"]).to_text() == f"{crc32c(body.encode()):08x} {body}"


def test_no_stream_is_known_too() -> None:
    found = StreamSet.from_text(StreamSet.of([]).to_text())
    assert found.is_known
    assert not found.may_hold("a")


@pytest.mark.parametrize("count", [MOST_LISTED + 1, 1000, MOST])
def test_many_names_make_a_filter(count: int) -> None:
    names = [f"stream-{number}" for number in range(count)]
    found = StreamSet.from_text(StreamSet.of(names).to_text())
    assert found.names is None
    assert all(map(found.may_hold, names))
    others = [f"other-{number}" for number in range(2000)]
    assert sum(map(found.may_hold, others)) < 2000 * 0.03
    assert len(found.to_text()) < count * BITS_PER_NAME / 8 * 4 / 3 + 50


def test_a_few_long_names_make_a_filter() -> None:
    found = StreamSet.of(["x" * 2000])
    assert found.names is None
    assert found.may_hold("x" * 2000)
    assert not found.may_hold("y")


def test_a_filter_as_the_format_describes_it() -> None:
    """Made and asked by hand, from docs/format.md alone."""
    names = [f"s{number}" for number in range(40)]
    bits = bytearray(50)
    for name in names:
        digest = hashlib.sha3_256(name.encode()).digest()
        first = int.from_bytes(digest[:8], "little")
        step = int.from_bytes(digest[8:16], "little") | 1
        for at in range(7):
            place = (first + at * step) % 400
            bits[place // 8] |= 1 << place % 8
    body = f"bloom 7 {base64.b64encode(bits).decode()}"
    assert StreamSet.of(names).to_text() == f"{crc32c(body.encode()):08x} {body}"
    assert (BITS_PER_NAME, HASHES) == (10, 7)


def test_very_many_are_not_told() -> None:
    found = StreamSet.of([str(number) for number in range(MOST + 1)])
    assert not found.is_known
    assert found.to_text() is None
    assert found.may_hold("x")


GOOD = StreamSet.of(["a"]).to_text() or ""


def test_what_is_damaged_or_newer_denies_nothing() -> None:
    for text in (
        *("", "x", GOOD[:-1], GOOD.replace("a", "b"), GOOD + " ", GOOD.upper(), b"\xff" * 20),
        *(
            f"{crc32c(body):08x} ".encode() + body
            for body in (
                b"",
                b"names",
                b"names [1",
                b"names 7",
                b"bloom",
                b"bloom x AAAA",
                b"bloom 7 !",
                b"new 1",
            )
        ),
    ):
        with case(text):
            found = StreamSet.from_text(text)
            assert not found.is_known
            assert found.may_hold("a")
            assert found.may_hold("zzz")


def test_how_it_looks() -> None:
    assert repr(StreamSet.of(["b", "a"])) == "<StreamSet ['a', 'b']>"
    assert "bits" in repr(StreamSet.of([str(number) for number in range(99)]))
    assert StreamSet.of(["a"]).nbytes < StreamSet.of(["a", "b"]).nbytes


def stored(body: bytes) -> StreamSet:
    """Return what is read of a set with a right checksum."""
    return StreamSet.from_text(b"%08x " % crc32c(body) + body)


@pytest.mark.parametrize("hashes", [b"4611686018427387904", b"33", b"0", b"-1", b"1" * 5000])
def test_a_filter_that_asks_for_too_much_work_denies_nothing(hashes: bytes) -> None:
    found = stored(b"bloom " + hashes + b" /////w==")
    assert not found.is_known
    assert found.may_hold("a")


@pytest.mark.parametrize("names", [b"[" * 100_000, b'"abc"', b'{"a": 1}', b"[1]", b'["a", null]'])
def test_names_that_are_no_list_of_names_deny_nothing(names: bytes) -> None:
    found = stored(b"names " + names)
    assert not found.is_known
    assert found.may_hold("a")


def test_a_filter_that_is_too_long_denies_nothing() -> None:
    assert not stored(b"bloom 7 " + base64.b64encode(bytes(MOST_BITS_BYTES + 1))).is_known
    assert stored(b"bloom 7 " + base64.b64encode(bytes(MOST_BITS_BYTES))).is_known


def test_long_names_count_in_memory() -> None:
    assert StreamSet(names=["x" * 10_000]).nbytes > 10_000
