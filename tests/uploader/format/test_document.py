"""JSON documents: what is written, and what the getters insist on."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.format.document import Fields, check_u64, read_document, serialise
from uploader.format.setsum import Setsum
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


@pytest.mark.parametrize("depth", [100, 400, 900, 100_000])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_documents_are_corrupt_and_nothing_else(
    depth: int, brackets: tuple[bytes, bytes]
) -> None:
    left, right = brackets
    deep = b'{"s":%s1%s}' % (left * depth, right * depth)
    for read in (Fields.text, Fields.number, Fields.setsum, Fields.position, Fields.texts):
        with pytest.raises(CorruptionError) as caught:
            read(Fields.parse(deep, path="p"), "s")
        assert caught.value.path == "p"


def test_a_document_is_not_parsed_if_it_is_too_long() -> None:
    data = serialise({"writer": "w" * 1000})
    assert read_document(data, dict_of, path="p", most_bytes=len(data)) == {"writer": "w" * 1000}
    with pytest.raises(CorruptionError, match="too long: p"):
        read_document(data, dict_of, path="p", most_bytes=len(data) - 1)


def test_a_document_is_not_parsed_if_it_becomes_much_more_in_memory() -> None:
    with pytest.raises(CorruptionError, match="too many lists and objects"):
        read_document(b'{"a":[%s[]]}' % (b"[]," * 100_000), dict_of, path="p")
    braces = serialise({"writer": "{" * 500})
    assert read_document(braces, dict_of, path="p") == {"writer": "{" * 500}


def test_values_that_do_not_fit_each_other_are_corruption() -> None:
    def refuse(found: Fields) -> None:
        check_u64(sum=found.number("a") + found.number("b"))

    with pytest.raises(CorruptionError, match=r"out of range \(sum must be between.*: p"):
        read_document(serialise({"a": 2**63, "b": 2**63}), refuse, path="p")


def test_lists_of_texts_and_rows() -> None:
    assert fields(s=["a", "é"]).texts("s") == ["a", "é"]
    assert list(fields(s=[[1, 2], [3, 4]]).rows("s", 2)) == [[1, 2], [3, 4]]
    for wrong in ("a", ["a", 1], ["\ud800"], {"a": 1}):
        with pytest.raises(CorruptionError, match="'s' is not a list of strings"):
            fields(s=wrong).texts("s")
    for wrong in ([[1]], [[1, True]], [[1, -1]], [1], {}, [[1, 2.0]]):
        with pytest.raises(CorruptionError, match="'s"):
            list(fields(s=wrong).rows("s", 2))


def dict_of(found: Fields) -> dict[str, str]:
    return {"writer": found.text("writer")}


@pytest.mark.parametrize("value", [1.0, True, "1", None])
def test_what_is_no_whole_number_is_never_written(value) -> None:
    with pytest.raises(TypeError, match="number must be an int"):
        check_u64(number=value)
