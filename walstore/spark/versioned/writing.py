"""The writers: a job's rows, or a micro-batch's, become one batch of a collection. Blocking I/O.

Tasks stage their rows in the collection's store (``uploader/versioned/staging.py``); the program that
commits appends them. A batch therefore goes through the memory of one program, which bounds it. A stream's
micro-batch ``n`` has the times ``[start + n, start + n + 1)``, so a second append of it changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from uploader import Collection, CollectionWriter
from uploader.versioned import updates
from uploader.versioned.schema import MAX_TIME, TIME, CollectionSchema
from uploader.versioned.staging import StagedFile, StagedWrite, job_query
from walstore import (
    InvalidSettingsError,
    OutcomeUnknownError,
    UpperMismatchError,
    WalError,
)
from walstore.runtime.clock import SystemClock
from walstore.spark.features import DataSourceStreamArrowWriter
from walstore.spark.sink.writers import BATCH_ID, QUERY_ID
from walstore.spark.versioned.columns import given_schema
from walstore.spark.versioned.options import (
    APPEND_OPTIONS,
    SINK_OPTIONS,
    UpdateOptions,
    parse_write_options,
)
from walstore.spark.versioned.reading import schema_at
from walstore.spark.versioned.staged_rows import (
    Site,
    check_size,
    in_store,
    merge,
    stage,
)
from walstore.spark.versioned.types import from_spark

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


class AppendWriter(DataSourceArrowWriter):
    """Writes one job. Picklable: Spark plans with one copy, writes with others, and commits with another."""

    def __init__(self, options: UpdateOptions, names: Sequence[str], query: str, job: str) -> None:
        """Stage as ``query``, which is this job's own."""
        self._options = options
        self._names = tuple(names)
        self._write = StagedWrite(query, 0)
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        context = TaskContext.get()
        return stage(
            self._options,
            self._write,
            self._names,
            iterator,
            job=self._job,
            task=0 if context is None else context.partitionId(),
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append what all tasks staged as one batch."""
        if None in messages:
            raise WalError("a task did not report what it staged; nothing was written")
        _, files = merge(messages)
        check_size(files)
        options = self._options

        async def act(site: Site) -> None:
            tables = await site.staging.load(files)
            async with await site.open() as collection:
                writer = collection.writer(options.writer)
                rows = joined(tables, collection)
                if options.lower is None or options.upper is None:
                    await append_at_end(collection, writer, rows)
                else:
                    await check_shard(collection, writer, options.lower)
                    await writer.append(rows, lower=options.lower, upper=options.upper)
            await site.staging.discard(self._write.query)
            await site.staging.sweep_jobs(SystemClock().now_us())

        in_store(options.location.text, act)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged; nobody else appends it."""
        in_store(self._options.location.text, lambda site: site.staging.discard(self._write.query))


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


class UpdateStreamWriter(DataSourceStreamArrowWriter, DataSourceStreamWriter):
    """Writes one micro-batch. Spark plans each with a new writer, and commits with another."""

    def __init__(self, options: UpdateOptions, names: Sequence[str], job: str) -> None:
        """Stage as ``job``, one attempt of a micro-batch."""
        self._options = options
        self._names = tuple(names)
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        if context is None or not query or batch is None:
            raise WalError(
                f"this Spark does not pass its tasks the id of their stream ({QUERY_ID}, {BATCH_ID}); write "
                "with foreachBatch and the batch writer, the micro-batch's number as lower"
            )
        return self.stage(iterator, StagedWrite(query, int(batch)), context.partitionId())

    def stage(
        self, batches: Iterable[pa.RecordBatch], write: StagedWrite, task: int
    ) -> WriterCommitMessage:
        """Stage rows of a task of a stream's micro-batch."""
        return stage(self._options, write, self._names, batches, job=self._job, task=task)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append what all tasks staged, unless an earlier attempt of this micro-batch was appended."""
        write, files = merge(messages)
        if None in messages:
            raise WalError("a task did not report what it staged; nothing was written")
        if write is not None and write.batch != batchId:
            raise WalError(f"the tasks staged micro-batch {write.batch}, not {batchId}")
        check_size(files)
        lower = (self._options.lower or 0) + batchId
        if lower >= MAX_TIME:
            raise InvalidSettingsError(
                f"start is too large: the time {lower} would be beyond 2**64 - 2"
            )
        in_store(
            self._options.location.text,
            lambda site: self._commit(site, write, files, lower, batchId),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave what was staged: it may be what counts. The query's next commit removes it."""

    async def _commit(
        self,
        site: Site,
        write: StagedWrite | None,
        files: Sequence[StagedFile],
        lower: int,
        batch: int,
    ) -> None:
        if write is not None:
            if await site.staging.is_done(write):
                return
            files = await site.staging.intend(write, files)
        tables = await site.staging.load(files)
        async with await site.open() as collection:
            writer = collection.writer(self._options.writer)
            rows = joined(tables, collection)
            await check_shard(collection, writer, lower)
            try:
                await writer.append(rows, lower=lower, upper=lower + 1)
            except UpperMismatchError as error:
                raise _lost(error, batch, lower) from error
        if write is not None:
            await site.staging.finish(write)


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
    check_rows(schema, schema_at(found.location.text), has_times=found.lower is not None)
    query = job_query(SystemClock().now_us())
    return AppendWriter(found, schema.fieldNames(), query, secrets.token_hex(8))


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamWriter:
    """Return a writer that appends the rows of a micro-batch. Raises as :func:`batch_writer`."""
    _check_append(overwrite=overwrite)
    found = parse_write_options(options, SINK_OPTIONS)
    check_rows(schema, schema_at(found.location.text), has_times=False)
    return UpdateStreamWriter(found, schema.fieldNames(), secrets.token_hex(8))


def _check_append(*, overwrite: bool) -> None:
    if overwrite:
        raise InvalidSettingsError(
            'a collection can only be appended to: use mode("append"), or outputMode("append") for a stream; '
            "an upsert collection replaces the rows with the same keys by itself"
        )
