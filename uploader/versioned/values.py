"""Values: JSON values and Arrow columns as columns of a collection, each exactly or not at all. Pure.

A number that has no place in a column is refused and never rounded. Between floats and decimals the shortest
text of a float counts: 5.26 is a ``decimal128(9, 2)`` and 5.256 is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from walstore.core.validation.exact import decimal_reader, to_float, with_digits
from walstore.errors import InvalidSettingsError

_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def has_decimals(columns: pa.Schema) -> bool:
    """Return whether JSON must be read with all digits of its numbers."""
    return any(kinds.is_decimal(field.type) for field in columns)


def numbers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return JSON numbers as a column; ValueError, TypeError or OverflowError.

    In a column of times whole numbers count its units.
    """
    if kinds.is_decimal(kind):
        return pa.array(_each(values, decimal_reader(kind.precision, kind.scale)), kind)
    if kinds.is_floating(kind):
        return _floats(values, kind)
    return pa.array(_each(values, _whole), kind)


def times(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """Return the texts of dates, times of day or timestamps as a column; ValueError.

    Digits of a second for which the column has no place must be 0.
    """
    if not kinds.is_time(kind):
        digits = _DIGITS[kind.unit] if kinds.is_timestamp(kind) else 0
        fitting = [text and with_digits(text, digits) for text in texts]
        return pc.cast(pa.array(fitting, pa.string()), kind)
    days = [text and f"1970-01-01 {with_digits(text, _DIGITS[kind.unit])}" for text in texts]
    units = pc.cast(pa.array(days, pa.string()), pa.timestamp(kind.unit)).cast(pa.int64())
    return (units.cast(pa.int32()) if kinds.is_time32(kind) else units).cast(kind)


def cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return a column in another type, each value as it is.

    InvalidSettingsError with the column ``name``, the value and the number of its row, from 0, for the first
    one that would change.
    """
    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type.equals(kind):
        return column
    if not kinds.is_null(column.type) and _family(column.type) != _family(kind):
        raise InvalidSettingsError(f"the column {name!r} must be {kind}, not {column.type}")
    try:
        return _cast(column, kind)
    except pa.ArrowNotImplementedError:
        raise InvalidSettingsError(
            f"the column {name!r} must be {kind}, not {column.type}"
        ) from None
    except pa.ArrowInvalid as error:
        row = _first_misfit(column, kind)
        raise InvalidSettingsError(
            f"the column {name!r} is {kind}, which does not have the value {_shown(column, row)} of row "
            f"{row} ({error}); nothing was written"
        ) from None


def _each(values: Sequence[Any], read: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else read(value) for value in values]


def _whole(value: object) -> int:
    if type(value) is int:
        return value
    if isinstance(value, (float, Decimal)):
        raise TypeError("a fraction is no whole number")
    raise TypeError(
        "true and false are no numbers" if isinstance(value, bool) else "it is no number"
    )


def _floats(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    found = _each(values, to_float)
    column = pc.cast(pa.array(found, pa.float64()), kind)
    if not kinds.is_float64(kind):
        _check_infinities(pa.array(found, pa.float64()), column)
        pa.array([value for value in values if type(value) is int], kind)  # these must be exact
    return column


def _check_infinities(given: pa.Array, found: pa.Array) -> None:
    if not pc.sum(pc.is_inf(given)).equals(pc.sum(pc.is_inf(found))):
        raise pa.ArrowInvalid("a number is too large")


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of the same family; ArrowInvalid if a value would change."""
    given = column.type
    if kinds.is_decimal(kind) and (kinds.is_integer(given) or kinds.is_floating(given)):
        return pc.cast(pc.cast(column, pa.string()), kind)
    if kinds.is_floating(kind) and kinds.is_decimal(given):
        found = pc.cast(pc.cast(column, pa.string()), kind)
        if not pc.cast(pc.cast(found, pa.string()), given).equals(column):
            raise pa.ArrowInvalid("the float has other digits")
        return found
    found = pc.cast(column, kind, safe=True)
    if kinds.is_floating(kind) and kinds.is_floating(given):
        _check_infinities(column, found)
    return found


def _first_misfit(column: pa.Array, kind: pa.DataType) -> int:
    """Return the row of the first value that does not fit: halves the rows that all do."""
    fitting, rows = 0, len(column)
    while rows - fitting > 1:
        middle = (fitting + rows) // 2
        try:
            _cast(column.slice(fitting, middle - fitting), kind)
            fitting = middle
        except pa.ArrowException:
            rows = middle
    return fitting


def _shown(column: pa.Array, row: int) -> str:
    """Return a value as text, also one that Python has no type for."""
    found = column.slice(row, 1)
    try:
        return str(pc.cast(found, pa.string())[0].as_py())[:60]
    except pa.ArrowException:
        return repr(found[0].as_py())[:60]


def _family(kind: pa.DataType) -> str:
    """Return a word that types have in common between which values are converted."""
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        return "number"
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return "text"
    if (
        kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_fixed_size_binary(kind)
        or kinds.is_binary_view(kind)
    ):
        return "bytes"
    return str(kind).partition("[")[0].rstrip("0123456789")
