"""Exact values: numbers and times are what their text says, or they are refused."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from walstore.core.validation.exact import decimal_reader, read_json, to_float, with_digits


@given(st.integers(-(10**18) + 1, 10**18 - 1), st.integers(0, 6))
def test_a_decimal_is_what_its_json_says(units: int, scale: int) -> None:
    number = Decimal(units).scaleb(-scale)
    read = decimal_reader(18 + 6, 6)
    for text in (str(number), f"{number:E}"):
        assert read(read_json(text, is_exact=True)) == number
        assert read(text) == number


def test_digits_that_have_no_place_are_refused() -> None:
    read = decimal_reader(4, 2)
    for value in ("1.234", "100", "1e999999999", 100, Decimal("0.001"), "NaN", " 1", "1_0", ""):
        with case(value), pytest.raises(ValueError, match=r"\w"):
            read(value)
    for odd in (True, 1.5, None, [1]):
        with case(odd), pytest.raises(TypeError):
            read(odd)
    with localcontext(prec=1):  # a caller's own context changes nothing
        assert read("12.34") == Decimal("12.34")


def test_a_float_is_near_or_exact_and_never_infinite_by_mistake() -> None:
    for value, expected in ((1, 1.0), ("0.1", 0.1), (Decimal("1e-7"), 1e-7), (2**60, 2.0**60)):
        with case(value):
            assert to_float(value) == expected
    assert to_float("-inf") == float("-inf")
    refused: list[Any] = [
        2**53 + 1,
        10**400,
        "1e400",
        float("inf"),
        Decimal("1e400"),
        "x",
        True,
        None,
    ]
    for value in refused:
        with case(value), pytest.raises((ValueError, TypeError)):
            to_float(value)


def test_only_zeros_are_cut_off_a_time() -> None:
    for text, digits, expected in (
        ("12:00:00.120", 2, "12:00:00.12"),
        ("12:00:00.000Z", 0, "12:00:00Z"),
        ("2025-01-31", 0, "2025-01-31"),
        ("12:00:00,1234560+01:00", 6, "12:00:00.123456+01:00"),
    ):
        with case(text):
            assert with_digits(text, digits) == expected
    with pytest.raises(ValueError, match="finer than 6 digits"):
        with_digits("12:00:00.1234567", 6)


def test_what_is_no_json() -> None:
    for text in ("NaN", "-Infinity", "[Infinity]", "{", ""):
        with case(text), pytest.raises(ValueError, match=r"\w"):
            read_json(text)
