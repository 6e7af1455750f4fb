"""JSON documents as wal3 writes and reads them: exact bytes out, checked shapes in. Pure.

Out: compact, keys in the order given, UTF-8 unescaped. In: unknown fields are tolerated, anything else
that wal3's own reader would refuse is a :class:`CorruptionError` that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

from uploader.layout import MAX_U64
from uploader.setsum import Setsum
from walstore.errors import CorruptionError

_ABSENT: Final = object()


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
    """Raise ValueError naming the first of the numbers that is not between 0 and 2**64 - 1."""
    for name, number in numbers.items():
        if not 0 <= number <= MAX_U64:
            raise ValueError(f"{name} must be between 0 and 2**64 - 1, not {number}")


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
    def parse(cls, data: bytes, *, path: str) -> Fields:
        """Read a document; CorruptionError if it is not one JSON object in UTF-8."""
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

    def text(self, name: str) -> str:
        """Return a string of valid Unicode."""
        value = self._get(name)
        if not isinstance(value, str):
            self._refuse(name, "a string", value)
        try:
            value.encode()
        except UnicodeEncodeError:
            self._refuse(name, "valid Unicode", value)
        return value

    def number(self, name: str, *, maximum: int = MAX_U64) -> int:
        """Return an integer between 0 and ``maximum``."""
        value = self._get(name)
        # bool is an int to Python, but true is no number to JSON.
        if type(value) is not int or not 0 <= value <= maximum:
            self._refuse(name, f"an integer between 0 and {maximum}", value)
        return value

    def position(self, name: str) -> int:
        """Return the offset of a log position."""
        value = self._get(name)
        offset = value.get("offset") if isinstance(value, dict) else None
        # bool is an int to Python, but true is no number to JSON.
        if type(offset) is not int or not 0 <= offset <= MAX_U64:
            self._refuse(name, "a log position", value)
        return offset

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

    def object(self, name: str) -> Fields:
        """Return the object in a field."""
        value = self._get(name)
        if not isinstance(value, dict):
            self._refuse(name, "an object", value)
        return Fields(value, path=self.path, place=self._at(name))

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
        shown = repr(found)[:80]
        raise CorruptionError(
            f"field '{self._at(name)}' is not {expected}",
            path=self.path,
            expected=expected,
            found=shown,
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
