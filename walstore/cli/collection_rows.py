"""Rows of a versioned collection outside of it: JSON lines, tables for people, Parquet files.

In JSON, numbers, booleans and text are themselves; NaN and infinities are text. Bytes are text if they are
UTF-8, else ``{"base64": "..."}``. Dates, times, timestamps and decimals are text as Arrow writes it, and
durations whole numbers of their unit. What is written so can be read back.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from walstore.cli.errors import InputError, UsageError
from walstore.cli.output import replaced_file, to_json
from walstore.cli.row import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

OWN_COLUMNS: Final = ("_t", "_d", "_deleted", "_h")
"""The columns with which a collection says what an update is; no collection has one of its own so named."""
_ROWS_AT_ONCE: Final = 10_000


def columns_of(names: Sequence[str]) -> pa.Schema:
    """Return the columns that were given as ``NAME:TYPE`` or ``NAME:TYPE:null``; UsageError."""
    import pyarrow as pa

    from uploader.versioned.schema import parse_type

    fields = []
    for text in names:
        name, _, rest = text.partition(":")
        is_nullable = rest.endswith(":null")
        try:
            kind = parse_type(rest.removesuffix(":null"))
        except ValueError as error:
            raise UsageError(
                f"--column {text}: give NAME:TYPE or NAME:TYPE:null ({error}); types are int64, double, "
                "bool, string, binary, date32[day], timestamp[us], timestamp[us, tz=UTC] and others "
                "that Arrow names so"
            ) from None
        fields.append(pa.field(name, kind, nullable=is_nullable))
    return pa.schema(fields)


def columns_like(path: Path) -> pa.Schema:
    """Return the columns of a Parquet file without those of updates; UsageError, OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        try:
            found = pq.read_schema(file)
        except (pa.ArrowException, OSError) as error:
            raise _no_parquet(path, error) from None
    return pa.schema(
        [
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
            for field in found
            if field.name not in OWN_COLUMNS
        ]
    )


def read_parquet(path: Path) -> pa.Table:
    """Return the rows of a Parquet file; UsageError if it is none, OSError if it cannot be opened."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        try:
            return pq.ParquetFile(file).read()
        except (pa.ArrowException, OSError) as error:
            raise _no_parquet(path, error) from None


def _no_parquet(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} cannot be read as a Parquet file: {error}")


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a Parquet file. A file that had its name before is replaced once the new one is whole.

    A device or a pipe is not replaced but written to.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.exists() and not path.is_file():
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        with path.open("wb") as file:
            file.write(sink.getvalue())
        return
    with replaced_file(path) as file:
        pq.write_table(table, file, compression="zstd")


def json_lines(table: pa.Table) -> Iterator[bytes]:
    """Yield rows as JSON objects, a line each, some thousand lines at a time."""
    for part in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        columns = [_rendered(column) for column in part.columns]
        names = part.schema.names
        rows = zip(*columns, strict=True)
        lines = [to_json(dict(zip(names, row, strict=True))) + "\n" for row in rows]
        yield "".join(lines).encode()


def cells(table: pa.Table) -> list[tuple[str, ...]]:
    """Return rows for a table that people read; nulls are ``-``."""
    columns = [map(_cell, _rendered(column)) for column in table.columns]
    return list(zip(*columns, strict=True))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    is_plain = isinstance(value, str) and value.isprintable()
    return value if is_plain else to_json(value)


def _rendered(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as JSON has them."""
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if types.is_floating(kind):
        return [_finite(value) for value in column.to_pylist()]
    if _is_bytes(kind):
        return [None if value is None else _text(value) for value in column.to_pylist()]
    if types.is_duration(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if types.is_timestamp(kind) and kind.tz is not None:
        moments = column.cast(pa.int64()).cast(pa.timestamp(kind.unit)).cast(pa.string())
        return [None if value is None else f"{value}Z" for value in moments.to_pylist()]
    if types.is_temporal(kind) or types.is_decimal(kind):
        return list(column.cast(pa.string()).to_pylist())
    return list(column.to_pylist())


def _is_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def parse_json_lines(data: bytes, updates: pa.Schema, *, lower: int) -> pa.Table:
    """Return the rows of JSON lines in the columns of ``updates``; columns that no row has are left out.

    A row without ``_t`` has the time ``lower``, one without ``_d`` the count 1, and one without ``_deleted``
    is no removal. Empty lines are skipped. InputError with the number of the first line that is wrong.
    """
    import pyarrow as pa

    from uploader.versioned.values import has_decimals

    is_exact = has_decimals(updates)
    numbers, rows = [], []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            numbers.append(number)
            rows.append(_object(line, number, updates, is_exact=is_exact))
    defaults: dict[str, Any] = {"_t": lower, "_d": 1, "_deleted": False}
    present = set().union(*rows)
    fields = [field for field in updates if field.name in present]
    columns = [
        _column([row.get(field.name, defaults.get(field.name)) for row in rows], field, numbers)
        for field in fields
    ]
    # What may be null in which row is checked with the whole update.
    loose = pa.schema([field.with_nullable(nullable=True) for field in fields])
    if not fields:
        if rows:
            raise InputError(f"line {numbers[0]} of stdin has no column of the collection")
        return updates.empty_table()
    return pa.Table.from_arrays(columns, schema=loose)


def _object(line: bytes, number: int, updates: pa.Schema, *, is_exact: bool) -> dict[str, Any]:
    try:
        found = parse_json(line, is_exact=is_exact)
    except (ValueError, RecursionError) as error:
        raise InputError(f"line {number} of stdin is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"line {number} of stdin is no JSON object, but {_short(found)}")
    unknown = sorted(found.keys() - set(updates.names))
    if unknown:
        raise InputError(
            f"line {number} of stdin has {unknown[0]!r}; the columns are {', '.join(updates.names)}"
        )
    return found


def _column(values: list[Any], field: pa.Field, numbers: list[int]) -> pa.Array:
    """Return the values as a column; InputError naming the first one that does not fit."""
    try:
        return _parsed(values, field.type)
    except _MISFITS:
        pass
    for number, value in zip(numbers, values, strict=True):
        try:
            _parsed([value], field.type)
        except _MISFITS as error:
            raise InputError(
                f"line {number} of stdin: the column {field.name!r} is {field.type}, not {_short(value)}"
                + (f" ({error})" if str(error) else "")
            ) from None
    raise InputError(f"the column {field.name!r} of stdin does not fit {field.type}")


# What Python and Arrow raise for a value of another type; Arrow's errors are ValueErrors or TypeErrors.
_MISFITS: Final = (ValueError, TypeError, OverflowError, NotImplementedError)


def _parsed(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return JSON values as an array; one of :data:`_MISFITS` if one does not fit."""
    import pyarrow as pa
    from pyarrow import types

    from uploader.versioned.values import numbers, times

    if types.is_boolean(kind):
        return pa.array(_only(values, bool), kind)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return numbers(values, kind)
    if _is_bytes(kind):
        return pa.array([_bytes(value) for value in values], kind)
    if types.is_string(kind) or types.is_large_string(kind):
        return pa.array(_only(values, str), kind)
    if types.is_duration(kind):
        return pa.array(_only(values, int), pa.int64()).cast(kind)
    return times(_only(values, str), kind)


def _only(values: list[Any], kind: type) -> list[Any]:
    """Return the values; TypeError if one is neither null nor exactly of that type: true is no number."""
    for value in values:
        if value is not None and type(value) is not kind:
            raise TypeError
    return values


def _bytes(value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case {"base64": str(text)} if len(value) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise ValueError(f"no base64: {error}") from None
        case _:
            raise TypeError


def _short(value: Any) -> str:
    text = to_json(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
