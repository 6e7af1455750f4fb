"""The batch writer: all rows of a job, or none, and with a ``queryId`` once however often it is run."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from uploader.partitioned import WriteId, job_name
from walstore.errors import WalError
from walstore.runtime.clock import SystemClock
from walstore.spark.sink.message import merge
from walstore.spark.sink.options import SinkOptions
from walstore.spark.sink.place import SinkStore, at_place, prepare
from walstore.spark.sink.task import Sink


class BatchWriter(DataSourceArrowWriter):
    """Writes one job. Picklable: Spark plans with one copy of it, writes with others, commits with one
    more."""

    def __init__(self, sink: Sink, write: WriteId) -> None:
        """Stage and commit as ``write``."""
        self._sink = sink
        self._write = write

    @classmethod
    def open(cls, options: SinkOptions, names: tuple[str, ...]) -> BatchWriter:
        """Return a writer of a new job, after a look at the place; blocks."""
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
        """Put what all tasks staged into the logs; see :meth:`uploader.partitioned.Committer.commit`."""
        if None in messages:
            raise WalError("a task did not say what it staged; nothing was written")
        _, staged = merge(messages)

        async def act(place: SinkStore) -> bool:
            return await place.committer.commit(self._write, staged)

        at_place(self._sink.options, act)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged, unless it is committed: then a later run finishes it."""

        async def act(place: SinkStore) -> bool:
            return await place.committer.abort(self._write)

        at_place(self._sink.options, act)


def new_job() -> str:
    """Return the name of a job that begins now."""
    return job_name(SystemClock().now_us(), secrets.token_hex(8))
