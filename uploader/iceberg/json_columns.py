"""Typed columns of a log's records: what a JSON value says, by its RFC 6901 pointer. Pure.

A value that does not fit its column is null there, and counted as a misfit: one that is no JSON object has
only such columns. A field that is missing or null is a null and no misfit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from walstore.core.batches.arrow import HEADERS_TYPE
from walstore.core.validation.arguments import as_text
from walstore.core.validation.exact import decimal_reader, read_json, to_float, with_digits
from walstore.errors import InvalidSettingsError

RECORD_COLUMNS: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_us", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("stream", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""What a copy has of each record beside the typed columns; ``timestamp_us`` is the record's own time."""
_MOST_COLUMNS: Final = 1000
_NAME: Final = re.compile(r"[^\s:.\x00-\x1f]{1,200}")
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """One column: its name, the name of its Iceberg type, and where in the JSON document its values are."""

    name: str
    kind: str
    """boolean, int, long, double, string, date, timestamptz or decimal(p,s)."""
    pointer: str
    """RFC 6901: ``/customer/name`` or ``/lines/0/price``."""

    def __post_init__(self) -> None:
        """Check all three; InvalidSettingsError."""
        if not _NAME.fullmatch(as_text(self.name, "the name of a column")):
            raise InvalidSettingsError(f"this cannot be the name of a column: {self.name[:80]!r}")
        if self.name in RECORD_COLUMNS.names:
            raise InvalidSettingsError(
                f"the table has a column {self.name!r} of its own; name it otherwise, as in "
                f"json_{self.name}:{self.kind}:/{self.name}"
            )
        arrow_type(self.kind)
        if not self.pointer.startswith("/") or re.search(r"~(?![01])", self.pointer):
            raise InvalidSettingsError(
                f"a JSON pointer begins with / and has ~ only as ~0 and ~1, not {self.pointer[:80]!r}"
            )

    @classmethod
    def parse(cls, text: str) -> JsonColumn:
        """Return the column of ``name:type`` or ``name:type:/pointer``; its member has its name."""
        name, _, rest = as_text(text, "a column").partition(":")
        kind, colon, pointer = rest.partition(":")
        if not kind:
            raise InvalidSettingsError(
                f"give a column as name:type or name:type:/pointer, not {text!r}"
            )
        own = f"/{name.replace('~', '~0').replace('/', '~1')}"
        return cls(name, kind, pointer if colon else own)

    def __str__(self) -> str:
        """Return what :meth:`parse` takes."""
        return f"{self.name}:{self.kind}:{self.pointer}"

    @property
    def path(self) -> tuple[str, ...]:
        """The pointer's parts."""
        parts = self.pointer[1:].split("/")
        return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


class Misfit(NamedTuple):
    """The first value that did not fit."""

    row: int
    column: str | None
    """None if the whole record is no JSON object."""


class Typed(NamedTuple):
    """Typed columns of some records."""

    columns: list[pa.Array]
    misfits: int
    """How many records have a value that does not fit, or are no JSON objects."""
    first: Misfit | None


def arrow_type(kind: str) -> pa.DataType:
    """Return the type of a column; InvalidSettingsError for a name of none."""
    found = _TYPES.get(kind)
    if found is not None:
        return found
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is not None:
        digits, scale = int(decimal[1]), int(decimal[2])
        if 1 <= digits <= 38 and scale <= digits:
            return pa.decimal128(digits, scale)
    raise InvalidSettingsError(
        f"a column's type is one of {', '.join(_TYPES)}, or decimal with up to 38 digits and how many "
        f"of them follow the point, in brackets, not {kind[:80]!r}"
    )


def check_columns(columns: Iterable[JsonColumn | str]) -> tuple[JsonColumn, ...]:
    """Return columns, those given as text parsed; InvalidSettingsError for names that are there twice.

    TypeError for one text.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list, such as [{columns!r:.80}], not one text")
    found = tuple(one if isinstance(one, JsonColumn) else JsonColumn.parse(one) for one in columns)
    names = [column.name.lower() for column in found]  # engines do not tell them apart by case
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidSettingsError(f"there are two columns {twice[0]!r}")
    if not 0 < len(found) <= _MOST_COLUMNS:
        raise InvalidSettingsError(f"a table has 1 to {_MOST_COLUMNS} typed columns")
    return found


def table_schema(columns: Sequence[JsonColumn]) -> pa.Schema:
    """Return the columns of the table."""
    typed = [pa.field(column.name, arrow_type(column.kind)) for column in columns]
    return pa.schema([*RECORD_COLUMNS, *typed])


def read_columns(values: Sequence[bytes], columns: Sequence[JsonColumn]) -> Typed:
    """Return the typed columns of records; without any, nothing is a misfit.

    Takes about 10 µs for a record of 1 KiB: belongs on a thread.
    """
    is_exact = any(column.kind.startswith("decimal") for column in columns)
    readers = [(column.path, _reader(column.kind)) for column in columns]
    found: list[list[Any]] = [[] for _ in columns]
    misfits = 0
    first: Misfit | None = None
    for row, value in enumerate(values if columns else ()):
        document = _document(value, is_exact=is_exact)
        misfit: Misfit | None = Misfit(row, None) if document is None else None
        for (path, read), items, column in zip(readers, found, columns, strict=True):
            item = None if document is None else _at(document, path)
            if item is not None:
                try:
                    item = read(item)
                except (ValueError, TypeError, ArithmeticError):
                    item, misfit = None, misfit or Misfit(row, column.name)
            items.append(item)
        misfits += misfit is not None
        first = first or misfit
    arrays = [
        pa.array(items, arrow_type(column.kind))
        for items, column in zip(found, columns, strict=True)
    ]
    return Typed(arrays, misfits, first)


def _document(value: bytes, *, is_exact: bool) -> dict[str, Any] | None:
    """Return a JSON object; None for anything else. Of a member that is there twice, the last one counts."""
    try:
        found = read_json(value.decode(), is_exact=is_exact)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _at(document: Any, path: Sequence[str]) -> Any:
    """Return what is at a pointer; None if there is nothing."""
    for part in path:
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and part.isascii() and part.isdigit():
            index = int(part) if len(part) < 10 else len(document)
            document = document[index] if index < len(document) else None
        else:
            return None
    return document


def _reader(kind: str) -> Callable[[Any], Any]:
    """Return what makes a value of a column of a JSON value; it raises for one that does not fit."""
    if kind in _READERS:
        return _READERS[kind]
    decimal = arrow_type(kind)
    return decimal_reader(decimal.precision, decimal.scale)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _integer(bits: int) -> Callable[[Any], int]:
    most = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not int or not -most <= value < most:
            raise TypeError
        return value

    return read


def _double(value: Any) -> float:
    if isinstance(value, str):
        raise TypeError
    return to_float(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # half of a surrogate pair is no text
    return value


def _date(value: Any) -> date:
    if not isinstance(value, str) or len(value) != len("2025-01-31"):
        raise TypeError
    return date.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    """Read a time as RFC 3339 or ISO 8601 have it; one without a zone is in UTC."""
    if not isinstance(value, str) or len(value) <= len("2025-01-31"):
        raise TypeError
    found = datetime.fromisoformat(with_digits(value, 6))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": _boolean,
    "int": _integer(32),
    "long": _integer(64),
    "double": _double,
    "string": _string,
    "date": _date,
    "timestamptz": _timestamp,
}
