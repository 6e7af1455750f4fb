"""An Iceberg table with the content of a collection at one time, replaced by each export.

The files are the table's own: they are in its folder for data, where the collection's collector never looks.
Those that a later export replaced stay for the table's older snapshots, and go when these are expired.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Final

import pyarrow as pa

from uploader.iceberg.iceberg_columns import iceberg_schema, to_iceberg
from uploader.iceberg.iceberg_table import SOURCE, CommitLostError, IcebergTable, Marks
from uploader.iceberg.iceberg_target import IcebergTarget
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    ContentionError,
    InvalidSettingsError,
    OutcomeUnknownError,
    WalError,
)

_AS_OF: Final = "walstore.as-of"
_SCHEMA: Final = "walstore.schema"
_ROWS: Final = "walstore.rows"
_FILES: Final = "walstore.files"
_FILE_BYTES: Final = 256 << 20
"""About so many bytes of rows in memory become one file; they take a fraction of it there."""
_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export put into a table, or found there."""

    table: str
    """The table, as ``iceberg:[catalog/]namespace.table``."""
    as_of: int
    """The time whose content it has; -1 for that of a collection without any update."""
    rows: int
    files: int
    is_new: bool
    """Whether this call put it there; False if an earlier one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedContent:
    """The content of a collection at a time, in its columns of that moment."""

    rows: pa.Table
    as_of: int
    schema_id: int
    """Counts the changes of the collection's columns."""


async def export_content(
    read: Callable[[], Awaitable[ExportedContent]],
    target: IcebergTarget,
    *,
    collection: str,
    as_of: int | None,
    schema_id: int,
    columns: pa.Schema,
    worker: Worker,
) -> Exported:
    """Replace the rows of the table by what ``read`` returns, unless the table has that already.

    Args:
        read: Reads the content at ``as_of``.
        target: The table; created if it is not there.
        collection: Random id of the collection, to which the table belongs from then on.
        as_of: The time, if the caller has chosen one.
        schema_id: Number of the newest schema of the collection that is known.
        columns: The columns that its content has then.
        worker: For what blocks.

    Raises:
        InvalidSettingsError: The table has a later time, or rows of something else; or Iceberg cannot have
            the columns or values.
        ContentionError: Other programs changed the table all the time.
        OutcomeUnknownError: The table was replaced or not. The same call again settles it.
        StorageUnavailableError: The catalog, or the storage of its files, failed. The table is as it was.
    """
    source = f"collection {collection}"
    table = await worker.run(
        partial(
            IcebergTable.open,
            target,
            source=source,
            schema=iceberg_schema(columns),
            properties={},
        )
    )
    assert table is not None
    try:
        return await _export(table, read, source, as_of, schema_id, worker)
    finally:
        await worker.run(table.close)


async def _export(
    table: IcebergTable,
    read: Callable[[], Awaitable[ExportedContent]],
    source: str,
    as_of: int | None,
    schema_id: int,
    worker: Worker,
) -> Exported:
    marks = await worker.run(table.refresh)
    found = None if as_of is None else _found(table, marks, as_of, schema_id)
    if found is not None:
        return found
    content = await read()
    files: list[str] = []
    try:
        return await _replaced(table, marks, content, source, files, worker)
    except OutcomeUnknownError:
        raise  # the table may have the files
    except WalError:
        await worker.run(partial(table.remove, files))
        raise


async def _replaced(
    table: IcebergTable,
    marks: Marks,
    content: ExportedContent,
    source: str,
    files: list[str],
    worker: Worker,
) -> Exported:
    """Write the content into files, which are added to ``files``, and commit them."""
    for _ in range(_ATTEMPTS):
        found = _found(table, marks, content.as_of, content.schema_id)
        if found is not None:
            await worker.run(partial(table.remove, files))
            return found
        if not files and content.rows.num_rows:
            files += await worker.run(partial(_write, table, content.rows))
        done = {
            SOURCE: source,
            _AS_OF: str(content.as_of),
            _SCHEMA: str(content.schema_id),
            _ROWS: str(content.rows.num_rows),
            _FILES: str(len(files)),
        }
        put = partial(
            table.put,
            files,
            iceberg_schema(content.rows.schema),
            done,
            replaces=True,
            refusal=f"the columns of {table.target} cannot become those of the collection; nothing was "
            "changed; export to a new table",
        )
        try:
            await worker.run(put)
        except CommitLostError:
            marks = await worker.run(table.refresh)
            continue
        return _exported(table, done, is_new=True)
    raise ContentionError(
        f"other programs changed {table.target} {_ATTEMPTS} times meanwhile; it is as they left it; run it "
        "again"
    )


def _found(table: IcebergTable, marks: Marks, as_of: int, schema_id: int) -> Exported | None:
    """Return what the table has if that is what is to be exported; InvalidSettingsError if it has more."""
    if not marks:
        return None
    has = (int(marks[_AS_OF]), int(marks[_SCHEMA]))
    if has == (as_of, schema_id):
        return _exported(table, marks, is_new=False)
    if has > (as_of, schema_id):
        raise InvalidSettingsError(
            f"{table.target} has the content as of {has[0]} already, and an export never goes back; export "
            f"{as_of} to another table, or read an older snapshot of this one"
        )
    return None


def _exported(table: IcebergTable, marks: Marks, *, is_new: bool) -> Exported:
    return Exported(
        table=str(table.target),
        as_of=int(marks[_AS_OF]),
        rows=int(marks[_ROWS]),
        files=int(marks[_FILES]),
        is_new=is_new,
    )


def _write(table: IcebergTable, rows: pa.Table) -> list[str]:
    """Write the rows into new files of the table, and return their locations."""
    converted = to_iceberg(rows)
    count = -(-converted.nbytes // _FILE_BYTES) or 1
    at_once = -(-converted.num_rows // count)
    export = token_hex(16)
    written: list[str] = []
    try:
        for number in range(-(-converted.num_rows // at_once)):
            part = converted.slice(number * at_once, at_once)
            name = f"walstore-{export}-{number:04d}.parquet"
            written.append(table.write(name, part))
    except BaseException:
        table.remove(written)
        raise
    return written
