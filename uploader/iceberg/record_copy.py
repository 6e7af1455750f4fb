"""Copies of a log's records in files of an Iceberg table, with typed columns or without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from secrets import token_hex

import pyarrow as pa

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
    name = f"walstore-{token_hex(16)}.parquet"
    file = await worker.run(partial(table.write, name, pa.Table.from_batches(batches)))
    put = partial(
        table.put,
        [file],
        table_schema(columns),
        marks,
        replaces=False,
        refusal=f"{table.target} cannot have these columns; nothing was changed; copy to a new table",
    )
    try:
        await worker.run(put)
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
