"""The sink's writers. Batch: all rows of a job or none. Stream: each micro-batch once, across restarts.

A batch with a ``queryId`` takes effect once, however often it is run. Spark gives each stream an id, which is
in its checkpoint, and each micro-batch a number. Tasks find both in their properties and pass them on in
their messages, since the process that commits does not get them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from uploader.partitioned import WriteId, job_name
from walstore import InvalidSettingsError, WalError
from walstore.runtime.clock import SystemClock
from walstore.spark.features import DataSourceStreamArrowWriter
from walstore.spark.sink.options import (
    BATCH_OPTIONS,
    STREAM_OPTIONS,
    SinkOptions,
    parse_sink_options,
)
from walstore.spark.sink.staging import Sink, check_columns, merge, prepare, run_in_store


class BatchWriter(DataSourceArrowWriter):
    """Writes one job. Picklable: Spark plans with one copy, writes with others, and commits with another."""

    def __init__(self, sink: Sink, write: WriteId) -> None:
        """Stage and commit as ``write``."""
        self._sink = sink
        self._write = write

    @classmethod
    def open(cls, options: SinkOptions, names: tuple[str, ...]) -> BatchWriter:
        """Return a writer of a new job, after a look at the partitioned log; blocks."""
        job = new_job()
        query, epoch = options.query, options.epoch
        write = WriteId.once(job) if query is None else WriteId(query, epoch, job)
        return cls(Sink(options, names, prepare(options)), write)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        context = TaskContext.get()
        return self._sink.stage(
            iterator, self._write, 0 if context is None else context.partitionId()
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what all tasks staged to the logs; see :meth:`Sink.commit`."""
        if None in messages:
            raise WalError("a task did not report what it staged; nothing was written")
        _, staged = merge(messages)
        self._sink.commit(self._write, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what was staged, unless it is committed: then a later run finishes it."""
        run_in_store(self._sink.options, lambda target: target.committer.abort(self._write))


def new_job() -> str:
    """Return the name of a new job."""
    return job_name(SystemClock().now_us(), secrets.token_hex(8))


QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Properties in which Spark passes the tasks of a stream the ids of the stream and of the micro-batch."""


class StreamWriter(DataSourceStreamArrowWriter, DataSourceStreamWriter):
    """Writes one micro-batch. Spark plans each with a new writer, and commits with another."""

    def __init__(self, sink: Sink, job: str) -> None:
        """Stage as ``job``, one attempt of a micro-batch."""
        self.sink = sink
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        context = TaskContext.get()
        if context is None:
            raise WalError("a stream's rows can only be written by a task of Spark")
        return self.stage(
            iterator,
            stream=context.getLocalProperty(QUERY_ID),
            epoch=context.getLocalProperty(BATCH_ID),
            task=context.partitionId(),
        )

    def stage(
        self, batches: Iterator[pa.RecordBatch], *, stream: str | None, epoch: str | None, task: int
    ) -> WriterCommitMessage:
        """Stage rows of a task of a stream's micro-batch."""
        if not stream or epoch is None:
            raise WalError(
                f"this Spark does not pass its tasks the id of their stream ({QUERY_ID}, {BATCH_ID}); "
                "write with foreachBatch, the batch writer, a queryId, and the micro-batch's number as epoch"
            )
        query = self.sink.options.query or stream
        return self.sink.stage(batches, WriteId(query, int(epoch), self._job, stream), task)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what all tasks staged to the logs, unless they already contain the micro-batch."""
        write, staged = merge(messages)
        if write is None or None in messages:
            raise WalError("a task did not report what it staged; nothing was written")
        if write.epoch != batchId:
            raise WalError(f"the tasks staged micro-batch {write.epoch}, not {batchId}")
        self.sink.commit(write, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what was staged, unless it is committed: then the next run finishes it.

        If no task finished, this process does not know what was staged; the next micro-batch deletes it.
        """
        del batchId
        write, _ = merge(messages)
        if write is not None:
            run_in_store(self.sink.options, lambda target: target.committer.abort(write))


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceWriter:
    """Return a writer that appends the rows of one job; its commit creates the partitioned log.

    Raises InvalidSettingsError for invalid options and columns, and for ``overwrite``; else as
    :func:`uploader.partitioned.open_partitions`.
    """
    _check_append(overwrite=overwrite)
    found = parse_sink_options(options, BATCH_OPTIONS)
    return BatchWriter.open(found, check_columns(schema, found.partition_by))


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamWriter:
    """Return a writer that appends the rows of a micro-batch. Raises as :func:`batch_writer`."""
    _check_append(overwrite=overwrite)
    found = parse_sink_options(options, STREAM_OPTIONS)
    names = check_columns(schema, found.partition_by)
    return StreamWriter(Sink(found, names, prepare(found)), new_job())


def _check_append(*, overwrite: bool) -> None:
    if overwrite:
        raise InvalidSettingsError(
            'a log can only be appended to: use mode("append"), or outputMode("append") for a stream'
        )
