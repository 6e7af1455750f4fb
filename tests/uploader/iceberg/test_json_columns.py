"""Typed columns: which JSON values fit, which are null, and which columns there can be."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from uploader.iceberg.json_columns import JsonColumn, Misfit, check_columns, read_columns
from walstore.errors import InvalidSettingsError

MISFIT = object()
NOON = dt.datetime(2025, 1, 31, 12, tzinfo=dt.UTC)
FITS: dict[str, dict[str, Any]] = {
    "boolean": {"true": True, "false": False, "1": MISFIT, '"true"': MISFIT},
    "int": {"7": 7, "-2147483648": -(1 << 31), "2147483648": MISFIT, "7.0": MISFIT, "true": MISFIT},
    "long": {"9223372036854775807": (1 << 63) - 1, "9223372036854775808": MISFIT, '"7"': MISFIT},
    "double": {
        "7": 7.0,
        "-1e3": -1000.0,
        "1e999": MISFIT,
        "1" * 400: MISFIT,
        "[]": MISFIT,
        "9007199254740993": MISFIT,
        '"7"': MISFIT,
    },
    "string": {'"a"': "a", '""': "", '"\\ud800"': MISFIT, "7": MISFIT, "{}": MISFIT},
    "date": {
        '"2025-01-31"': dt.date(2025, 1, 31),
        '"2025-02-30"': MISFIT,
        '"2025-01-31T12:00"': MISFIT,
        "20250131": MISFIT,
    },
    "timestamptz": {
        '"2025-01-31T12:00:00Z"': NOON,
        '"2025-01-31T13:00:00.000001+01:00"': NOON.replace(microsecond=1),
        '"2025-01-31 12:00"': NOON,
        '"2025-01-31T12:00:00.000000000Z"': NOON,
        '"2025-01-31T12:00:00.000000001Z"': MISFIT,
        '"20250131T120000,0000009Z"': MISFIT,
        '"2025-01-31"': MISFIT,
        '"0001-01-01T00:00:00+14:00"': MISFIT,
        "1738324800": MISFIT,
    },
    "decimal(4,2)": {
        "12.34": Decimal("12.34"),
        '"-99.99"': Decimal("-99.99"),
        "1e1": Decimal("10.00"),
        "12.340": Decimal("12.34"),
        "12.345": MISFIT,
        "100": MISFIT,
        "1e999999999": MISFIT,
        '"NaN"': MISFIT,
        '" 1"': MISFIT,
        '"1_0"': MISFIT,
    },
    "decimal(38,0)": {"9" * 38: Decimal("9" * 38), "1" + "0" * 38: MISFIT},
}


def test_which_values_fit() -> None:
    for kind, values in FITS.items():
        column = JsonColumn.parse(f"a:{kind}")
        for text, expected in {**values, "null": None}.items():
            with case(kind, text[:40]):
                found = read_columns([b'{"a": %s}' % text.encode()], [column])
                assert found.columns[0].to_pylist() == [None if expected is MISFIT else expected]
                assert found.misfits == (expected is MISFIT)
                assert found.first == (Misfit(0, "a") if expected is MISFIT else None)


@pytest.mark.parametrize(
    "value",
    [
        b"", b"x", b"[1]", b"7", b"null", b'{"a": 1', b'{"a": NaN}', b'{"a": 1}}', b'\xff{"a": 1}',
        b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16"), b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_json_object_has_no_values(value: bytes) -> None:
    columns = [JsonColumn.parse("a:long"), JsonColumn.parse("b:string")]
    found = read_columns([b'{"b": "y"}', value], columns)
    assert [column.to_pylist() for column in found.columns] == [[None, None], ["y", None]]
    assert (found.misfits, found.first) == (1, Misfit(1, None))


def test_pointers() -> None:
    document = {"a": {"b/c": [10, {"~": 11}]}, "": 12, "l.m": 13}
    for pointer, expected in {
        "/a/b~1c/0": 10, "/a/b~1c/1/~0": 11, "/": 12, "/l.m": 13, "/a/b~1c/2": None, "/a/b~1c/-1": None,
        "/a/b~1c/" + "9" * 5000: None, "/a/b": None, "/a/b~1c/0/x": None, "/none/x": None,
    }.items():  # fmt: skip
        with case(pointer[:20]):
            found = read_columns(
                [json.dumps(document).encode()], [JsonColumn("v", "long", pointer)]
            )
            assert (found.columns[0].to_pylist(), found.misfits) == ([expected], 0)
    assert JsonColumn.parse("a/~b:long").path == ("a/~b",)
    found = read_columns([b'{"a": 1, "a": 2}'], [JsonColumn.parse("a:long")])
    assert found.columns[0].to_pylist() == [2]


def test_columns_that_cannot_be() -> None:
    for text in (
        "", "a", "a:", "a:text", "a:decimal(39,0)", "a:decimal(2,3)", "a:decimal(0,0)", ":long", "a b:long",
        "offset:long", "body:string", "a:long:b", "a:long:/~2", "a.b:long", "a" * 201 + ":long",
    ):  # fmt: skip
        with case(text), pytest.raises(InvalidSettingsError):
            JsonColumn.parse(text)
    for columns in ([], ["a:long", "A:int"], [f"c{n}:int" for n in range(1001)]):
        with case(len(columns)), pytest.raises(InvalidSettingsError):
            check_columns(columns)
    with pytest.raises(TypeError):
        check_columns([7])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        check_columns("a:long")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "b"]), JSON) | JSON | st.binary(), max_size=4)
)
def test_any_record_has_its_columns(documents: list[Any]) -> None:
    values = [
        one if isinstance(one, bytes) else json.dumps(one).encode(errors="replace")
        for one in documents
    ]
    columns = check_columns([f"{kind[:3]}:{kind}:/a" for kind in FITS if kind != "decimal(38,0)"])
    found = read_columns(values, columns)
    assert [len(column) for column in found.columns] == [len(values)] * len(columns)
    assert 0 <= found.misfits <= len(values)
    for column in found.columns:
        assert isinstance(column, pa.Array)
        column.validate(full=True)
