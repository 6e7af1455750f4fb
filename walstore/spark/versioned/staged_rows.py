"""Staged rows: what a task of a write does, and what it tells the driver. Blocking I/O."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from uploader import Collection, open_store
from uploader.stores import RetryPolicy
from uploader.versioned.staging import (
    FILE_BYTES,
    MOST_BYTES,
    MOST_ROWS,
    StagedFile,
    StagedWrite,
    StagingArea,
)
from walstore import LimitExceededError, WalError
from walstore.runtime.clock import SystemClock
from walstore.runtime.threads import Worker
from walstore.spark.planned_log import SyncRunner
from walstore.spark.reader import off_loop
from walstore.spark.versioned.options import UpdateOptions

_T = TypeVar("_T")


@dataclass(frozen=True)
class StagedUpdates(WriterCommitMessage):
    """What one task staged."""

    write: StagedWrite
    task: int
    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A collection's store, opened, and its staging area."""

    url: str
    staging: StagingArea
    open: Callable[[], Awaitable[Collection]]


def in_store(url: str, act: Callable[[Site], Awaitable[_T]]) -> _T:
    """Return what ``act`` returns. Blocks, also inside an event loop; connections are released afterwards."""

    async def run() -> _T:
        store = open_store(url)
        worker = Worker("spark-staging", threads=2)
        retry = RetryPolicy(clock=SystemClock())

        async def open_it() -> Collection:
            return await Collection.open(url, store=store)

        try:
            return await act(Site(url, StagingArea(store, retry=retry, worker=worker), open_it))
        finally:
            worker.close()
            await store.aclose()

    def blocking() -> _T:
        with closing(SyncRunner()) as runner:
            return runner.run(run())

    return off_loop(blocking)


def stage(
    options: UpdateOptions,
    write: StagedWrite,
    names: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    *,
    job: str,
    task: int,
) -> StagedUpdates:
    """Stage the rows of one attempt of a task, in bounded memory."""
    attempt = f"{task:08x}-{secrets.token_hex(4)}"

    async def act(site: Site) -> tuple[StagedFile, ...]:
        files = []
        for rows in _gathered(batches, names):
            files.append(await site.staging.put(write, job, attempt, rows))
        return tuple(files)

    return StagedUpdates(write, task, in_store(options.location.text, act))


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


def merge(
    messages: Iterable[WriterCommitMessage | None],
) -> tuple[StagedWrite | None, list[StagedFile]]:
    """Return the write of all messages, and what was staged, in the order of the tasks; WalError."""
    found = [message for message in messages if isinstance(message, StagedUpdates)]
    writes = {one.write for one in found}
    if len(writes) > 1:
        raise WalError(f"the tasks of one job staged rows of {len(writes)} writes")
    files = [file for one in sorted(found, key=lambda message: message.task) for file in one.files]
    return (found[0].write if found else None), files


def check_size(files: Sequence[StagedFile]) -> None:
    """Raise LimitExceededError for more than one batch may have."""
    rows, num_bytes = sum(file.rows for file in files), sum(file.num_bytes for file in files)
    if rows > MOST_ROWS or num_bytes > MOST_BYTES:
        raise LimitExceededError(
            f"the batch has {rows} rows and {num_bytes} bytes, and goes through the memory of one "
            f"program, which takes {MOST_ROWS} rows and {MOST_BYTES} bytes; nothing was written: make the "
            "source's micro-batches smaller, or write in several jobs",
            limit=MOST_ROWS if rows > MOST_ROWS else MOST_BYTES,
        )
