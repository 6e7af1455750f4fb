"""JSON documents as wal3 writes and reads them: exact bytes out, checked shapes in. Pure.

Out: compact, keys in the order given, UTF-8 unescaped. In: unknown fields are tolerated, anything else
that wal3's own reader would refuse is a :class:`CorruptionError` that names the field. A document has a
longest length and a number of objects and lists in proportion to it, both checked before it is parsed, so
that what anybody can put in a bucket takes a bounded amount of memory. :func:`read_document` is the one way
in: whatever a reader makes of the fields, a value out of range is a CorruptionError, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn, TypeVar

from uploader.format.layout import MAX_U64
from uploader.format.setsum import Setsum
from walstore.core.validation.arguments import as_int
from walstore.errors import CorruptionError, FormatVersionError

MOST_BYTES: Final = 64 << 20
"""Longest manifest, snapshot, announced collection or commit record that is read: some 250 000 entries. One
that is rolled up has less than a thousandth of that."""
MOST_SMALL_BYTES: Final = 1 << 20
"""Longest document of another kind, such as a cursor; they have a few hundred bytes."""

_ABSENT: Final = object()
_T = TypeVar("_T")
_FREE_CONTAINERS: Final = 1024
_CONTAINER_BYTES: Final = 16
"""An empty list takes two bytes in a document and some eighty in memory. Honest documents have an object or
a list for each sixty bytes or more."""


def serialise(value: Any) -> bytes:
    """Return a JSON value as bytes; ValueError for text that is not valid Unicode."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def join_object(fields: Mapping[str, bytes]) -> bytes:
    """Return the object of fields whose values are serialised already. Names are plain ASCII."""
    return b"{%s}" % b",".join(b'"%s":%s' % (name.encode(), data) for name, data in fields.items())


def join_list(values: Iterable[bytes]) -> bytes:
    """Return the list of values that are serialised already."""
    return b"[%s]" % b",".join(values)


def position(offset: int) -> dict[str, int]:
    """Return an offset as wal3 writes one."""
    return {"offset": offset}


def check_u64(**numbers: int) -> None:
    """Raise ValueError naming the first of the numbers that is not between 0 and 2**64 - 1.

    TypeError for one that is no int, or a bool: JSON has them, too, and no reader would take them.
    """
    for name, number in numbers.items():
        if type(number) is not int:
            as_int(number, name)
        if not 0 <= number <= MAX_U64:
            raise ValueError(f"{name} must be between 0 and 2**64 - 1, not {number}")


def read_document(
    data: bytes, build: Callable[[Fields], _T], *, path: str, most_bytes: int = MOST_BYTES
) -> _T:
    """Return what ``build`` makes of a document found at ``path``.

    CorruptionError if the document is longer than ``most_bytes``, if it is not one JSON object in UTF-8, if
    a field has another shape, or if ``build`` raises ValueError: then the fields do not fit each other.
    """
    fields = Fields.parse(data, path=path, most_bytes=most_bytes)
    try:
        return build(fields)
    except ValueError as error:
        raise CorruptionError(f"a value is out of range ({error})", path=path) from error


class Fields:
    """One JSON object of a document, read field by field.

    Each getter raises CorruptionError, with the object's ``path`` and the field's place, if the field is
    missing or of another shape.
    """

    __slots__ = ("_fields", "_place", "path")

    def __init__(self, fields: Mapping[str, Any], *, path: str, place: str = "") -> None:
        self._fields = fields
        self._place = place
        self.path = path

    @classmethod
    def parse(cls, data: bytes, *, path: str, most_bytes: int = MOST_BYTES) -> Fields:
        """Read a document of at most so many bytes; CorruptionError if it is not one JSON object in UTF-8.

        Readers of documents call :func:`read_document`.
        """
        _check_size(data, path, most_bytes)
        try:
            document = json.loads(
                data.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant
            )
        except (ValueError, RecursionError) as error:
            raise CorruptionError(f"not a JSON document ({error})", path=path) from error
        if not isinstance(document, dict):
            raise CorruptionError("not a JSON object", path=path, found=type(document).__name__)
        return cls(document, path=path)

    def has(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self._fields.get(name) is not None

    def check_version(self, supported: int, what: str) -> None:
        """Raise FormatVersionError, saying ``what`` is newer, unless the field ``version`` is this one."""
        found = self.number("version")
        if found != supported:
            raise FormatVersionError(what, path=self.path, found=found, supported=supported)

    def text(self, name: str) -> str:
        """Return a string of valid Unicode."""
        value = self._get(name)
        if not _is_text(value):
            self._refuse(name, "a string of valid Unicode", value)
        text: str = value
        return text

    def number(self, name: str, *, maximum: int = MAX_U64) -> int:
        """Return an integer between 0 and ``maximum``."""
        value = self._get(name)
        # bool is an int to Python, but true is no number to JSON.
        if type(value) is not int or not 0 <= value <= maximum:
            self._refuse(name, f"an integer between 0 and {maximum}", value)
        return value

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self._get(name)
        if not isinstance(value, bool):
            self._refuse(name, "true or false", value)
        return value

    def text_map(self, name: str) -> dict[str, str]:
        """Return an object whose values are strings; all of valid Unicode."""
        value = self._get(name)
        if not isinstance(value, dict) or not all(map(_is_text, (*value, *value.values()))):
            self._refuse(name, "an object of strings", value)
        texts: dict[str, str] = value
        return texts

    def position(self, name: str) -> int:
        """Return the offset of a log position."""
        value = self._get(name)
        offset: Any = value.get("offset") if isinstance(value, dict) else None
        if not _is_u64(offset):
            self._refuse(name, "a log position", value)
        return int(offset)

    def setsum(self, name: str, *, default: Setsum | None = None) -> Setsum:
        """Return a setsum, given in canonical hex; ``default``, if there is one, for no field."""
        if default is not None and name not in self._fields:
            return default
        value = self._get(name)
        if not isinstance(value, str):
            self._refuse(name, "a setsum", value)
        try:
            return Setsum.from_hexdigest(value)
        except ValueError:
            self._refuse(name, "a setsum", value)

    def objects(self, name: str) -> Iterator[Fields]:
        """Yield the objects of a list."""
        values = self._get(name)
        if not isinstance(values, list):
            self._refuse(name, "a list", values)
        for index, value in enumerate(values):
            place = f"{self._at(name)}[{index}]"
            if not isinstance(value, dict):
                self._refuse(f"{name}[{index}]", "an object", value)
            yield Fields(value, path=self.path, place=place)

    def texts(self, name: str) -> list[str]:
        """Return a list of strings of valid Unicode."""
        values = self._get(name)
        if not isinstance(values, list) or not all(map(_is_text, values)):
            self._refuse(name, "a list of strings", values)
        return values

    def rows(self, name: str, width: int) -> Iterator[list[int]]:
        """Yield the rows of a list of lists, each of ``width`` integers between 0 and 2**64 - 1."""
        values = self._get(name)
        if not isinstance(values, list):
            self._refuse(name, "a list", values)
        for index, row in enumerate(values):
            if not (isinstance(row, list) and len(row) == width and all(map(_is_u64, row))):
                self._refuse(f"{name}[{index}]", f"a list of {width} numbers", row)
            yield row

    def object(self, name: str) -> Fields:
        """Return the object in a field."""
        value = self._get(name)
        if not isinstance(value, dict):
            self._refuse(name, "an object", value)
        return Fields(value, path=self.path, place=self._at(name))

    def names(self) -> list[str]:
        """Return the names of all fields; CorruptionError for one that is not valid Unicode."""
        for name in self._fields:
            if not _is_text(name):
                self._refuse(ascii(name)[:80], "a field with a name of valid Unicode", name)
        return list(self._fields)

    def raw(self, name: str) -> Any:
        """Return whatever the field holds, None if it is not there."""
        return self._fields.get(name)

    def _get(self, name: str) -> Any:
        value = self._fields.get(name, _ABSENT)
        if value is _ABSENT:
            raise CorruptionError(f"field '{self._at(name)}' is missing", path=self.path)
        return value

    def _at(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _refuse(self, name: str, expected: str, found: Any) -> NoReturn:
        raise CorruptionError(
            f"field '{self._at(name)}' is not {expected}",
            path=self.path,
            expected=expected,
            found=_shown(found),
        )


def _check_size(data: bytes, path: str, most_bytes: int) -> None:
    if len(data) > most_bytes:
        raise CorruptionError(
            "a document is too long", path=path, expected=f"{most_bytes} bytes", found=len(data)
        )
    containers = data.count(b"[") + data.count(b"{")
    most = _FREE_CONTAINERS + len(data) // _CONTAINER_BYTES
    if containers > most:
        raise CorruptionError(
            "a document has too many lists and objects for its length",
            path=path,
            expected=most,
            found=containers,
        )


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_u64(value: Any) -> bool:
    # bool is an int to Python, but true is no number to JSON.
    return type(value) is int and 0 <= value <= MAX_U64


def _shown(value: Any) -> str:
    """Return a value for a message. Not of lists and objects: those may be long, and nested too deeply."""
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, str):
        value = value[:80]
    return ascii(value)[:80]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
