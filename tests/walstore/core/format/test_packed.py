"""Packed: what no writer packs is refused, whatever type it has and however long it claims to be."""

from __future__ import annotations

import resource
from typing import Any

import msgpack
import pytest

from tests.cases import case
from walstore.core.format.packed import (
    MalformedError,
    Packed,
    require,
    require_number,
    unpack_headers,
    unpack_names,
)
from walstore.records import NO_HEADERS

ARRAYS_IN_ARRAYS = b"\xdd\x00\x00\xff\xff" * 900 + bytes(70_000)
"""Each says that it has 65 535 entries: 450 MiB before the first entry is there."""


def packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))


def test_names_are_texts() -> None:
    assert unpack_names(packed(["eu", "später", ""])) == ["eu", "später", ""]
    many = [f"stream {at}" for at in range(1000)]
    assert unpack_names(packed(many)) == many


def test_other_names_are_malformed() -> None:
    for data in (
        b"",
        b"\x90\x90",
        b"\xc1",
        packed({}),
        packed([1]),
        packed([b"bytes"]),
        packed([None]),
        packed([["nested"]]),
        packed(["\ud800"]),
        packed(msgpack.Timestamp(1)),
        packed([1] * 3000),
        packed(["x"] * 3000) + b"\x00",
        packed(["x"] * 3000)[:-1],
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 2000,
        b"\xd6\xff\xff\xff\xff\xff",
    ):
        with case(data), pytest.raises(MalformedError):
            unpack_names(data)


def test_arrays_in_arrays_take_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for unpack in (unpack_names, lambda data: unpack_headers(data, [1], NO_HEADERS)):
        with pytest.raises(MalformedError):
            unpack(ARRAYS_IN_ARRAYS)
    with pytest.raises(MalformedError):
        list(Packed(ARRAYS_IN_ARRAYS, "rows", longest_row=5).rows())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_headers_are_one_map_for_each_record_that_has_any() -> None:
    one, other = {"a": b"1", "b": b""}, {"c": b"2"}
    data = packed(one) + packed(other)
    assert list(unpack_headers(data, [9, 0, 4], NO_HEADERS)) == [one, NO_HEADERS, other]
    assert list(unpack_headers(data, [9, 4], NO_HEADERS)) == [one, other]
    assert list(unpack_headers(b"", [0, 0], NO_HEADERS)) == [NO_HEADERS, NO_HEADERS]


def test_other_headers_are_malformed() -> None:
    for data in (
        b"",
        packed({"a": b"1"}) * 2,
        packed({"a": b"1"})[:-1],
        packed({"a": b"1"}) + b"\x81",
        packed({"a": "text"}),
        packed({b"a": b"bytes"}),
        packed({1: b"1"}),
        packed({"a": None}),
        packed({"a": {"b": b"1"}}),
        packed({"a": [b"1"]}),
        packed(["a"]),
        packed([]),
        packed("text"),
        packed(7),
        packed(None),
        b"\x81\xa1a" * 3000,
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1\xff\xc4\x00",
    ):
        with case(data), pytest.raises(MalformedError):
            unpack_headers(data, [5], NO_HEADERS)


def test_a_map_is_taken_apart_key_by_key() -> None:
    taken = Packed(packed({"a": 1, "rows": [[1, 2], [3, 4]]}), "it", longest_row=2)
    found = {}
    for name in taken.fields():
        found[name] = list(taken.rows()) if name == "rows" else taken.value()
    taken.end()
    assert found == {"a": 1, "rows": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x82\xa1a\x01\xa1a\x02", "twice"),
        (packed({b"a": 1}), "is not str"),
        (packed({1: 1}), "is not str"),
        (packed([]), "cannot be read"),
        (b"\x82\xa1a\x01", "cannot be read"),
        (packed({"a": 1}) + b"\x00", "1 bytes more"),
        (packed({"a": [1, 2, 3]}), "cannot be read"),
    ],
)
def test_another_map_is_malformed(data: bytes, why: str) -> None:
    taken = Packed(data, "it", longest_row=2)
    with pytest.raises(MalformedError, match=why):
        [taken.value() for _ in taken.fields()]
        taken.end()


def test_a_truth_value_is_no_number() -> None:
    assert require_number(7, "n", least=7, most=7) == 7
    assert require("x", str, "s") == "x"
    for wrong in (True, 1.0, "1", None, 6, 8):
        with pytest.raises(MalformedError, match="n is not a number"):
            require_number(wrong, "n", least=7, most=7)
    with pytest.raises(MalformedError, match="s is not str"):
        require(b"x", str, "s")
