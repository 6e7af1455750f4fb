"""The writers of both formats, for jobs: all rows or none; and for streams: each micro-batch once.

Tasks stage their rows where a :class:`Destination` has them; the program that commits publishes what all
tasks staged. Spark gives each stream an id, which is in its checkpoint, and each micro-batch a number. Tasks
find both in their properties and pass them on in their messages, since the process that commits does not get
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from walstore import InvalidSettingsError, WalError
from walstore.spark.features import DataSourceStreamArrowWriter

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Properties in which Spark passes the tasks of a stream the ids of the stream and of the micro-batch."""

_W = TypeVar("_W")
_S = TypeVar("_S")


class Destination(ABC, Generic[_W, _S]):
    """Where rows go. Picklable: it is sent to the tasks. Blocks.

    A write ``_W`` names a job or a micro-batch, ``_S`` is what one attempt of a task staged of it: small and
    picklable, however many rows there were.
    """

    otherwise: ClassVar[str]
    """How to write a stream if Spark does not pass its ids, for a message."""

    @abstractmethod
    def batch(self, stream: str, number: int) -> _W:
        """Return the write of a stream's micro-batch."""

    @abstractmethod
    def stage(self, batches: Iterator[pa.RecordBatch], write: _W, task: int) -> _S:
        """Stage the rows of one attempt of a task; WalError for a row that cannot be written."""

    @abstractmethod
    def commit_job(self, write: _W, staged: Sequence[_S]) -> None:
        """Publish what the tasks of a job staged, in the order of the tasks."""

    @abstractmethod
    def commit_batch(self, write: _W | None, staged: Sequence[_S], number: int) -> None:
        """Publish a micro-batch, unless an earlier attempt of it was; ``write`` is None without any task."""

    @abstractmethod
    def abort_job(self, write: _W) -> None:
        """Delete what was staged, unless it is committed: then a later run finishes it."""

    def abort_batch(self, write: _W | None) -> None:
        """Leave what was staged: it may be what counts. The next micro-batch deletes it."""


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The result of one task."""

    write: Any
    number: int
    """Of the micro-batch; 0 in a job."""
    task: int
    """Number of the task in the job; rows are published in this order."""
    staged: Any


class JobWriter(DataSourceArrowWriter):
    """Writes one job. Picklable: Spark plans with one copy, writes with others, and commits with another."""

    def __init__(self, destination: Destination[_W, _S], write: _W) -> None:
        """Stage and commit as ``write``."""
        self._to: Destination[Any, Any] = destination
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        return StagedMessage(self._write, 0, task, self._to.stage(iterator, self._write, task))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what all tasks staged; see :meth:`Destination.commit_job`."""
        found = _reported(messages)
        self._to.commit_job(self._write, [one.staged for one in found])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what was staged, unless it is committed: then a later run finishes it."""
        self._to.abort_job(self._write)


class MicroBatchWriter(DataSourceStreamArrowWriter, DataSourceStreamWriter):
    """Writes one micro-batch. Spark plans each with a new writer, and commits with another."""

    def __init__(self, destination: Destination[_W, _S]) -> None:
        """Stage and commit one attempt of a micro-batch."""
        self._to: Destination[Any, Any] = destination

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
                f"write with foreachBatch {self._to.otherwise}"
            )
        write = self._to.batch(stream, int(epoch))
        return StagedMessage(write, int(epoch), task, self._to.stage(batches, write, task))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what all tasks staged, unless an earlier attempt of the micro-batch was published."""
        found = _reported(messages)
        if found and found[0].number != batchId:
            raise WalError(f"the tasks staged micro-batch {found[0].number}, not {batchId}")
        write = found[0].write if found else None
        self._to.commit_batch(write, [one.staged for one in found], batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See :meth:`Destination.abort_batch`; without any message it is not known what was staged."""
        del batchId
        found = _of_one_write(messages)
        self._to.abort_batch(found[0].write if found else None)


def _reported(messages: Sequence[WriterCommitMessage | None]) -> list[StagedMessage]:
    """Return the messages in the order of the tasks; WalError if one is missing, or is of another write."""
    if None in messages:
        raise not_reported()
    return _of_one_write(messages)


def not_reported() -> WalError:
    """Return the error for a task without a message."""
    return WalError("a task did not report what it staged; nothing was written")


def _of_one_write(messages: Iterable[WriterCommitMessage | None]) -> list[StagedMessage]:
    found = [one for one in messages if isinstance(one, StagedMessage)]
    writes = {one.write for one in found}
    if len(writes) > 1:
        raise WalError(f"the tasks of one job staged rows of {len(writes)} writes")
    return sorted(found, key=lambda message: message.task)


def check_append(what: str, *, overwrite: bool, more: str = "") -> None:
    """Raise InvalidSettingsError for a mode that overwrites ``what``."""
    if overwrite:
        raise InvalidSettingsError(
            f'{what} can only be appended to: use mode("append"), or outputMode("append") for a stream{more}'
        )
