"""Copies of a log's records in files of an Iceberg table, with typed columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from uploader.format.entries import Fragment
from uploader.iceberg.iceberg_table import CommitLostError, IcebergTable, Marks
from uploader.iceberg.json_columns import (
    RECORD_COLUMNS,
    JsonColumn,
    read_columns,
    table_schema,
)
from uploader.read.cloud_log import CloudLog
from uploader.runtime.shared_worker import SharedWorker
from walstore.errors import InvalidSettingsError

if TYPE_CHECKING:
    from pyiceberg.table import Transaction


async def copy_records(
    log: CloudLog,
    entries: Iterable[Fragment],
    table: IcebergTable,
    marks: Marks,
    *,
    columns: Sequence[JsonColumn],
    is_strict: bool,
    worker: SharedWorker,
) -> int:
    """Commit a file with the records of fragments, and return how many of them are misfits.

    A file that no commit can have is removed. One whose commit is unknown, or whose program died, stays: as
    garbage, which ``remove_orphan_files`` of an engine finds, if it was not committed.

    Raises:
        InvalidSettingsError: The table cannot have the columns; or, if ``is_strict``, a record is a misfit.
        CommitLostError: Another program was first.
        OutcomeUnknownError: As of :meth:`IcebergTable.commit`.
    """
    batches = []
    misfits = 0
    for entry in entries:
        fragment = await log.read_fragment(entry)
        batch, found = await worker.run(
            partial(_typed_rows, fragment.to_arrow, columns, is_strict=is_strict)
        )
        batches.append(batch)
        misfits += found
    write = partial(_write, pa.Table.from_batches(batches))
    file = await worker.run(partial(table.write, f"walstore-{token_hex(16)}.parquet", write))
    change = partial(_add, table, table_schema(columns), file)
    try:
        await worker.run(partial(table.commit, change, marks))
    except (CommitLostError, InvalidSettingsError):
        await worker.run(partial(table.remove, [file]))
        raise
    return misfits


def _typed_rows(
    read: Callable[[], pa.RecordBatch], columns: Sequence[JsonColumn], *, is_strict: bool
) -> tuple[pa.RecordBatch, int]:
    """Return the rows of records, and how many are misfits."""
    records = read()
    found = read_columns(records.column("value").to_pylist(), columns)
    if is_strict and found.first is not None:
        row, column = found.first
        offset = records.column("offset")[row].as_py()
        what = "is no JSON object" if column is None else f"has no value that fits {column}"
        raise InvalidSettingsError(
            f"the record at offset {offset} {what}; nothing was added; leave strict out to have a null"
        )
    schema = table_schema(columns)
    own = [
        records.column("value" if field.name == "body" else field.name).cast(field.type)
        for field in RECORD_COLUMNS
    ]
    return pa.RecordBatch.from_arrays([*own, *found.columns], schema=schema), found.misfits


def _write(rows: pa.Table, stream: Any) -> None:
    with pq.ParquetWriter(stream, rows.schema, compression="zstd", store_schema=False) as file:
        file.write_table(rows)


def _add(
    table: IcebergTable,
    schema: pa.Schema,
    file: str,
    transaction: Transaction,
    marks: dict[str, str],
) -> None:
    """Add the columns that the table does not have yet, and the file."""
    from pyiceberg.exceptions import ValidationError

    try:
        with transaction.update_schema() as update:
            update.union_by_name(schema)
        added = table.described(transaction, [file])
    except (ValidationError, ValueError) as error:
        raise InvalidSettingsError(
            f"{table.target} cannot have these columns; nothing was changed; copy to a new table: {error}"
        ) from error
    with transaction.update_snapshot(snapshot_properties=marks).fast_append() as snapshot:
        for one in added:
            snapshot.append_data_file(one)
