"""Long JSON texts are taken apart as the json module does it, in short steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from walstore.http import json_text
from walstore.http.json_text import SHORT_CHARS, JsonText
from walstore.http.protocol import RefusedError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
LONG = " " * SHORT_CHARS
ALPHABET = '[]{},:"\\u0aeE+-.1\x01 \ntruefalsn\u00e9'


def end_of(text: str) -> int | None:
    """Return where a value ends, None if there is none; both ways have to agree."""
    ends: list[int | None] = []
    for padding in ("", LONG):
        try:
            ends.append(JsonText(text + padding).value_end(0))
        except (ValueError, RecursionError):
            ends.append(None)
    assert ends[0] == ends[1], text
    return ends[0]


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_both_ways_find_the_end_of_a_value(
    value: Any, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert end_of(text) == len(text)
    assert end_of(text + ", 1") == len(text)


@given(VALUES, st.data())
def test_both_ways_refuse_the_same(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    end_of(text[:at] + data.draw(st.text(ALPHABET, max_size=3)) + text[at + 1 :])


@given(st.text(ALPHABET, max_size=12))
def test_both_ways_agree_on_any_text(text: str) -> None:
    end_of(text)


@given(st.lists(VALUES, max_size=8), st.sampled_from([None, 1]), st.booleans())
def test_the_elements_of_an_array(values: list[Any], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    spans = list(JsonText(text).elements(0))
    assert [json.loads(text[begin:end]) for begin, end in spans] == values
    assert all(text[begin:end].strip() == text[begin:end] for begin, end in spans)


@given(st.lists(VALUES, min_size=1, max_size=3), st.data())
def test_an_array_is_refused_where_the_json_module_refuses_it(
    values: list[Any], data: st.DataObject
) -> None:
    text = json.dumps(values)
    at = data.draw(st.integers(1, len(text)))
    damaged = text[:at] + data.draw(st.text(ALPHABET, max_size=3)) + text[at + 1 :]
    try:
        expected = json.loads(damaged, parse_constant=_refuse)
        found = list(JsonText(damaged).elements(0))
    except ValueError:
        with pytest.raises(ValueError):
            json.loads(damaged, parse_constant=_refuse)
        with pytest.raises(ValueError):
            list(JsonText(damaged).elements(0))
    else:
        assert [json.loads(damaged[begin:end]) for begin, end in found] == expected


def _refuse(name: str) -> None:
    raise ValueError(name)


def test_elements_that_are_large_or_deep() -> None:
    values = [
        "x" * 5000,
        [[[[1]]]],
        {"a": {"b": {"c": []}}},
        list(range(100)),
        {},
        "",
        "\\" * 50,
        1,
    ]
    text = json.dumps(values * 3)
    found = [json.loads(text[begin:end]) for begin, end in JsonText(text).elements(0)]
    assert found == values * 3


def test_what_is_odd() -> None:
    for text, end in (
        ("01", 1), ("-", None), ("1.", 1), ("1e", 1), ("-0.5E+3", 7), ("[1,]", None), ("[,1]", None),
        ('{"a"}', None), ('{"a":}', None), ('{"a":1,}', None), ("{1:2}", None), ('{"a":1 "b":2}', None),
        ('"\\ud800"', 8), ('"\\x"', None), ('"\\u12g4"', None), ('"\t"', None), ('"open', None),
        ("NaN", None), ("[Infinity]", None), ("nul", None), ("\u0661", None),
        ('[["a",1],{"b":[]},""]', 21), ("", None),
        ("[" * 2000 + "]" * 2000, None),
    ):  # fmt: skip
        with case(text[:20]):
            assert end_of(text) == end


def test_many_and_long_parts() -> None:
    for text in (
        json.dumps(list(range(100_000))),
        json.dumps({str(number): [number] for number in range(10_000)}),
        json.dumps("x" * 500_000),
        json.dumps('"\n\\é' * 100_000),
        json.dumps({"k" * 1000 + str(number): "v" * 1000 for number in range(50)}),
        "-" + "9" * 100_000,
    ):
        assert JsonText(text).value_end(0) == len(text)


def test_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MOST_PARTS", 5000)
    assert JsonText("[" + "[]," * 4998 + "{}]").value_end(0) == 14_998
    with pytest.raises(RefusedError) as refused:
        JsonText("[" + "[]," * 4999 + "{}]").value_end(0)
    assert refused.value.status == 413
