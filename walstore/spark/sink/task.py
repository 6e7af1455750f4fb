"""What a task of the sink does: from Arrow batches to staged fragments, in bounded memory. Blocking.

The partition of a key is ``crc32(key) % partitions``, in Spark ``pmod(crc32(key), partitions)``. A task's
rows without a key go to one partition. The message to the driver names the staged fragments; it is small,
however many rows there were, and picklable.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from uploader.partitioned import Committer, SinkSettings, Staged, Stager, WriteId, open_partitions
from uploader.stores import ObjectStore, RetryPolicy, open_store
from walstore import WalError
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.threads import Worker
from walstore.spark.planned_log import SyncRunner
from walstore.spark.sink.columns import partition_column, to_records
from walstore.spark.sink.options import SinkOptions

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SinkStore:
    """The store that contains the logs, with what calls on it need."""

    store: ObjectStore
    settings: SinkSettings
    retry: RetryPolicy
    clock: Clock
    worker: Worker

    @property
    def committer(self) -> Committer:
        """The committer that publishes staged rows to the logs."""
        return Committer(
            self.store,
            settings=self.settings,
            retry=self.retry,
            clock=self.clock,
            worker=self.worker,
        )


def run_in_store(options: SinkOptions, act: Callable[[SinkStore], Awaitable[_T]]) -> _T:
    """Return what ``act`` returns; blocks. Connections and threads are released afterwards."""

    async def run() -> _T:
        clock = SystemClock()
        store = open_store(options.location.text)
        worker = Worker("sink", threads=3)
        try:
            return await act(
                SinkStore(store, options.settings, RetryPolicy(clock=clock), clock, worker)
            )
        finally:
            worker.close()
            await store.aclose()

    with closing(SyncRunner()) as runner:
        return runner.run(run())


def prepare(options: SinkOptions) -> int:
    """Create the partitioned log if it does not exist; return its number of logs. Blocks."""

    async def act(target: SinkStore) -> int:
        return await open_partitions(
            target.store, options.partitions, retry=target.retry, worker=target.worker
        )

    return run_in_store(options, act)


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The result of one task."""

    write: WriteId
    task: int
    """Number of the task in the job; rows are published in this order."""
    staged: Staged


def merge(messages: Iterable[WriterCommitMessage | None]) -> tuple[WriteId | None, Staged]:
    """Return the write of all messages, and what was staged, in the order of the tasks.

    WalError if they are not of one write.
    """
    found = [one for one in messages if isinstance(one, StagedMessage)]
    if not found:
        return None, {}
    writes = {one.write for one in found}
    if len(writes) > 1:
        raise WalError(f"the tasks of one job staged rows of {len(writes)} writes")
    staged: Staged = {}
    for one in sorted(found, key=lambda message: message.task):
        for partition, fragments in one.staged.items():
            staged[partition] = (*staged.get(partition, ()), *fragments)
    return found[0].write, staged


def key_partitions(keys: pa.ChunkedArray, partitions: int, task: int) -> pa.Array:
    """Return the partition of each key; for null, that of the task."""
    own, crc32 = task % partitions, zlib.crc32
    return pa.array(
        [own if key is None else crc32(key) % partitions for key in keys.to_pylist()], pa.int64()
    )


def split(records: pa.Table, numbers: pa.Array) -> Iterator[tuple[int, pa.Table]]:
    """Yield the records of each partition, in order; copies the records once."""
    order = pc.sort_indices(numbers)  # stable
    counts = pc.value_counts(numbers.take(order))
    sorted_records = records.take(order)
    start = 0
    for number, count in zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True):
        yield number, sorted_records.slice(start, count)
        start += count


@dataclass(frozen=True, slots=True)
class Sink:
    """Writes rows with given columns. Picklable; sent to the tasks."""

    options: SinkOptions
    names: tuple[str, ...]
    """The columns."""
    partitions: int

    @property
    def by(self) -> str:
        """What selects a row's partition: ``key``, ``column`` or ``task``."""
        if self.options.partition_by is not None:
            return self.options.partition_by
        for column, by in (("partition", "column"), ("key", "key")):
            if column in self.names:
                return by
        return "task"

    def stage(self, batches: Iterator[pa.RecordBatch], write: WriteId, task: int) -> StagedMessage:
        """Stage the rows of one attempt of a task; blocks until the store has them."""
        attempt = f"{task}-{secrets.token_hex(4)}"

        async def act(target: SinkStore) -> Staged:
            stager = Stager(
                target.store,
                write,
                attempt,
                settings=target.settings,
                retry=target.retry,
                clock=target.clock,
                worker=target.worker,
            )
            async with stager:
                while (batch := await target.worker.run(_next, batches)) is not None:
                    now_us = target.clock.now_us()
                    parts = await target.worker.run(self.route, batch, task, now_us)
                    for partition, records in parts:
                        await stager.add(partition, records)
                return await stager.finish()

        return StagedMessage(write, task, run_in_store(self.options, act))

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


def _next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return next(batches, None)
