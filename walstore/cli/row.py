"""Rows: what a line of the input says of its record, and whether a log takes it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

from walstore.cli.errors import UsageError
from walstore.core.batches.append_request import make_record
from walstore.core.batches.batch_builder import RECORD_OVERHEAD_BYTES
from walstore.core.runtime.clock import SystemClock
from walstore.core.validation.arguments import as_text
from walstore.core.validation.exact import read_json, with_digits
from walstore.errors import RecordTooLargeError
from walstore.records import to_timestamp_us

Row = tuple[bytes, Mapping[str, Any]]
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
        try:
            with_digits(text, 6)  # which fromisoformat would cut
        except ValueError as error:
            raise UsageError(f"line {self.line}: {error}: {text[:60]!r}") from None
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
            return _row(parse_json(text))
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
    if (headers := found.get("headers")) is not None:
        if not isinstance(headers, dict):
            raise TypeError("'headers' is no object")
        if headers:
            options["headers"] = {name: _bytes(name, value) for name, value in headers.items()}
    if (moment := found.get("timestamp_us")) is not None:
        if not isinstance(moment, int) or isinstance(moment, bool):
            raise TypeError("'timestamp_us' is no whole number")
        options["timestamp_us"] = moment
    return _bytes("value", found["value"]), options


def parse_json(text: bytes, *, is_exact: bool = False) -> Any:
    """Return the JSON value of a line; ValueError also if an object in it says something twice."""
    return read_json(text, is_exact=is_exact, pairs=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise ValueError(f"{twice!r} occurs twice")
    return found


def _bytes(name: str, found: Any) -> bytes:
    if isinstance(found, str):
        return as_text(found, repr(name)).encode()
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


class RowCheck:
    """Refuses rows that a log does not take, by the number of their line, before anything of them is sent."""

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        unit: str,
        most_bytes: int,
        lead_seconds: float | None = None,
    ) -> None:
        """Check the records of a log.

        ``options`` is what every record has unless its line says otherwise, ``unit`` what a record of the
        input is called, ``lead_seconds`` how far ahead a time may be; None if only the log knows.
        """
        self.unit = unit
        self._options = options
        self._most_bytes = most_bytes
        self._lead_us = None if lead_seconds is None else int(lead_seconds * 1e6)
        self._room = most_bytes - self._size(b"", options)
        self._number = 0

    def rows(self, found: Iterator[Row]) -> Iterator[Row]:
        """Yield rows with all options that they are appended with; UsageError, RecordTooLargeError."""
        for value, own in found:
            self._number += 1
            if own:
                chosen = {**self._options, **own}
                self._check(value, chosen)
                yield value, chosen
            else:
                if len(value) > self._room:
                    self._check(value, self._options)
                yield value, self._options

    def _check(self, value: bytes, chosen: Mapping[str, Any]) -> None:
        where = f"{self.unit} {self._number}"
        moment = chosen.get("timestamp_us", 0)
        if moment < 0:
            raise UsageError(f"{where}: its time is before 1970; it is microseconds since then")
        if self._lead_us is not None and moment > SystemClock().now_us() + self._lead_us:
            raise UsageError(
                f"{where}: its time is more than {self._lead_us // 10**6} seconds ahead of this machine's "
                "clock; is it in microseconds?"
            )
        try:
            size = self._size(value, chosen)
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
        if size > self._most_bytes:
            raise RecordTooLargeError(
                f"{where} is a record of {size} bytes with key, stream and headers; the most is "
                f"{self._most_bytes}, see --max-record-bytes",
                size_bytes=size,
                limit_bytes=self._most_bytes,
            )

    @staticmethod
    def _size(value: bytes, chosen: Mapping[str, Any]) -> int:
        """Return the size of a record; ValueError if it is none."""
        names = ("key", "stream", "headers", "timestamp_us")
        record = make_record(value, *(chosen.get(name) for name in names))
        return record.size_bytes - RECORD_OVERHEAD_BYTES
