"""CollectionSchema: the columns of a collection, its kind and its key. Pure.

Stored batches have the collection's columns and up to three of their own, whose names begin with an
underscore: the time of each update, its effect, and the hash of its row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from uploader.format.document import Fields, serialise
from uploader.format.layout import MAX_U64
from walstore.core.validation.arguments import as_texts
from walstore.errors import InvalidSettingsError

TIME: Final = "_t"
DIFF: Final = "_d"
HASH: Final = "_h"
DELETED: Final = "_deleted"
MAX_TIME: Final = MAX_U64
"""The frontier of what has ended; the times of updates are below it."""
MOST_COLUMNS: Final = 1000
MOST_SCHEMA_BYTES: Final = 256 << 10
"""Longest document of a schema. It is part of the head, which every reader reads again and again."""

Kind: TypeAlias = Literal["diff", "upsert"]

_SIGNED: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED: Final = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_UNITS: Final = ("s", "ms", "us", "ns")
_SIMPLE: Final[dict[str, pa.DataType]] = {
    str(kind): kind
    for kind in (
        *_SIGNED,
        *_UNSIGNED,
        pa.float32(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.date32(),
        pa.date64(),
        pa.time32("s"),
        pa.time32("ms"),
        pa.time64("us"),
        pa.time64("ns"),
        *(pa.timestamp(unit) for unit in _UNITS),
        *(pa.duration(unit) for unit in _UNITS),
    )
}
"""The types without parameters of their own, by the names that Arrow gives them."""
_ZONED: Final = re.compile(r"timestamp\[(s|ms|us|ns), tz=([A-Za-z0-9_+:/-]{1,64})\]")
_DECIMAL: Final = re.compile(r"decimal(128|256)\(([0-9]{1,2}), (-?[0-9]{1,2})\)")
_FIXED: Final = re.compile(r"fixed_size_binary\[([0-9]{1,9})\]")


@dataclass(frozen=True, slots=True)
class CollectionSchema:
    """The columns of a collection, and what an update of it is. Made by :meth:`new` and :meth:`evolve`."""

    id: int
    """Counts the changes of the columns."""
    kind: Kind
    columns: pa.Schema
    """The columns that users see."""
    key: tuple[str, ...]
    """Of an ``upsert`` collection: identifies a row. Otherwise the order of the rows; none: all columns."""

    @classmethod
    def new(cls, columns: pa.Schema, *, kind: Kind, key: Iterable[str]) -> CollectionSchema:
        """Return the first schema of a collection; InvalidSettingsError naming the column and the reason."""
        if not isinstance(columns, pa.Schema):
            raise TypeError(f"schema must be a pyarrow.Schema, not {type(columns).__name__}")
        return cls(0, kind, columns.remove_metadata(), as_texts(key, "key")).checked()

    def checked(self) -> CollectionSchema:
        """Return the schema; InvalidSettingsError if no collection can have it."""
        names = self.columns.names
        if self.kind not in ("diff", "upsert"):
            raise InvalidSettingsError(f"kind must be 'diff' or 'upsert', not {self.kind!r}")
        if not 0 < len(names) <= MOST_COLUMNS:
            raise InvalidSettingsError(
                f"a collection has 1 to {MOST_COLUMNS} columns, not {len(names)}"
            )
        for field in self.columns:
            _check_field(field)
            if names.count(field.name) > 1:
                raise InvalidSettingsError(f"the column {field.name!r} occurs twice")
        for name in self.key:
            if names.count(name) != 1 or self.key.count(name) > 1:
                raise InvalidSettingsError(
                    f"the key has {name!r}, which is not one of the columns, or twice"
                )
            if kinds.is_floating(self.columns.field(name).type):
                raise InvalidSettingsError(
                    f"the column {name!r} is no key: floats are not equal exactly"
                )
        if self.kind == "upsert" and not self.key:
            raise InvalidSettingsError("an upsert collection needs key columns")
        if len(serialise(self.serialise())) > MOST_SCHEMA_BYTES:
            raise InvalidSettingsError(
                f"the names of the columns are too long: a schema has at most {MOST_SCHEMA_BYTES} bytes"
            )
        return self

    @property
    def order(self) -> tuple[str, ...]:
        """The columns by which rows are sorted: the key, and in a diff collection all others."""
        if self.kind == "upsert":
            return self.key
        return (*self.key, *(name for name in self.columns.names if name not in self.key))

    @property
    def effect(self) -> str:
        """The column with the effect of an update."""
        return DIFF if self.kind == "diff" else DELETED

    @property
    def updates(self) -> pa.Schema:
        """The columns, with the time and effect of each update, as callers see them."""
        effect = pa.int64() if self.kind == "diff" else pa.bool_()
        return pa.schema(
            [
                *self.columns,
                pa.field(TIME, pa.uint64(), nullable=False),
                pa.field(self.effect, effect, nullable=False),
            ]
        )

    @property
    def stored(self) -> pa.Schema:
        """The columns of a batch. Removals of an upsert collection have nulls outside the key."""
        columns = [
            field
            if self.kind == "diff" or field.name in self.key
            else field.with_nullable(nullable=True)
            for field in self.columns
        ]
        own = list(self.updates)[len(columns) :]
        return pa.schema([*columns, *own, pa.field(HASH, pa.uint64(), nullable=False)])

    def evolve(self, columns: pa.Schema) -> CollectionSchema:
        """Return the next schema, or this one if nothing changes; InvalidSettingsError.

        Columns may be added behind the others if they may be null; types may become wider.
        """
        if not isinstance(columns, pa.Schema):
            raise TypeError(f"schema must be a pyarrow.Schema, not {type(columns).__name__}")
        columns = columns.remove_metadata()
        if columns.equals(self.columns):
            return self
        for index, old in enumerate(self.columns):
            if index >= len(columns) or columns.field(index).name != old.name:
                raise InvalidSettingsError(
                    f"the column {old.name!r} must stay where it is; new columns come after all others"
                )
            new = columns.field(index)
            is_looser = new.nullable and not old.nullable and old.name not in self.key
            if not is_wider(old.type, new.type) or (new.nullable != old.nullable and not is_looser):
                raise InvalidSettingsError(
                    f"the column {old.name!r} cannot change from {old} to {new}: types only become wider"
                )
        for new in list(columns)[len(self.columns) :]:
            if not new.nullable:
                raise InvalidSettingsError(
                    f"the new column {new.name!r} must be nullable: older rows have no value"
                )
        return CollectionSchema(self.id + 1, self.kind, columns, self.key).checked()

    def serialise(self) -> dict[str, Any]:
        """Return the schema as a JSON object."""
        return {
            "id": self.id,
            "kind": self.kind,
            "key": list(self.key),
            "columns": [
                {"name": field.name, "type": str(field.type), "nullable": field.nullable}
                for field in self.columns
            ],
        }

    @classmethod
    def read(cls, fields: Fields) -> CollectionSchema:
        """Read a schema from a document; CorruptionError or ValueError."""
        columns = [
            pa.field(
                item.text("name"), parse_type(item.text("type")), nullable=item.flag("nullable")
            )
            for item in fields.objects("columns")
        ]
        kind: Any = fields.text("kind")
        return cls(
            fields.number("id"), kind, pa.schema(columns), tuple(fields.texts("key"))
        ).checked()


def parse_type(text: str) -> pa.DataType:
    """Return the type with that name, as ``str(type)`` writes it; ValueError for any that no column has."""
    if text in _SIMPLE:
        return _SIMPLE[text]
    if found := _ZONED.fullmatch(text):
        return pa.timestamp(found[1], tz=found[2])
    if found := _FIXED.fullmatch(text):
        return pa.binary(int(found[1]))
    if found := _DECIMAL.fullmatch(text):
        make: Callable[[int, int], pa.DataType] = (
            pa.decimal128 if found[1] == "128" else pa.decimal256
        )
        return make(int(found[2]), int(found[3]))
    raise ValueError(f"no column has the type {text[:80]!r}")


def parquet_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column has when it is read from a Parquet file: there are no seconds there."""
    if kinds.is_date64(kind):
        return pa.date32()
    if kinds.is_time32(kind):
        return pa.time32("ms")
    if kinds.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", tz=kind.tz)
    return kind


def _check_field(field: pa.Field) -> None:
    if not field.name or field.name.startswith("_") or not field.name.isprintable():
        raise InvalidSettingsError(
            f"a column's name is printable and does not begin with an underscore: {field.name[:80]!r}"
        )
    try:
        is_known = parse_type(str(field.type)).equals(field.type) and _is_storable(field.type)
    except ValueError:
        is_known = False
    if not is_known:
        raise InvalidSettingsError(
            f"the column {field.name!r} has the type {field.type}; columns are numbers, booleans, text, "
            "bytes, dates, times or decimals with no more places after the point than digits"
        )


def _is_storable(kind: pa.DataType) -> bool:
    """Return whether Parquet has such values."""
    if kinds.is_decimal(kind):
        return bool(0 <= kind.scale <= kind.precision)
    return not (kinds.is_fixed_size_binary(kind) and kind.byte_width == 0)


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a type has all values of another one, or is the same."""
    if old.equals(new):
        return True
    for ladder in (_SIGNED, _UNSIGNED, (pa.float32(), pa.float64())):
        if old in ladder and new in ladder:
            return ladder.index(new) > ladder.index(old)
    if kinds.is_string(old):
        return bool(kinds.is_large_string(new))
    if kinds.is_binary(old):
        return bool(kinds.is_large_binary(new))
    if kinds.is_decimal128(old) and kinds.is_decimal128(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return False
