"""SparkMerger: merges large runs of a collection's batches as a Spark job.

Python tasks read the inputs and check their digests. The JVM sorts the updates into ranges of keys, so that
all updates of a key are in one task. There Python tasks consolidate some keys at a time and put the objects.
Each attempt of a task puts objects of its own; the job returns those of the attempts that Spark counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from uploader.root import cas
from uploader.runtime.task_groups import BackgroundTask
from uploader.stores import RetryPolicy, open_store
from uploader.versioned import updates
from uploader.versioned.compaction import MOST_OBJECT_ROWS, MergedFile, merged_file
from uploader.versioned.merging import MOST_OBJECTS, MergedObject, MergeJob, MergeResult
from uploader.versioned.names import merged_key
from uploader.versioned.schema import HASH, TIME, CollectionSchema
from walstore import InvalidSettingsError, WalError
from walstore.errors import LimitExceededError
from walstore.spark.blocking import run_blocking
from walstore.spark.environment import explain_worker
from walstore.spark.versioned.object_tasks import (
    HASH_LONG,
    ORDER,
    CollectionObjects,
    from_long,
)
from walstore.spark.versioned.types import from_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PIECE_ROWS: Final = 256 * 1024
_INTERRUPT_SECONDS: Final = 0.5
_REPORT: Final = "report"


class SparkMerger:
    """Merges passes of ``Controller.compact(engine=…)`` with Spark. Any number of controllers may use it.

    The tasks open the store by the collection's URL, with the credentials of their own environment. A pass
    reads its inputs twice: once to find the ranges of keys. Spark keeps one copy of them on its disks.
    """

    def __init__(self, spark: SparkSession, *, object_rows: int = MOST_OBJECT_ROWS) -> None:
        """Use a session. ``object_rows``: an object has about so many updates, and a task holds as many.

        InvalidSettingsError unless ``object_rows`` is 1 to 2 000 000.
        """
        if not 1 <= object_rows <= MOST_OBJECT_ROWS:
            raise InvalidSettingsError(
                f"object_rows must be 1 to {MOST_OBJECT_ROWS}, not {object_rows}"
            )
        self._spark = spark
        self._object_rows = object_rows

    async def merge(self, job: MergeJob) -> MergeResult:
        """Return what the job has put. Cancellation cancels the job's tasks and waits until they end.

        InvalidSettingsError for a ``memory:`` store and for columns that Spark has no type for. WalError with
        Spark's own error as its cause if the job fails: a damaged input, a store that does not answer.
        LimitExceededError if the rows would need more than 10 000 objects.
        """
        if job.url.startswith("memory:"):
            raise InvalidSettingsError(
                "a memory: store exists in this process alone, so that Spark's tasks cannot read it; "
                "compact with engine='local'"
            )
        if job.rows > self._object_rows * MOST_OBJECTS:
            raise LimitExceededError(
                f"{job.rows} rows are more than {MOST_OBJECTS} objects of {self._object_rows}; nothing was "
                "changed: choose a larger object_rows",
                limit=self._object_rows * MOST_OBJECTS,
            )
        tag = f"walstore-{secrets.token_hex(8)}"
        running = BackgroundTask[MergeResult]()
        running.start(asyncio.to_thread(self._run, job, tag), "merge in Spark")
        try:
            await running.wait()
        except asyncio.CancelledError:
            while running.is_busy:
                await asyncio.to_thread(self._spark.interruptTag, tag)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_INTERRUPT_SECONDS):
                        await running.wait()
            await running.aclose()  # what an interrupted job raises says nothing
            raise
        ended = running.take()
        assert ended is not None
        return ended.result()

    def _run(self, job: MergeJob, tag: str) -> MergeResult:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        self._spark.addTag(tag)
        try:
            found = self._frame(job).collect()
        except (PySparkException, Py4JError) as error:
            text = explain_worker(str(error)) or _cause(str(error))
            raise WalError(
                f"the compaction's Spark job failed; nothing was changed: {text}"
            ) from error
        finally:
            self._spark.removeTag(tag)
        reports = [json.loads(row[0]) for row in found]
        objects = sorted((one for one in reports if one["key"]), key=lambda one: one["place"])
        return MergeResult(
            objects=tuple(
                MergedObject(
                    **{name: one[name] for name in ("key", "rows", "size_bytes", "digest")}
                )
                for one in objects
            ),
            rows_read=sum(one["rows_read"] for one in reports),
            digest_read=sum(one["digest_read"] for one in reports) % (1 << 64),
        )

    def _frame(self, job: MergeJob) -> DataFrame:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField, StructType

        from walstore.spark.versioned.scanning import (
            check_names,
            map_in_arrow,
            python_updates,
            quoted,
        )

        check_names(self._spark, job.schema)
        objects = CollectionObjects(job.url, job.collection, job.schema)
        found = python_updates(self._spark, objects, job.inputs, with_hash=True)
        order = [quoted(name).asc_nulls_last() for name in job.schema.order]
        ranges = max(1, -(-job.rows // self._object_rows))
        placed = found.repartitionByRange(ranges, *order)
        placed = placed.sortWithinPartitions(*order, f.col(ORDER))
        work = MergeTask(job, self._object_rows)
        return map_in_arrow(placed, work.run, StructType([StructField(_REPORT, StringType())]))


@dataclass(frozen=True, slots=True)
class MergeTask:
    """What a task does with its range of keys. Picklable."""

    job: MergeJob
    object_rows: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a report for each object that was put, and one of what was read. Blocks."""
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        counted = _Counted()
        tables = consolidated(counted.each(stored(batches, self.job.schema)), self.job)
        for at, table in enumerate(_of_length(tables, self.object_rows)):
            yield _report(place=(number, at), **self._put(table))
        yield _report(key="", rows_read=counted.rows, digest_read=counted.digest)

    def _put(self, table: pa.Table) -> dict[str, Any]:
        job = self.job
        file = merged_file(
            table,
            job.schema,
            collection=job.collection,
            lower=job.lower,
            upper=job.upper,
            since=job.since,
        )
        key = run_blocking(lambda: _create(job, file))
        return {
            "key": key,
            "rows": file.rows,
            "size_bytes": len(file.data),
            "digest": file.digest,
            "rows_read": 0,
            "digest_read": 0,
        }


async def _create(job: MergeJob, file: MergedFile) -> str:
    store = open_store(job.url)
    key = merged_key(job.epoch)
    try:
        result = await cas.create(store, key, file.data, retry=RetryPolicy())
        result.decided(store.url, f"{key} was put; compact again")
    finally:
        await store.aclose()
    return key


class _Counted:
    """Counts updates on their way."""

    def __init__(self) -> None:
        self.rows = 0
        self.digest = 0

    def each(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self.rows += table.num_rows
            self.digest = (self.digest + updates.digest(table)) % (1 << 64)
            yield table


def stored(batches: Iterator[pa.RecordBatch], schema: CollectionSchema) -> Iterator[pa.Table]:
    """Yield batches of Spark as stored tables."""
    for batch in batches:
        table = from_spark(pa.Table.from_batches([batch]), schema)
        times, hashes = (from_long(table.column(name)) for name in (ORDER, HASH_LONG))
        own = {TIME: times, HASH: hashes}
        columns = [
            own[field.name] if field.name in own else pc.cast(table.column(field.name), field.type)
            for field in schema.stored
        ]
        yield pa.Table.from_arrays(columns, schema=schema.stored)


def consolidated(tables: Iterator[pa.Table], job: MergeJob) -> Iterator[pa.Table]:
    """Yield the consolidated updates of sorted tables, some keys at a time."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        if rows < _PIECE_ROWS:
            continue
        whole = pa.concat_tables(held).combine_chunks()
        end = last_key(whole, job.schema)
        if end:
            yield _consolidate(whole.slice(0, end), job, is_oldest=job.is_oldest)
            held = [whole.slice(end)]
        else:  # one key: what came later still counts, also over a removal
            held = [_consolidate(whole, job, is_oldest=False)]
        rows = sum(table.num_rows for table in held)
    if held:
        yield _consolidate(pa.concat_tables(held), job, is_oldest=job.is_oldest)


def _consolidate(table: pa.Table, job: MergeJob, *, is_oldest: bool) -> pa.Table:
    return updates.consolidate([table], job.schema, since=job.since, is_oldest=is_oldest)


def last_key(table: pa.Table, schema: CollectionSchema) -> int:
    """Return where the last key of a sorted table begins; 0 if it has only one. Pure.

    In a ``diff`` collection, where the last row begins: equal rows have equal hashes, whatever they contain.
    """
    names = (HASH,) if schema.kind == "diff" else schema.key
    differs = pa.repeat(pa.scalar(value=False), max(table.num_rows - 1, 0))
    for name in names:
        column = table.column(name).combine_chunks()
        differs = pc.or_(differs, pc.not_equal(column[1:], column[:-1]))
    at = pc.indices_nonzero(differs)
    return int(at[-1].as_py()) + 1 if len(at) else 0


def _of_length(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the same rows in tables of at most ``rows``."""
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        while count >= rows:
            whole = pa.concat_tables(held)
            yield whole.slice(0, rows)
            held, count = [whole.slice(rows)], count - rows
    if count:
        yield pa.concat_tables(held)


def _report(**fields: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array([json.dumps(fields)], pa.string())], names=[_REPORT])


def _cause(text: str) -> str:
    """Return the error of a task: the last line of its Python traceback, or the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("walstore.", "uploader.", "OSError"))]
    return (errors or lines or [""])[0][:300]
