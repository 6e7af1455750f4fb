"""LogSink: rows go to partitioned logs. A job with a ``queryId`` takes effect once, even if run again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from uploader.partitioned import Committer, Staged, Stager, WriteId, job_name, open_partitions
from uploader.stores import ObjectStore, RetryPolicy
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Worker
from walstore.spark.blocking import run_in_store
from walstore.spark.sink.options import (
    BATCH_OPTIONS,
    STREAM_OPTIONS,
    SinkOptions,
    parse_sink_options,
)
from walstore.spark.sink.records import (
    check_columns,
    key_partitions,
    partition_column,
    split,
    to_records,
)
from walstore.spark.sink.writers import (
    Destination,
    JobWriter,
    MicroBatchWriter,
    check_append,
    not_reported,
)


@dataclass(frozen=True, slots=True)
class LogSink(Destination[WriteId, Staged]):
    """Writes rows with given columns, as one job."""

    otherwise: ClassVar[str] = (
        ", the batch writer, a queryId, and the micro-batch's number as epoch"
    )

    options: SinkOptions
    names: tuple[str, ...]
    """The columns."""
    partitions: int
    job: str
    """Name of the job, or of this attempt of a micro-batch."""

    @classmethod
    def open(cls, options: SinkOptions, schema: StructType) -> LogSink:
        """Return the sink of a new job, after a look at the partitioned log; blocks.

        Raises InvalidSettingsError for columns that it cannot have; else as
        :func:`uploader.partitioned.open_partitions`.
        """
        names = check_columns(schema, options.partition_by)
        number = run_in_store(
            options.location.text,
            lambda store, worker: open_partitions(
                store, options.partitions, retry=RetryPolicy(), worker=worker, creates=False
            ),
        )
        return cls(options, names, number, job_name(SystemClock().now_us(), secrets.token_hex(8)))

    @property
    def by(self) -> str:
        """What selects a row's partition: ``key``, ``column`` or ``task``."""
        if self.options.partition_by is not None:
            return self.options.partition_by
        for column, by in (("partition", "column"), ("key", "key")):
            if column in self.names:
                return by
        return "task"

    def once(self) -> WriteId:
        """Return the write of a job."""
        query, epoch = self.options.query, self.options.epoch
        return WriteId.once(self.job) if query is None else WriteId(query, epoch, self.job)

    def batch(self, stream: str, number: int) -> WriteId:
        """Return the write of a stream's micro-batch, under the stream's name unless another is given."""
        return WriteId(self.options.query or stream, number, self.job, stream)

    def stage(self, batches: Iterator[pa.RecordBatch], write: WriteId, task: int) -> Staged:
        """Stage the rows of one attempt of a task; blocks until the store has them."""
        attempt, clock = f"{task}-{secrets.token_hex(4)}", SystemClock()

        async def act(store: ObjectStore, worker: Worker) -> Staged:
            stager = Stager(
                store,
                write,
                attempt,
                settings=self.options.settings,
                retry=RetryPolicy(),
                clock=clock,
                worker=worker,
            )
            async with stager:
                while (batch := await worker.run(next, batches, None)) is not None:
                    for partition, records in await worker.run(
                        self.route, batch, task, clock.now_us()
                    ):
                        await stager.add(partition, records)
                return await stager.finish()

        return run_in_store(self.options.location.text, act)

    def commit_job(self, write: WriteId, staged: Sequence[Staged]) -> None:
        """Publish what all tasks staged to the logs, and fix their number if this is the first write. Blocks.

        Raises as :func:`uploader.partitioned.open_partitions` and
        :meth:`uploader.partitioned.Committer.commit`.
        """
        whole: Staged = {}
        for one in staged:
            for partition, fragments in one.items():
                whole[partition] = (*whole.get(partition, ()), *fragments)

        async def act(store: ObjectStore, worker: Worker) -> None:
            await open_partitions(store, self.partitions, retry=RetryPolicy(), worker=worker)
            await self._committer(store, worker).commit(write, whole)

        run_in_store(self.options.location.text, act)

    def commit_batch(self, write: WriteId | None, staged: Sequence[Staged], number: int) -> None:
        """Publish a micro-batch, unless the logs already contain it."""
        if write is None:
            raise not_reported()
        self.commit_job(write, staged)

    def abort_job(self, write: WriteId) -> None:
        """Delete what was staged, unless it is committed: then a later run finishes it."""
        run_in_store(
            self.options.location.text,
            lambda store, worker: self._committer(store, worker).abort(write),
        )

    def abort_batch(self, write: WriteId | None) -> None:
        """As :meth:`abort_job`. If no task finished, the next micro-batch deletes what was staged."""
        if write is not None:
            self.abort_job(write)

    def route(
        self, batch: pa.RecordBatch, task: int, now_us: int
    ) -> Sequence[tuple[int, pa.Table]]:
        """Return a batch's records by partition; WalError for a row that cannot be a record."""
        if not batch.num_rows:
            return []
        records = to_records(batch, self.names, now_us=now_us)
        if self.by == "column":
            numbers = partition_column(batch, self.names, self.partitions)
        elif self.by == "task" or self.partitions == 1:
            return [(task % self.partitions, records)]
        else:
            numbers = key_partitions(records.column("key"), self.partitions, task)
        return list(split(records, numbers))

    def _committer(self, store: ObjectStore, worker: Worker) -> Committer:
        settings = self.options.settings
        return Committer(
            store, settings=settings, retry=RetryPolicy(), clock=SystemClock(), worker=worker
        )


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceWriter:
    """Return a writer that appends the rows of one job; its commit creates the partitioned log.

    Raises InvalidSettingsError for invalid options, and for ``overwrite``; else as :meth:`LogSink.open`.
    """
    check_append("a log", overwrite=overwrite)
    sink = LogSink.open(parse_sink_options(options, BATCH_OPTIONS), schema)
    return JobWriter(sink, sink.once())


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamWriter:
    """Return a writer that appends the rows of a micro-batch. Raises as :func:`batch_writer`."""
    check_append("a log", overwrite=overwrite)
    return MicroBatchWriter(LogSink.open(parse_sink_options(options, STREAM_OPTIONS), schema))
