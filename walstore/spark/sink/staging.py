"""What a task of the sink does: from Arrow batches to records and staged fragments. Blocking.

Converts one batch at a time, in bounded memory. The partition of a key is ``crc32(key) % partitions``, in
Spark ``pmod(crc32(key), partitions)``. A task's rows without a key go to one partition. The message to the
driver names the staged fragments; it is small, however many rows there were, and picklable.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from uploader.partitioned import Committer, SinkSettings, Staged, Stager, WriteId, open_partitions
from uploader.partitioned.stager import RECORDS
from uploader.stores import ObjectStore, RetryPolicy, open_store
from walstore import InvalidSettingsError, WalError
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.threads import Worker
from walstore.spark.planned_log import SyncRunner
from walstore.spark.rows import HEADERS_ARROW
from walstore.spark.sink.options import SinkOptions

COLUMNS: Final[dict[str, str]] = {
    "value": "binary or string",
    "key": "binary or string",
    "headers": "array<struct<key string, value binary>>",
    "stream": "string",
    "partition": "int",
    "timestamp": "timestamp",
}
"""Columns that can be written; ``value`` is required."""
_BYTES: Final = (BinaryType, StringType)
_WHOLE: Final = (IntegerType, LongType, ShortType, ByteType)
_US: Final = pa.timestamp("us", tz="UTC")


def check_columns(schema: StructType, partition_by: str | None = None) -> tuple[str, ...]:
    """Return the names of the columns.

    InvalidSettingsError if a log cannot take one of them, or a required one is missing: ``value``, and the
    column that selects the partition.
    """
    names = tuple(schema.fieldNames())
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise InvalidSettingsError(
                f"a log has no column {field.name!r}; it takes {_known()}: drop it, or pack it into value "
                "(to_json(struct(...)))"
            )
        if not _fits(field.name, field.dataType):
            raise InvalidSettingsError(
                f"the column {field.name} must be {COLUMNS[field.name]}, not "
                f"{field.dataType.simpleString()}: cast it"
            )
    if "value" not in names:
        raise InvalidSettingsError(f"rows need a column value; a log takes {_known()}")
    needed = {"key": "key", "column": "partition"}.get(partition_by or "", "value")
    if needed not in names:
        raise InvalidSettingsError(f"partitionBy={partition_by} needs a column {needed}")
    if len(set(names)) != len(names):
        raise InvalidSettingsError("two columns have the same name; rename or drop one of them")
    return names


def to_records(batch: pa.RecordBatch, names: Sequence[str], *, now_us: int) -> pa.Table:
    """Return the rows in the columns of ``RECORDS``; rows without a timestamp get ``now_us``.

    WalError for a row that cannot be a record.
    """
    found = dict(zip(names, batch.columns, strict=True))
    rows = batch.num_rows
    if found["value"].null_count:
        raise WalError("a row has no value (null); filter such rows out, or give them one")
    columns = [
        _times(found.get("timestamp"), rows, now_us),
        found["value"].cast(pa.binary()),
        found["key"].cast(pa.binary()) if "key" in found else pa.nulls(rows, pa.binary()),
        found["stream"].cast(pa.string()) if "stream" in found else pa.nulls(rows, pa.string()),
        _headers(found["headers"])
        if "headers" in found
        else pa.nulls(rows, RECORDS.field("headers").type),
    ]
    return pa.Table.from_arrays(columns, schema=RECORDS)


def partition_column(batch: pa.RecordBatch, names: Sequence[str], partitions: int) -> pa.Array:
    """Return the rows' partitions from the column; WalError for a number out of range."""
    found = batch.column(names.index("partition")).cast(pa.int64())
    low, high = pc.min_max(found).as_py().values()
    if found.null_count or low < 0 or high >= partitions:
        worst = None if found.null_count else (low if low < 0 else high)
        raise WalError(
            f"the column partition must be from 0 to {partitions - 1}, for there are {partitions} logs; "
            f"a row has {'null' if worst is None else worst}"
        )
    return found


def _known() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def _fits(name: str, found: DataType) -> bool:
    if name in {"value", "key"}:
        return isinstance(found, _BYTES)
    if name == "headers":
        return isinstance(found, ArrayType) and _is_header(found.elementType)
    if name == "partition":
        return isinstance(found, _WHOLE)
    return isinstance(found, TimestampType if name == "timestamp" else StringType)


def _is_header(found: DataType) -> bool:
    return (
        isinstance(found, StructType)
        and found.fieldNames() == ["key", "value"]
        and isinstance(found["key"].dataType, StringType)
        and isinstance(found["value"].dataType, BinaryType)
    )


def _times(column: pa.Array | None, rows: int, now_us: int) -> pa.Array:
    if column is None:
        return pa.repeat(pa.scalar(now_us, pa.uint64()), rows)
    times = pc.fill_null(column.cast(_US).cast(pa.int64()), now_us)
    if rows and pc.min(times).as_py() < 0:
        raise WalError("a row has a timestamp before 1970, which a record cannot have")
    return times.cast(pa.uint64())


def _headers(column: pa.Array) -> pa.Array:
    """Return lists of pairs as maps; WalError for a header that a record has twice."""
    lists = column.cast(HEADERS_ARROW)
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    bounds = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    keys, values = lists.flatten().flatten()
    if keys.null_count or values.null_count:
        raise WalError("a header has no key or no value (null); a record's headers have both")
    _check_once(keys, bounds)
    if lists.null_count:
        is_null = pa.concat_arrays([lists.is_null(), pa.array([False])])
        bounds = pc.if_else(is_null, pa.scalar(None, pa.int32()), bounds)
    maps = pa.MapArray.from_arrays(bounds, keys, values)
    return maps.cast(RECORDS.field("headers").type)


def _check_once(keys: pa.Array, bounds: pa.Array) -> None:
    names, ends = keys.to_pylist(), bounds.to_pylist()
    for start, limit in pairwise(ends):
        if limit - start > 1 and len(set(names[start:limit])) < limit - start:
            raise WalError(f"a record's headers have each name once: {names[start:limit]}")


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
    """Return how many logs there are, or will be once something is committed. Blocks."""
    return run_in_store(
        options,
        lambda target: open_partitions(
            target.store,
            options.partitions,
            retry=target.retry,
            worker=target.worker,
            creates=False,
        ),
    )


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

    def commit(self, write: WriteId, staged: Staged) -> None:
        """Publish what all tasks staged to the logs, and fix their number if this is the first write. Blocks.

        Raises as :func:`uploader.partitioned.open_partitions` and
        :meth:`uploader.partitioned.Committer.commit`.
        """

        async def act(target: SinkStore) -> None:
            await open_partitions(
                target.store, self.partitions, retry=target.retry, worker=target.worker
            )
            await target.committer.commit(write, staged)

        run_in_store(self.options, act)

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
