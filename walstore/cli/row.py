"""Rows: what a line of the input says of its record. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

from walstore.cli.errors import UsageError
from walstore.records import to_timestamp_us

Row = tuple[bytes, dict[str, Any]]
"""A value, and what its line says of key, stream, headers and timestamp, as an append takes them."""
_FIELDS: Final = frozenset(("offset", "timestamp_us", "key", "stream", "headers", "value"))


@dataclass(slots=True)
class LineParser:
    """Takes lines apart that may begin with a time and a key."""

    has_crlf: bool = False
    time_delimiter: bytes | None = None
    key_delimiter: bytes | None = None
    line: int = 0
    """Number of the last line, from 1."""

    def __call__(self, text: bytes) -> Row:
        """Return the record of a line. UsageError if its time is none."""
        self.line += 1
        options: dict[str, Any] = {}
        if self.has_crlf:
            text = text.removesuffix(b"\r")
        if self.time_delimiter is not None:
            moment, found, text = text.partition(self.time_delimiter)
            if not found:
                raise UsageError(
                    f"line {self.line} has no time before {_shown(self.time_delimiter)}"
                )
            options["timestamp_us"] = self._parse_time(moment)
        if self.key_delimiter is not None and self.key_delimiter in text:
            options["key"], _, text = text.partition(self.key_delimiter)
        return text, options

    def _parse_time(self, moment: bytes) -> int:
        text = moment.decode("utf-8", "replace").strip()
        if text.isascii() and text.isdigit() and len(text) < 20:
            return int(text)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(
                f"line {self.line} begins with no time: {text[:60]!r}; that is ISO 8601, or microseconds "
                "since 1970"
            ) from None
        return to_timestamp_us(found if found.tzinfo else found.replace(tzinfo=UTC))


@dataclass(slots=True)
class JsonParser:
    """Takes lines apart that are objects as ``walstore dump`` writes them."""

    line: int = 0
    """Number of the last line, from 1."""

    def __call__(self, text: bytes) -> Row:
        """Return the record of a line. UsageError if it is none."""
        self.line += 1
        try:
            found = json.loads(text)
            return _row(found)
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(
                f"line {self.line} is no record as 'walstore dump' writes it: {error}"
            ) from None


def _row(found: Any) -> Row:
    if not isinstance(found, dict):
        raise TypeError("not an object")
    if odd := sorted(found.keys() - _FIELDS):
        raise ValueError(f"no field is called {odd[0]!r}")
    if "value" not in found:
        raise ValueError("the field 'value' is missing")
    options: dict[str, Any] = {}
    if found.get("key") is not None:
        options["key"] = _bytes("key", found["key"])
    if (stream := found.get("stream")) is not None:
        if not isinstance(stream, str):
            raise TypeError("'stream' is no text")
        options["stream"] = stream
    if headers := found.get("headers"):
        if not isinstance(headers, dict):
            raise TypeError("'headers' is no object")
        options["headers"] = {name: _bytes(name, value) for name, value in headers.items()}
    if (moment := found.get("timestamp_us")) is not None:
        if not isinstance(moment, int) or isinstance(moment, bool):
            raise TypeError("'timestamp_us' is no whole number")
        options["timestamp_us"] = moment
    return _bytes("value", found["value"]), options


def _bytes(name: str, found: Any) -> bytes:
    if isinstance(found, str):
        return found.encode()
    if isinstance(found, dict) and found.keys() == {"base64"} and isinstance(found["base64"], str):
        try:
            return base64.b64decode(found["base64"], validate=True)
        except binascii.Error:
            raise ValueError(f"{name!r} is no base64") from None
    raise TypeError(f'{name!r} is neither text nor {{"base64": ...}}')


def _shown(delimiter: bytes) -> str:
    return repr(delimiter.decode("utf-8", "replace"))


Parser = Callable[[Iterator[bytes]], Iterator[Row]]
"""Makes a row of each line, in order."""
_NOTHING: Final[dict[str, Any]] = {}


def plain_rows(values: Iterator[bytes]) -> Iterator[Row]:
    """Return rows of lines that are values."""
    return zip(values, repeat(_NOTHING))
