"""CollectionSink: a job's rows, or a micro-batch's, become one batch of a collection. Blocking I/O.

Tasks stage their rows in the collection's store (``uploader/versioned/staging.py``); the program that
commits appends them. A batch therefore goes through the memory of one program, which bounds it. A stream's
micro-batch ``n`` has the times ``[start + n, start + n + 1)``, so a second append of it changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from uploader import Collection, CollectionWriter
from uploader.stores import ObjectStore, RetryPolicy
from uploader.versioned import updates
from uploader.versioned.schema import MAX_TIME, TIME, CollectionSchema
from uploader.versioned.staging import (
    FILE_BYTES,
    MOST_BYTES,
    MOST_ROWS,
    StagedFile,
    StagedWrite,
    StagingArea,
    job_query,
)
from walstore import (
    InvalidSettingsError,
    LimitExceededError,
    OutcomeUnknownError,
    UpperMismatchError,
)
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Worker
from walstore.spark.blocking import run_in_store
from walstore.spark.sink.writers import Destination, JobWriter, MicroBatchWriter, check_append
from walstore.spark.versioned.options import (
    APPEND_OPTIONS,
    SINK_OPTIONS,
    UpdateOptions,
    parse_write_options,
)
from walstore.spark.versioned.reading import schema_at
from walstore.spark.versioned.types import from_spark, given_schema

_ATTEMPTS: Final = 20
"""So often a batch is appended where the shard ends, if others append to it meanwhile."""


def check_rows(schema: StructType, collection: CollectionSchema, *, has_times: bool) -> None:
    """Raise InvalidSettingsError for columns that the collection cannot take."""
    given = given_schema(schema)
    if TIME in given.names and not has_times:
        raise InvalidSettingsError(
            f"a column {TIME} needs lower and upper, in a batch write; else the rows get the batch's time"
        )
    missing = [name for name in collection.key if name not in given.names]
    if collection.kind == "upsert" and missing:
        raise InvalidSettingsError(
            f"the rows have no column {missing[0]!r}, which is part of the key"
        )
    updates.conform(from_spark(given.empty_table(), collection), collection, lower=0, upper=1)


class CollectionSink(Destination[StagedWrite, tuple[StagedFile, ...]]):
    """Rows with given columns become batches of a collection."""

    otherwise: ClassVar[str] = "and the batch writer, the micro-batch's number as lower"

    def __init__(self, options: UpdateOptions, schema: StructType, *, has_times: bool) -> None:
        """Look at the collection; InvalidSettingsError for columns that it cannot take. Blocks."""
        check_rows(schema, schema_at(options.location.text), has_times=has_times)
        self._options = options
        self._url = options.location.text
        self._names = schema.fieldNames()
        self._job = secrets.token_hex(8)

    def batch(self, stream: str, number: int) -> StagedWrite:
        """Return the write of a stream's micro-batch."""
        return StagedWrite(stream, number)

    def stage(
        self, batches: Iterable[pa.RecordBatch], write: StagedWrite, task: int
    ) -> tuple[StagedFile, ...]:
        """Stage the rows of one attempt of a task, in bounded memory."""
        attempt = f"{task:08x}-{secrets.token_hex(4)}"

        async def act(store: ObjectStore, worker: Worker) -> tuple[StagedFile, ...]:
            area = _staging(store, worker)
            return tuple(
                [
                    await area.put(write, self._job, attempt, rows)
                    for rows in _gathered(batches, self._names)
                ]
            )

        return run_in_store(self._url, act)

    def commit_job(self, write: StagedWrite, staged: Sequence[tuple[StagedFile, ...]]) -> None:
        """Append what all tasks staged as one batch."""
        files, options = _checked(staged), self._options

        async def act(store: ObjectStore, worker: Worker) -> None:
            area = _staging(store, worker)
            tables = await area.load(files)
            async with Collection.open(self._url, store=store) as collection:
                writer = collection.writer(options.writer)
                rows = joined(tables, collection)
                if options.lower is None or options.upper is None:
                    await append_at_end(collection, writer, rows)
                else:
                    await check_shard(collection, writer, options.lower)
                    await writer.append(rows, lower=options.lower, upper=options.upper)
            await area.discard(write.query)
            await area.sweep_jobs(SystemClock().now_us())

        run_in_store(self._url, act)

    def abort_job(self, write: StagedWrite) -> None:
        """Remove what was staged; nobody else appends it."""
        run_in_store(self._url, lambda store, worker: _staging(store, worker).discard(write.query))

    def commit_batch(
        self, write: StagedWrite | None, staged: Sequence[tuple[StagedFile, ...]], number: int
    ) -> None:
        """Append what all tasks staged, unless an earlier attempt of this micro-batch was appended."""
        files = _checked(staged)
        lower = (self._options.lower or 0) + number
        if lower >= MAX_TIME:
            raise InvalidSettingsError(
                f"start is too large: the time {lower} would be beyond 2**64 - 2"
            )

        async def act(store: ObjectStore, worker: Worker) -> None:
            area = _staging(store, worker)
            found = files
            if write is not None:
                if await area.is_done(write):
                    return
                found = await area.intend(write, files)
            tables = await area.load(found)
            async with Collection.open(self._url, store=store) as collection:
                writer = collection.writer(self._options.writer)
                rows = joined(tables, collection)
                await check_shard(collection, writer, lower)
                try:
                    await writer.append(rows, lower=lower, upper=lower + 1)
                except UpperMismatchError as error:
                    raise _lost(error, number, lower) from error
            if write is not None:
                await area.finish(write)

        run_in_store(self._url, act)


def _staging(store: ObjectStore, worker: Worker) -> StagingArea:
    return StagingArea(store, retry=RetryPolicy(), worker=worker)


def joined(tables: Sequence[pa.Table], collection: Collection) -> pa.Table | None:
    """Return the rows of all tables as the collection takes them; None without any."""
    return from_spark(pa.concat_tables(tables), collection.schema) if tables else None


async def check_shard(collection: Collection, writer: CollectionWriter, lower: int) -> None:
    """Raise InvalidSettingsError if rows at ``lower`` would be a copy of what another shard has.

    Readers use one shard for each time, so rows that are in no other shard would not be seen.
    """
    upper = (await collection.status()).upper
    if lower < upper and await writer.upper() <= lower:
        raise InvalidSettingsError(
            f"the shard {writer.name} ends before {lower + 1} and the collection at {upper}: another shard "
            "has these times, so the rows would not be seen. Nothing was written; write to that shard, or "
            "after its end"
        )


async def append_at_end(
    collection: Collection, writer: CollectionWriter, rows: pa.Table | None
) -> None:
    """Append rows at the time at which the shard ends, whoever else appends to it; nothing without rows."""
    if rows is None or not rows.num_rows:
        return
    for attempt in range(_ATTEMPTS):
        lower = await writer.upper()
        await check_shard(collection, writer, lower)
        try:
            await _append_again(writer, rows, lower)
        except UpperMismatchError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


async def _append_again(writer: CollectionWriter, rows: pa.Table | None, lower: int) -> None:
    """Append a batch; once more if the store did not say whether it was appended."""
    try:
        await writer.append(rows, lower=lower, upper=lower + 1)
    except OutcomeUnknownError:
        try:
            await writer.append(rows, lower=lower, upper=lower + 1)
        except UpperMismatchError as error:
            # Not the same as at first: the first append may have happened, and was merged since.
            raise OutcomeUnknownError(
                f"it is not known whether the rows were appended at {lower}; read the collection before "
                "writing again, and give lower and upper to make a repetition harmless"
            ) from error


def _gathered(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows in tables of about FILE_BYTES."""
    held: list[pa.RecordBatch] = []
    num_bytes = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch.rename_columns(list(names)))
            num_bytes += batch.nbytes
        if num_bytes >= FILE_BYTES:
            yield pa.Table.from_batches(held)
            held, num_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _checked(staged: Iterable[tuple[StagedFile, ...]]) -> Sequence[StagedFile]:
    """Return the files of all tasks; LimitExceededError for more than one batch may have."""
    files = [file for one in staged for file in one]
    rows, num_bytes = sum(file.rows for file in files), sum(file.num_bytes for file in files)
    if rows > MOST_ROWS or num_bytes > MOST_BYTES:
        raise LimitExceededError(
            f"the batch has {rows} rows and {num_bytes} bytes, and goes through the memory of one "
            f"program, which takes {MOST_ROWS} rows and {MOST_BYTES} bytes; nothing was written: make the "
            "source's micro-batches smaller, or write in several jobs",
            limit=MOST_ROWS if rows > MOST_ROWS else MOST_BYTES,
        )
    return files


def _lost(error: UpperMismatchError, batch: int, lower: int) -> UpperMismatchError:
    """Return an error that says what became of a stream whose next batch is not the shard's."""
    start = error.actual - batch
    advice = (
        f"start={start}"
        if start >= 0
        else "another collection, for this one lacks earlier micro-batches"
    )
    return UpperMismatchError(
        f"micro-batch {batch} has the time {lower} and the shard ends at {error.actual}: the query's "
        "checkpoint is another one than before, or another program appends to the shard. Nothing was "
        f"written. Go on with the old checkpointLocation; or, if these rows are missing, with {advice}",
        expected=lower,
        actual=error.actual,
    )


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceWriter:
    """Return a writer that appends the rows of one job.

    InvalidSettingsError for invalid options and columns, and for ``overwrite``; CollectionNotFoundError.
    """
    _check_append(overwrite=overwrite)
    found = parse_write_options(options, APPEND_OPTIONS)
    sink = CollectionSink(found, schema, has_times=found.lower is not None)
    return JobWriter(sink, StagedWrite(job_query(SystemClock().now_us()), 0))


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamWriter:
    """Return a writer that appends the rows of a micro-batch. Raises as :func:`batch_writer`."""
    _check_append(overwrite=overwrite)
    found = parse_write_options(options, SINK_OPTIONS)
    return MicroBatchWriter(CollectionSink(found, schema, has_times=False))


def _check_append(*, overwrite: bool) -> None:
    more = "; an upsert collection replaces the rows with the same keys by itself"
    check_append("a collection", overwrite=overwrite, more=more)
