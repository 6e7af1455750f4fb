"""Hashes of rows are stored: they are those of the definition, value by value, whatever way they are made."""

from __future__ import annotations

import random
import struct
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.versioned import row_hash
from uploader.versioned.row_hash import hash_rows

_MASK = (1 << 64) - 1
_KNOWN = [
    (pa.int8(), -7, 0xEADC102712F9CF73),
    (pa.int64(), -7, 0xEADC102712F9CF73),
    (pa.uint64(), (1 << 64) - 1, 0xEE47C0020782A7DF),
    (pa.float32(), 1.5, 0xBBCB5EBD23884401),
    (pa.float64(), 1.5, 0xBBCB5EBD23884401),
    (pa.bool_(), True, 0xCD6B76A4822039FF),
    (pa.string(), "Köln", 0x31ABC729ADA673A0),
    (pa.large_string(), "Köln", 0x31ABC729ADA673A0),
    (pa.binary(), b"\0\xff", 0xBD241FA4F1F49F85),
    (pa.binary(3), b"abc", 0x1F2C38003E46E51F),
    (pa.decimal128(9, 2), Decimal("5.26"), 0x6ADE5D490031E6E3),
    (pa.date32(), date(2026, 11, 30), 0x85BB3FAEB4858885),
    (pa.time64("us"), time(1, 2, 3), 0xF901552E0A1257CF),
    (pa.timestamp("us"), datetime(2026, 11, 30, 1), 0x638C6F25DBED2BB8),
    (pa.string(), None, 0xE220A8397B1DCDAF),
]
"""The stored hash of a row whose only column has the name ``column``."""
_COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "small": (pa.int8(), st.integers(-128, 127)),
    "whole": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "count": (pa.uint64(), st.integers(0, _MASK)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "flag": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=5)),
    "long": (pa.large_string(), st.text(max_size=300)),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "price": (pa.decimal128(9, 2), st.decimals(-999, 999, places=2)),
    "at": (pa.timestamp("us"), st.datetimes()),
}


def _blake(value: bytes) -> int:
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "little")


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def _number(value: Any) -> int:
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<d", value), "little")
    if isinstance(value, datetime):
        return ((value - datetime(1970, 1, 1)) // timedelta(microseconds=1)) & _MASK
    if isinstance(value, int):
        return value & _MASK
    if isinstance(value, Decimal):
        value = f"{value:.2f}"
    return _blake(value.encode() if isinstance(value, str) else value)


def _defined(row: dict[str, Any], *, is_removed: bool) -> int:
    """Return the hash of a row as it has been since the first version, value by value."""
    total = sum(
        _mix(_mix(_number(value)) ^ _blake(name.encode()))
        for name, value in row.items()
        if value is not None
    )
    return _mix((total + is_removed * _blake(b"_deleted")) & _MASK)


@given(st.data())
@pytest.mark.slow
def test_hashes_are_those_of_the_definition(data: Any) -> None:
    rows = data.draw(st.integers(0, 12))
    values = {
        name: data.draw(st.lists(st.none() | found, min_size=rows, max_size=rows))
        for name, (_, found) in _COLUMNS.items()
    }
    removed = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    columns = {name: pa.array(values[name], kind) for name, (kind, _) in _COLUMNS.items()}
    found = hash_rows(columns, rows, pa.array(removed, pa.bool_())).to_pylist()
    given_rows = [{name: values[name][row] for name in values} for row in range(rows)]
    assert found == [
        _defined(row, is_removed=gone) for row, gone in zip(given_rows, removed, strict=True)
    ]


@pytest.mark.parametrize(("kind", "value", "expected"), _KNOWN)
def test_a_hash_is_the_one_that_files_have(kind: pa.DataType, value: Any, expected: int) -> None:
    assert hash_rows({"column": pa.array([value], kind)}, 1, None).to_pylist() == [expected]


@pytest.mark.parametrize(
    ("name", "is_removed", "expected"),
    [("a", False, 0xA49E3BA0C32F11FF), (None, True, 0x1431267749FAF533)],
)
def test_a_removal_has_the_hash_that_files_have(
    name: str | None, is_removed: bool, expected: int
) -> None:
    columns = {"id": pa.array([1], pa.int64()), "name": pa.array([name], pa.string())}
    found = hash_rows(columns, 1, pa.array([is_removed]))
    assert found.to_pylist() == [expected]


def test_the_steps_of_a_long_table_join_without_a_seam() -> None:
    chance = random.Random(1)
    count = row_hash.ENCODED_ROWS + 1000
    texts = [chance.choice([None, "", "a", f"{chance.randrange(1000)}"]) for _ in range(count)]
    numbers = list(range(count))
    columns = {"text": pa.array(texts, pa.string()), "number": pa.array(numbers, pa.int64())}
    found = hash_rows(columns, count, None).to_pylist()
    seams = (row_hash.MIXED_ROWS, row_hash.ENCODED_ROWS, count)
    for row in {at for seam in seams for at in range(seam - 3, min(seam + 3, count))}:
        given_row = {"text": texts[row], "number": numbers[row]}
        assert found[row] == _defined(given_row, is_removed=False)


def test_a_slice_of_a_table_has_the_hashes_of_its_rows() -> None:
    texts = pa.array(["x", None, "yy", "", "zzz"], pa.string())
    whole = hash_rows({"t": texts}, 5, None)
    assert hash_rows({"t": texts.slice(1, 3)}, 3, None).equals(whole.slice(1, 3))
