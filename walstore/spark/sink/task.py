"""What a task of the sink does: from Arrow batches to staged fragments, in bounded memory."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from uploader.partitioned import Staged, Stager, WriteId
from walstore.spark.sink.columns import partition_column, to_records
from walstore.spark.sink.message import StagedMessage
from walstore.spark.sink.options import SinkOptions
from walstore.spark.sink.place import SinkStore, at_place
from walstore.spark.sink.routing import key_partitions, split


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows of certain columns go. Picklable; it travels to the tasks."""

    options: SinkOptions
    names: tuple[str, ...]
    """The columns."""
    partitions: int

    @property
    def by(self) -> str:
        """What decides on a row's log: ``key``, ``column`` or ``task``."""
        if self.options.partition_by is not None:
            return self.options.partition_by
        for column, by in (("partition", "column"), ("key", "key")):
            if column in self.names:
                return by
        return "task"

    def stage(self, batches: Iterator[pa.RecordBatch], write: WriteId, task: int) -> StagedMessage:
        """Put the rows of one attempt of a task; blocks until the store has them."""
        attempt = f"{task}-{secrets.token_hex(4)}"

        async def act(place: SinkStore) -> Staged:
            stager = Stager(
                place.store,
                write,
                attempt,
                settings=place.settings,
                retry=place.retry,
                clock=place.clock,
                worker=place.worker,
            )
            async with stager:
                while (batch := await place.worker.run(_next, batches)) is not None:
                    now_us = place.clock.now_us()
                    parts = await place.worker.run(self.route, batch, task, now_us)
                    for partition, records in parts:
                        await stager.add(partition, records)
                return await stager.finish()

        return StagedMessage(write, task, at_place(self.options, act))

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
