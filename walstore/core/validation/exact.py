"""Exact values: what the JSON and the text of a number or a time say, without a change of the value. Pure.

All ways from records into typed columns use these rules: collections, the command line, and Iceberg tables.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final, NoReturn

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WORDS: Final = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_FRACTION: Final = re.compile(r"(?<=[0-9])[.,]([0-9]+)", re.ASCII)


def read_json(
    data: str | bytes, *, is_exact: bool = False, pairs: Callable[[Any], Any] | None = None
) -> Any:
    """Return the value of a JSON text; ValueError or RecursionError if it is none.

    ``NaN`` and ``Infinity``, which Python's module takes, are no JSON. With ``is_exact`` numbers that have a
    fraction or an exponent are ``Decimal`` and have all their digits. ``pairs`` makes an object of its
    members.
    """
    return json.loads(
        data,
        parse_float=Decimal if is_exact else None,
        parse_constant=_refused,
        object_pairs_hook=pairs,
    )


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def decimal_reader(precision: int, scale: int) -> Callable[[object], Decimal]:
    """Return what makes a decimal of a JSON number or its text.

    It raises ValueError for a number that would change, and TypeError for what is none and for a ``float``,
    which may have lost digits already: read with ``is_exact``.
    """
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    quantum = Decimal(1).scaleb(-scale)

    def read(value: object) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, (int, str, Decimal)):
            raise TypeError("it is neither a number nor its text")
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            raise ValueError("this text is no number")
        try:
            found: Decimal = context.quantize(Decimal(value), quantum)
        except ArithmeticError:
            raise ValueError(
                f"{str(value)[:60]} does not fit: there are {precision} digits, {scale} after the point"
            ) from None
        return found

    return read


def to_float(value: object) -> float:
    """Return the double of a JSON number, or of a text that is a number, NaN or an infinity.

    TypeError or ValueError for anything else. A number with a fraction becomes the nearest one. A whole
    number must be one, and none may be too large.
    """
    if isinstance(value, str):
        if _WORDS.fullmatch(value):
            return float(value)
        if not _NUMBER.fullmatch(value):
            raise ValueError("this text is no number")
    elif isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise TypeError("it is neither a number nor its text")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError("a number is too large")
    if isinstance(value, int) and int(found) != value:
        raise ValueError("a double does not have all digits of this whole number")
    return found


def with_digits(text: str, digits: int) -> str:
    """Return the text of a time with at most so many digits of a second; ValueError if others are not 0."""
    found = _FRACTION.search(text)
    if found is None or len(found[1]) <= digits:
        return text
    if found[1][digits:].strip("0"):
        raise ValueError(f"the time is finer than {digits} digits of a second")
    kept = f".{found[1][:digits]}" if digits else ""
    return f"{text[: found.start()]}{kept}{text[found.end() :]}"
