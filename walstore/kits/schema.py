"""Schema: how values of a type become records, with a name and a version, and come back from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar, cast

from walstore.core.batches.conditions import check_name
from walstore.core.runtime.extras import needs_extra
from walstore.core.validation.arguments import as_count
from walstore.errors import WalError
from walstore.positions.groups.group import Job
from walstore.records import Record

T = TypeVar("T")
HEADER: Final = "walstore.schema"
"""The header with a record's schema: its name, a slash, and its version."""
_PLAIN: Final[dict[object, type | tuple[type, ...]]] = {
    dict: dict,
    list: list,
    str: str,
    bool: bool,
    int: int,
    float: (int, float),
}
"""Types that JSON has itself, and what values of each may be."""


class SchemaError(WalError):
    """A record is not one of the schema, is of a newer version, or cannot be decoded; it stays in the log.

    ``record`` is the record as it is in the log and ``offset`` its position; what the decoder raised is
    chained.
    """

    def __init__(self, message: str, *, record: Record) -> None:
        super().__init__(f"the record at offset {record.offset} {message}")
        self.record = record
        self.offset = record.offset


class Schema(Generic[T]):
    """How values of a type become records and come back: a name, a version, and an encoding, by default JSON.

    Each record has the header ``walstore.schema`` with name and version, such as ``Order/2``. What was
    encoded by an older version, or by none, goes through ``upgrade``.
    """

    def __init__(
        self,
        kind: type[T],
        *,
        name: str | None = None,
        version: int = 1,
        upgrade: Callable[[Record, int], T] | None = None,
        dumps: Callable[[T], bytes] | None = None,
        loads: Callable[[bytes], T] | None = None,
    ) -> None:
        """Describe how values of ``kind`` are written.

        Args:
            kind: dict, list, str, int, float or bool, as JSON has them; or a dataclass, a pydantic model, a
                TypedDict or anything else that pydantic validates, for which the extra ``typed`` is needed.
            name: 1 to 256 characters; by default that of ``kind``.
            version: 1 to 2**31 - 1. Raise it with each change that older programs or records do not fit.
            upgrade: Called with a record of an older version, and that version, 0 for a record without the
                header; returns its value. Without it such records are a SchemaError.
            dumps: Encodes a value, together with ``loads``, in place of JSON.
            loads: Decodes what ``dumps`` made; whatever it raises becomes a SchemaError.
        """
        if (dumps is None) != (loads is None):
            raise ValueError("dumps and loads go together: give both, or none for JSON")
        self.name = check_name(name if name is not None else kind.__name__, "schema")
        """As given."""
        self.version = as_count(version, "version", high=(1 << 31) - 1)
        """As given."""
        self.headers: Mapping[str, bytes] = {HEADER: f"{self.name}/{self.version}".encode()}
        """The header of each record, for appends that are made otherwise than by a TypedLog."""
        self._upgrade = upgrade
        if dumps is not None and loads is not None:
            self._dumps, self._loads = dumps, loads
        else:
            self._dumps, self._loads = (
                _plain(kind) if kind in _PLAIN else _validated(kind, self.name)
            )

    def encode(self, value: T) -> bytes:
        """Return the value of a record. Raises TypeError for one of another type, or what ``dumps`` does."""
        return self._dumps(value)

    def decode(self, record: Record | Job) -> T:
        """Return the value of a record, or of a job's. Raises SchemaError."""
        found = record.record if isinstance(record, Job) else record
        version = self._version_of(found)
        try:
            if version == self.version:
                return self._loads(found.value)
            if self._upgrade is not None:
                return self._upgrade(found, version)
        except Exception as error:
            what = f"cannot be decoded as {self.name}/{version}: {_short(error)}"
            raise SchemaError(what, record=found) from error
        older = f"has version {version} of {self.name}" if version else f"has no header {HEADER}"
        raise SchemaError(f"{older}; give the schema upgrade= to read it", record=found)

    def _version_of(self, record: Record) -> int:
        """Return the version of a record, 0 without the header."""
        written = record.headers.get(HEADER)
        if written is None:
            return 0
        name, _, version = written.decode(errors="replace").rpartition("/")
        if name != self.name or not (version.isascii() and version.isdigit()) or len(version) > 10:
            raise SchemaError(f"is of schema {written!r}, not {self.name}", record=record)
        if int(version) > self.version:
            raise SchemaError(
                f"has version {version} of {self.name}, this program knows {self.version}: update it",
                record=record,
            )
        return int(version)

    def __repr__(self) -> str:
        return f"<Schema {self.name}/{self.version}>"


def _plain(kind: type[T]) -> tuple[Callable[[T], bytes], Callable[[bytes], T]]:
    """Return how values of a type are written that JSON has itself."""
    allowed = _PLAIN[kind]

    def check(value: object) -> T:
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
        return cast("T", value)

    def dumps(value: T) -> bytes:
        text = json.dumps(check(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()

    return dumps, lambda data: check(json.loads(data))


def _validated(kind: type[T], name: str) -> tuple[Callable[[T], bytes], Callable[[bytes], T]]:
    """Return how values of a type are written that pydantic knows."""
    with needs_extra("typed", f"the schema {name}"):
        from pydantic import PydanticUserError, TypeAdapter
        from pydantic_core import PydanticSerializationError
    try:
        adapter = TypeAdapter(kind)
    except PydanticUserError as error:
        raise TypeError(
            f"pydantic cannot write {name}: give dumps= and loads=, or: {_short(error)}"
        ) from error

    checked: type = kind
    try:
        isinstance(None, kind)
    except TypeError:  # a TypedDict, or dict[str, int]
        checked = object

    def dumps(value: T) -> bytes:
        if not isinstance(value, checked):  # of such pydantic writes what it finds
            raise TypeError(f"expected {name}, got {type(value).__name__}")
        try:
            return adapter.dump_json(value, warnings="error")
        except PydanticSerializationError as error:
            raise TypeError(
                f"expected {name}, got {type(value).__name__}: {_short(error)}"
            ) from error

    return dumps, adapter.validate_json


def _short(error: Exception) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
