"""JSON documents: what is written, and what the getters insist on."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.manifests.document import Fields, check_u64, serialise
from uploader.setsum import Setsum
from walstore.errors import CorruptionError


def fields(**values: object) -> Fields:
    return Fields.parse(json.dumps(values).encode(), path="p")


def test_documents_are_compact_ordered_and_unescaped() -> None:
    assert serialise({"b": [1, {"ü": None}], "a": "日"}) == '{"b":[1,{"ü":null}],"a":"日"}'.encode()


def test_text_that_is_no_unicode_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        serialise({"writer": "\udc80"})


@given(st.integers())
def test_u64_bounds(number: int) -> None:
    if 0 <= number < 1 << 64:
        check_u64(number=number)
        assert fields(number=number).number("number") == number
    else:
        with pytest.raises(ValueError, match="number must be between"):
            check_u64(number=number)
        with pytest.raises(CorruptionError):
            fields(number=number).number("number")


def test_a_default_stands_in_for_no_field_only() -> None:
    default = Setsum.of_items([b"x"])
    assert fields().setsum("s", default=default) == default
    with pytest.raises(CorruptionError, match="'s' is not a setsum"):
        fields(s=None).setsum("s", default=default)


def test_long_values_are_cut_in_errors() -> None:
    with pytest.raises(CorruptionError) as caught:
        fields(s="x" * 1000).setsum("s")
    assert len(str(caught.value.found)) <= 80


@given(st.binary(max_size=60))
def test_no_bytes_do_anything_but_parse_or_raise_corruption(data: bytes) -> None:
    with contextlib.suppress(CorruptionError):
        Fields.parse(data, path="p")
