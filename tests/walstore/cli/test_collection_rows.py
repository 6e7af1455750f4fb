"""Rows as JSON lines: what is written is read back, for every type that a column may have."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from uploader.versioned.schema import parse_type
from walstore.cli.collection_rows import cells, json_lines, parse_json_lines, write_parquet
from walstore.cli.errors import InputError

INSTANT = dt.datetime(2025, 6, 1, 12, 30, 15, 123456)
VALUES: dict[str, list[Any]] = {
    "bool": [True, False, None],
    "int8": [-128, 127, None],
    "int64": [-(2**63), 2**63 - 1, None],
    "uint64": [0, 2**64 - 1, None],
    "float": [0.5, -1.25, None],
    "double": [0.1, 1e300, math.inf, -math.inf, None],
    "string": ["", 'ä\n"', None],
    "large_string": ["x", None],
    "binary": [b"text", b"\xff\x00", b"", None],
    "large_binary": [b"\xff", None],
    "fixed_size_binary[2]": [b"\xff\x00", b"ab", None],
    "date32[day]": [dt.date(2025, 6, 1), dt.date(1901, 1, 1), None],
    "date64[ms]": [dt.date(2025, 6, 1), None],
    "time32[s]": [dt.time(12, 30, 15), None],
    "time64[us]": [dt.time(12, 30, 15, 1), None],
    "timestamp[us]": [INSTANT, None],
    "timestamp[s]": [dt.datetime(1999, 1, 1), None],
    "timestamp[us, tz=UTC]": [INSTANT.replace(tzinfo=dt.UTC), None],
    "timestamp[ms, tz=Europe/Berlin]": [dt.datetime(2025, 6, 1, tzinfo=dt.UTC), None],
    "duration[ms]": [dt.timedelta(seconds=-3), None],
    "decimal128(12, 2)": [Decimal("-12.50"), Decimal("0.00"), None],
    "decimal256(50, 3)": [Decimal("123456789012345678901234567890.125"), None],
}


def _round(column: pa.Array) -> pa.Table:
    table = pa.table({"c": column})
    return parse_json_lines(b"".join(json_lines(table)), table.schema, lower=0)


@pytest.mark.parametrize("kind", VALUES)
def test_every_type_goes_round(kind: str) -> None:
    column = pa.array(VALUES[kind], parse_type(kind))
    assert _round(column).column("c").combine_chunks().equals(column)
    assert cells(pa.table({"c": column}))[-1] == ("-",)


@given(st.lists(st.none() | st.binary() | st.text().map(str.encode), max_size=20))
def test_any_bytes_go_round(values: list[bytes | None]) -> None:
    column = pa.array([None, *values, b""], pa.binary())
    assert _round(column).column("c").to_pylist() == [None, *values, b""]


@given(st.lists(st.floats(), max_size=20))
def test_any_number_goes_round_as_strict_json(values: list[float]) -> None:
    lines = b"".join(json_lines(pa.table({"c": pa.array([0.0, *values])})))

    def refuse(text: str) -> None:
        raise AssertionError(text)

    for line in lines.splitlines():
        json.loads(line, parse_constant=refuse)
    found = _round(pa.array([0.0, *values])).column("c").to_pylist()
    assert list(map(str, found)) == list(map(str, [0.0, *values]))


def test_a_cell_is_one_line() -> None:
    table = pa.table({"c": ["plain", "two\nlines", "\x1b[2J"]})
    assert cells(table) == [("plain",), ('"two\\nlines"',), ('"\\u001b[2J"',)]


def test_what_a_row_leaves_out() -> None:
    columns = pa.schema([("id", pa.int64()), ("_t", pa.uint64()), ("_deleted", pa.bool_())])
    found = parse_json_lines(
        b'{"id":1}\n{"id":2,"_t":9}\n{"id":3,"_deleted":true}', columns, lower=7
    )
    assert found.to_pylist() == [
        {"id": 1, "_t": 7, "_deleted": False},
        {"id": 2, "_t": 9, "_deleted": False},
        {"id": 3, "_t": 7, "_deleted": True},
    ]
    assert parse_json_lines(b'{"id":1}', columns, lower=7).column_names == ["id"]
    assert parse_json_lines(b"\n \n", columns, lower=7).num_rows == 0


def test_values_that_do_not_fit() -> None:
    for kind, value in (
        ("int8", 128),
        ("int64", True),
        ("int64", 1.0),
        ("uint64", -1),
        ("bool", 1),
        ("double", "much"),
        ("string", 5),
        ("binary", {"base64": "?"}),
        ("binary", [1]),
        ("fixed_size_binary[2]", "abc"),
        ("date32[day]", "June"),
        ("time32[s]", "25:00:00"),
        ("timestamp[us]", 5),
        ("timestamp[us, tz=UTC]", "2025-06-01 00:00:00"),
        ("decimal128(3, 2)", "123.45"),
        ("decimal128(5, 2)", "5.256"),
        ("double", 2**53 + 1),
        ("timestamp[us]", "2025-06-01 00:00:00.0000001"),
        ("duration[s]", "long"),
        ("string", "\ud800"),
    ):
        with case((kind, value)):
            columns = pa.schema([("c", parse_type(kind))])
            lines = json.dumps({"c": None}) + "\n" + json.dumps({"c": value})
            with pytest.raises(InputError, match="line 2 of stdin: the column 'c' is "):
                parse_json_lines(lines.encode(), columns, lower=0)


def test_numbers_have_all_their_digits() -> None:
    for kind, text, expected in (
        ("decimal128(24, 2)", "12345678901234567.89", Decimal("12345678901234567.89")),
        ("decimal128(24, 2)", "9007199254740993.01", Decimal("9007199254740993.01")),
        ("decimal128(24, 2)", '"-1.5e3"', Decimal(-1500)),
        ("double", '"0.1"', 0.1),
    ):
        with case(kind, text):
            columns = pa.schema([("c", parse_type(kind))])
            found = parse_json_lines(b'{"c": %s}' % text.encode(), columns, lower=0)
            assert found["c"].to_pylist() == [expected]
    for text in ("NaN", "-Infinity", "1e400"):
        with case(text), pytest.raises(InputError, match="line 1 of stdin"):
            columns = pa.schema([("c", pa.float64())])
            parse_json_lines(b'{"c": %s}' % text.encode(), columns, lower=0)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    table = pa.table({"k": [1, 2]})
    reading = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        write_parquet(table, pipe)
        assert pipe.is_fifo()
        data = os.read(reading, 1 << 16)
    finally:
        os.close(reading)
    assert pq.read_table(pa.BufferReader(data)).equals(table)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        write_parquet(table, tmp_path)
