"""Envelopes: what the records of a log say about the rows of a collection. Pure.

A record's value is a JSON object. ``append``: a row. ``upsert``: a row that replaces the one with its key;
an empty value removes the key, which the record's own key names as a JSON object. ``debezium``: a change
event with ``before``, ``after`` and ``op``, with or without Debezium's ``payload`` around it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from uploader.versioned.schema import DELETED, DIFF, TIME, CollectionSchema
from uploader.versioned.updates import check_storable
from uploader.versioned.values import has_decimals, numbers, times
from walstore.core.validation.exact import read_json
from walstore.errors import InvalidSettingsError
from walstore.records import Record

Envelope: TypeAlias = Literal["append", "upsert", "debezium"]
ENVELOPES: Final[Mapping[str, tuple[str, ...]]] = {
    "append": ("diff",),
    "upsert": ("upsert",),
    "debezium": ("diff", "upsert"),
}
"""Which kinds of collections each envelope can be written to."""

_Row = Mapping[str, Any]


class Change(NamedTuple):
    """One update."""

    row: _Row
    effect: int
    """In a ``diff`` collection the change of the count; in an ``upsert`` one 1, or 0 for a removal."""


def to_updates(records: Iterable[Record], envelope: Envelope, schema: CollectionSchema) -> pa.Table:
    """Return the updates that records say, each at the time of its record's offset.

    InvalidSettingsError naming the offset of the first record that does not fit.
    """
    offsets: list[int] = []
    changes: list[Change] = []
    read = partial(_object, is_exact=has_decimals(schema.columns))
    for record in records:
        try:
            found = list(_changes(record, envelope, schema, read))
            for change in found:
                _check_columns(change, schema)
        except ValueError as error:
            raise _refused(record.offset, error) from None
        changes += found
        offsets += [record.offset] * len(found)
    try:
        return _table(changes, offsets, schema)
    except ValueError as together:
        for change, offset in zip(changes, offsets, strict=True):
            try:
                _table([change], [offset], schema)
            except ValueError as error:
                raise _refused(offset, error) from None
        raise InvalidSettingsError(
            f"the records at offsets {offsets[0]} to {offsets[-1]} cannot become updates together: {together}"
        ) from None


def _refused(offset: int, error: Exception) -> InvalidSettingsError:
    return InvalidSettingsError(f"the record at offset {offset} cannot become an update: {error}")


def _changes(
    record: Record, envelope: Envelope, schema: CollectionSchema, read: Callable[[bytes, str], _Row]
) -> Iterator[Change]:
    if envelope == "append":
        yield Change(read(record.value, "value"), 1)
    elif envelope == "upsert":
        if record.value:
            yield Change(read(record.value, "value"), 1)
        else:
            yield Change(read(record.key or b"", "key"), 0)
    elif record.value:  # Debezium puts a record without a value after each removal
        yield from _debezium(read(record.value, "value"), schema)


def _debezium(event: _Row, schema: CollectionSchema) -> Iterator[Change]:
    payload = event.get("payload", event)
    if not isinstance(payload, dict):
        raise ValueError("the payload is not an object")  # noqa: TRY004 - of data, not of code
    op, before, after = payload.get("op"), payload.get("before"), payload.get("after")
    if op not in ("c", "r", "u", "d"):
        raise ValueError(f"op must be c, r, u or d, not {op!r}")
    if op == "d":
        after = None
    elif not isinstance(after, dict):
        raise ValueError(f"an event with op {op} needs an object 'after'")
    is_replaced = op in ("u", "d")
    if is_replaced and not isinstance(before, dict) and (schema.kind == "diff" or op == "d"):
        raise ValueError(
            f"an event with op {op} needs an object 'before': set REPLICA IDENTITY FULL"
        )
    if schema.kind == "diff":
        if is_replaced:
            yield Change(before, -1)  # type: ignore[arg-type]
    elif isinstance(before, dict):
        key = {name: before.get(name) for name in schema.key}
        if after is None or key != {name: after.get(name) for name in schema.key}:
            yield Change(key, 0)
    if after is not None:
        yield Change(after, 1)


def _object(data: bytes, what: str, *, is_exact: bool) -> _Row:
    try:
        found = read_json(data, is_exact=is_exact)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {what} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"its {what} is not a JSON object")  # noqa: TRY004 - of data, not of code
    return found


def _check_columns(change: Change, schema: CollectionSchema) -> None:
    unknown = change.row.keys() - set(schema.columns.names)
    if unknown:
        raise ValueError(f"the collection has no column {min(unknown)!r}; add it with evolve()")
    is_removal = schema.kind == "upsert" and not change.effect
    for field in schema.columns:
        if is_removal and field.name not in schema.key:
            continue
        is_needed = not field.nullable or (schema.kind == "upsert" and field.name in schema.key)
        if is_needed and change.row.get(field.name) is None:
            raise ValueError(f"the column {field.name!r} must not be null")


def _table(changes: list[Change], offsets: list[int], schema: CollectionSchema) -> pa.Table:
    columns = {}
    for field in schema.columns:
        values = [change.row.get(field.name) for change in changes]
        try:
            columns[field.name] = check_storable(_column(values, field.type), field)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise ValueError(f"the column {field.name!r} must be {field.type} ({error})") from error
    columns[TIME] = pa.array(offsets, pa.uint64())
    if schema.kind == "diff":
        columns[DIFF] = pa.array([change.effect for change in changes], pa.int64())
    else:
        columns[DELETED] = pa.array([not change.effect for change in changes], pa.bool_())
    return pa.table(columns)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return JSON values as a column: times and decimals from text, bytes from base64."""
    if _is_bytes(kind):
        return pa.array([None if value is None else _decoded(value) for value in values], kind)
    if kinds.is_boolean(kind) or kinds.is_string(kind) or kinds.is_large_string(kind):
        return pa.array(values, kind)
    if not kinds.is_temporal(kind):
        return numbers(values, kind)
    is_text = [isinstance(value, str) for value in values if value is not None]
    if any(is_text) and not all(is_text):  # what a value becomes does not depend on those beside it
        return pa.concat_arrays([_column([value], kind) for value in values])
    if any(is_text):
        return pc.cast(pa.array(values), kind) if kinds.is_duration(kind) else times(values, kind)
    return numbers(values, kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind)
    )


def _decoded(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError("bytes are base64 in a JSON string")  # noqa: TRY004 - of data, not of code
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"bytes are base64 in a JSON string ({error})") from None
