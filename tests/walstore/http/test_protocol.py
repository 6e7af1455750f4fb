"""Offsets, cursors, lifetimes and producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walstore.http import protocol
from walstore.http.protocol import MOST_NUMBER, ProducerMark, RefusedError

OFFSETS = st.integers(1, 10**16 - 1)


@given(OFFSETS, OFFSETS)
def test_offsets_are_ordered_as_their_tokens(one: int, other: int) -> None:
    tokens = protocol.format_offset(one), protocol.format_offset(other)
    assert (tokens[0] < tokens[1]) == (one < other)
    assert protocol.parse_offset(tokens[0]) == one


def test_the_token_of_zero_is_the_beginning() -> None:
    assert protocol.parse_offset(protocol.format_offset(0)) == 1


@given(st.floats(1.73e9, 4e9), st.integers(0, 10**9) | st.none(), st.integers(1, 180))
def test_a_cursor_is_beyond_the_one_given(
    now: float, given_cursor: int | None, jitter: int
) -> None:
    shown = None if given_cursor is None else str(given_cursor)
    found = int(protocol.cursor(now, shown, jitter))
    assert given_cursor is None or found > given_cursor
    assert found >= int(protocol.cursor(now, None, jitter))


def test_entity_tags_are_compared_weakly_in_lists() -> None:
    tag = '"a:1:2"'
    for fields in (
        [tag], [f"W/{tag}"], ["*"], [" * "], [f'"x", {tag}'],
        [f'"x",W/"y" ,W/{tag}'], ['"x"', tag], [f'"x,y",{tag}'],
    ):  # fmt: skip
        assert protocol.is_match(fields, tag), fields
    for fields in (
        [],
        [""],
        ["a:1:2"],
        ['"a:1:3"'],
        [f'"x{tag}'],
        ['"A:1:2"'],
        ["W/"],
        ['"*"'],
        ["x, *"],
    ):
        assert not protocol.is_match(fields, tag), fields


def test_a_cursor_that_is_no_number_is_as_none() -> None:
    assert protocol.cursor(2e9, "x", 1) == protocol.cursor(2e9, None, 1)


REFUSED: list[tuple[Callable[[Any], object], list[Any]]] = [
    (protocol.parse_offset, ["", "-1", "now", "1", "1_0", f"{0:016d}_{1:016d}", "٣" * 16 + f"_{0:016d}"]),
    (protocol.parse_ttl, ["", "-1", "+1", "01", "1.0", "1e3", " 1", "x", "9" * 17, "²"]),
    (protocol.parse_expiry, ["", "x", "2026-01-01", "2026-01-01T00:00:00", "1e9", "2026-13-01T00:00:00Z"]),
    (protocol.parse_sub_offset, ["", "-1", "1.5", "x"]),
    (protocol.media_type, ["x", "a b/c", "a/", "/b", "a/b" + "c" * 300, "ä/b"]),
]  # fmt: skip


def test_what_is_malformed_is_refused() -> None:
    for parse, texts in REFUSED:
        for text in texts:
            with pytest.raises(RefusedError) as caught:
                parse(text)
                pytest.fail(f"{parse.__name__} took {text!r}")
            assert caught.value.status == 400


def test_lifetimes() -> None:
    assert protocol.parse_ttl("0") == 0
    assert protocol.parse_ttl("3600") == 3600
    assert protocol.parse_ttl(None) is None
    at = protocol.parse_expiry("2026-01-01T01:00:00+01:00")
    assert at == protocol.parse_expiry("2026-01-01T00:00:00Z")


def test_content_types() -> None:
    assert protocol.media_type(None) == "application/octet-stream"
    assert protocol.media_type(" Application/JSON; charset=utf-8") == "application/json"


def test_producers() -> None:
    def parse(**headers: str) -> ProducerMark | None:
        return protocol.parse_producer(
            {f"Producer-{name}": value for name, value in headers.items()}
        )

    assert parse() is None
    assert parse(Id="p", Epoch="0", Seq=str(MOST_NUMBER)) == ("p", 0, MOST_NUMBER)
    for bad in (
        {"Id": "p"}, {"Id": "p", "Epoch": "0"}, {"Epoch": "0", "Seq": "0"},
        {"Id": "", "Epoch": "0", "Seq": "0"}, {"Id": "p\n", "Epoch": "0", "Seq": "0"},
        {"Id": "p" * 201, "Epoch": "0", "Seq": "0"}, {"Id": "p", "Epoch": "-1", "Seq": "0"},
        {"Id": "p", "Epoch": "0", "Seq": str(MOST_NUMBER + 1)}, {"Id": "p", "Epoch": "0x1", "Seq": "0"},
    ):  # fmt: skip
        with pytest.raises(RefusedError):
            parse(**bad)
