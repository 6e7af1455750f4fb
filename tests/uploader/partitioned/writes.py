"""Writes into partitioned logs in a memory store: tasks, drivers, and what is in the logs afterwards."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pyarrow as pa

from tests.cloud import FAST
from uploader import CloudLog
from uploader.partitioned import Committer, SinkSettings, Staged, Stager, WriteId, job_name
from uploader.partitioned.partitions import SubStore
from uploader.partitioned.stager import RECORDS
from uploader.stores.port import ObjectStore
from walstore import Record
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Worker
from walstore.errors import LogNotFoundError

NOW_US = 1_750_000_000_000_000
SMALL = SinkSettings(fragment_bytes=100, buffer_bytes=1000)
_JOBS = itertools.count(1)


class StillClock(SystemClock):
    """Sleeps really, and shows the wall time it is told."""

    def __init__(self, now_us: int = NOW_US) -> None:
        self.us = now_us

    def now_us(self) -> int:
        return self.us


STILL = dataclasses.replace(FAST, clock=StillClock())
"""Retries by the wall time that drivers have unless they are given another clock."""


def new_job(now_us: int = NOW_US) -> str:
    return job_name(now_us, f"{next(_JOBS):016x}")


def epoch(number: int, query: str = "query", job: str | None = None) -> WriteId:
    """Return a new run of an epoch of a stream."""
    return WriteId(query, number, job or new_job(), source="stream-1")


def table(values: Sequence[bytes], times_us: Sequence[int] | int = NOW_US) -> pa.Table:
    """Return records as a task gets them."""
    if isinstance(times_us, int):
        times_us = [times_us] * len(values)
    columns = [
        pa.array(times_us, pa.uint64()),
        pa.array(values, pa.binary()),
        *(pa.nulls(len(values), RECORDS.field(at).type) for at in range(2, len(RECORDS))),
    ]
    return pa.Table.from_arrays(columns, schema=RECORDS)


@asynccontextmanager
async def worker_of() -> AsyncIterator[Worker]:
    worker = Worker("test")
    try:
        yield worker
    finally:
        worker.close()


def stager_of(
    store: ObjectStore,
    write: WriteId,
    worker: Worker,
    *,
    task: int = 0,
    settings: SinkSettings = SMALL,
    clock: Clock | None = None,
) -> Stager:
    return Stager(
        store,
        write,
        f"{task}-0",
        settings=settings,
        retry=FAST,
        clock=clock or StillClock(),
        worker=worker,
    )


async def stage(
    store: ObjectStore,
    write: WriteId,
    rows: Mapping[int, Sequence[bytes]],
    *,
    task: int = 0,
    settings: SinkSettings = SMALL,
    clock: Clock | None = None,
    times_us: int = NOW_US,
) -> Staged:
    """Do what one task does."""
    async with (
        worker_of() as worker,
        stager_of(store, write, worker, task=task, settings=settings, clock=clock) as stager,
    ):
        for partition, values in rows.items():
            await stager.add(partition, table(values, times_us))
        return await stager.finish()


def merged(*tasks: Staged) -> Staged:
    """Return what several tasks staged, in the order of the tasks."""
    found: Staged = {}
    for task in tasks:
        for partition, fragments in task.items():
            found[partition] = (*found.get(partition, ()), *fragments)
    return found


@asynccontextmanager
async def driver(
    store: ObjectStore, settings: SinkSettings = SMALL, clock: Clock | None = None
) -> AsyncIterator[Committer]:
    async with worker_of() as worker:
        yield Committer(
            store,
            settings=settings,
            retry=FAST if clock else STILL,
            clock=clock or StillClock(),
            worker=worker,
        )


async def write_epoch(
    store: ObjectStore,
    write: WriteId,
    *tasks: Mapping[int, Sequence[bytes]],
    settings: SinkSettings = SMALL,
    clock: Clock | None = None,
) -> bool:
    """Run an epoch: its tasks, then the driver's commit."""
    staged = [
        await stage(store, write, rows, task=at, settings=settings, clock=clock)
        for at, rows in enumerate(tasks)
    ]
    async with driver(store, settings, clock) as committer:
        return await committer.commit(write, merged(*staged))


async def records_in(store: ObjectStore, partition: int) -> list[Record]:
    """Return all that is in one log, which must verify."""
    try:
        async with CloudLog.open("memory://ignored", store=SubStore(store, partition)) as log:
            await log.verify()
            return [record async for record in log.reader()]
    except LogNotFoundError:
        return []


async def values_in(store: ObjectStore, partition: int) -> list[bytes]:
    return [record.value for record in await records_in(store, partition)]


async def keys_in(store: ObjectStore, prefix: str = "") -> list[str]:
    return [listed.key async for listed in store.list(prefix)]
