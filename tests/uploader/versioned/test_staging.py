"""Staged updates: one attempt decides, whatever fails or is not answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

from tests.uploader.versioned.collections import Clock
from uploader import Collection
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore
from uploader.testing.faults import StoreKilled, fail, happen_then_kill, kill, report, timeout
from uploader.versioned.names import is_collection_key, parse_staging_key
from uploader.versioned.staging import StagedFile, StagedWrite, StagingArea, job_query
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    CorruptionError,
    FormatVersionError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)

WRITE = StagedWrite("query", 3)
ROWS = pa.table({"id": [1, 2]})


class Driver:
    """One process with its own way to the store."""

    def __init__(self, objects: MemoryStore, worker: Worker, name: str) -> None:
        self.store = FaultyStore(objects)
        retry = RetryPolicy(clock=Clock(), attempts=2, first_wait_seconds=0.001, jitter=lambda: 0.0)
        self.staging = StagingArea(self.store, retry=retry, worker=worker)
        self.job = name * 16

    async def put(self, rows: pa.Table = ROWS) -> StagedFile:
        return await self.staging.put(WRITE, self.job, "00000000-00000000", rows)


@asynccontextmanager
async def drivers() -> AsyncIterator[tuple[Driver, Driver, MemoryStore]]:
    objects = MemoryStore()
    worker = Worker("test", threads=2)
    yield Driver(objects, worker, "a"), Driver(objects, worker, "b"), objects
    worker.close()


async def keys(objects: MemoryStore) -> list[str]:
    return [listed.key async for listed in objects.list("")]


async def test_the_first_intent_is_everyones():
    async with drivers() as (one, other, _):
        first, second = await one.put(), await other.put(pa.table({"id": [7]}))
        assert await other.staging.intend(WRITE, [second]) == (second,)
        assert await one.staging.intend(WRITE, [first]) == (second,)
        assert await other.staging.intend(WRITE, [second]) == (second,), "again"
        [table] = await one.staging.load([second])
        assert table.column("id").to_pylist() == [7]


async def test_finishing_removes_files_and_earlier_batches_but_not_the_decision():
    async with drivers() as (one, other, objects):
        earlier = StagedWrite("query", 2)
        await one.staging.intend(earlier, [])
        await one.staging.finish(earlier)
        file = await one.put()
        await other.put()
        await one.staging.intend(WRITE, [file])
        later = StagedWrite("query", 4)
        await one.staging.intend(later, [])
        assert not await one.staging.is_done(WRITE)
        await one.staging.finish(WRITE)
        assert await other.staging.is_done(WRITE)
        assert await keys(objects) == [
            WRITE.folder + "done",
            WRITE.folder + "intent",
            later.folder + "intent",
        ]


@pytest.mark.parametrize("happens", [True, False])
async def test_a_decision_without_an_answer(happens):
    """The next attempt decides the same for both."""
    async with drivers() as (one, other, _):
        first, second = await one.put(), await other.put()
        one.store.on("put_if_absent", report("timeout", happens=happens))
        one.store.on("any", fail(timeout()), times=9)
        with pytest.raises((OutcomeUnknownError, StorageUnavailableError)):
            await one.staging.intend(WRITE, [first])
        expected = first if happens else second
        assert await other.staging.intend(WRITE, [second]) == (expected,)


async def commit(driver: Driver, ids: list[int]) -> None:
    """Do what Spark's driver does for a micro-batch."""
    staging = driver.staging
    async with Collection.open("memory://here", store=driver.store) as collection:
        if await staging.is_done(WRITE):
            return
        files = await staging.intend(WRITE, [await driver.put(pa.table({"id": ids}))])
        tables = await staging.load(files)
        await collection.writer().append(pa.concat_tables(tables), lower=0, upper=1)
        await staging.finish(WRITE)


FAULTS = {
    "killed before": kill,
    "killed after": happen_then_kill,
    "lost": lambda: report("timeout", happens=False),
    "unanswered": lambda: report("timeout", happens=True),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_ends_an_attempt_the_batch_is_there_once(fault):
    """At each call: the next attempt has other rows, and those of exactly one attempt are there."""
    for nth in range(1, 60):
        async with drivers() as (one, other, objects):
            async with Collection.open(
                "memory://here", store=objects, create=True, schema=ROWS.schema
            ):
                pass
            one.store.on("any", FAULTS[fault](), nth=nth)
            has_failed = False
            try:
                await commit(one, [1, 2])
            except (StoreKilled, WalError):
                has_failed = True
            await commit(other, [3])
            async with (
                Collection.open("memory://here", store=objects) as collection,
                await collection.reader() as reader,
            ):
                found = (await reader.snapshot()).column("id").to_pylist()
            assert found in ([1, 2], [3]), nth
            assert has_failed or found == [1, 2], "what was acknowledged is there"
            if nth > one.store.requests:
                return  # every call had its fault
    raise AssertionError("the attempt has more calls than were tried")


async def test_files_that_are_not_what_was_staged():
    async with drivers() as (one, _, objects):
        file = await one.put()
        data = bytearray((await objects.get(file.key)).data)
        data[len(data) // 3] ^= 1
        await objects.delete([file.key])
        await objects.put_if_absent(file.key, bytes(data))
        with pytest.raises(CorruptionError):
            await one.staging.load([file])
        await objects.delete([file.key])
        with pytest.raises(CorruptionError, match="not known"):
            await one.staging.load([file])


@pytest.mark.parametrize(
    "intent",
    [
        b"",
        b"{}",
        b'{"version": 2, "files": []}',
        b'{"version": 1, "files": [{"key": "head", "rows": 1, "num_bytes": 1, "size_bytes": 1}]}',
        b'{"version": 1, "files": [1]}',
    ],
)
async def test_an_intent_that_is_none(intent):
    async with drivers() as (one, _, objects):
        await objects.put_if_absent(WRITE.folder + "intent", intent)
        with pytest.raises((CorruptionError, FormatVersionError)):
            await one.staging.intend(WRITE, [])


async def test_a_job_is_discarded_and_an_old_one_swept():
    async with drivers() as (one, _, objects):
        old, new = StagedWrite(job_query(1), 0), StagedWrite(job_query(10**15), 0)
        for write in (old, new, WRITE):
            await one.staging.put(write, one.job, "00000000-00000000", ROWS)
        await objects.put_if_absent("staging/job-x/notes", b"of somebody")
        await one.staging.sweep_jobs(10**15)
        assert [parse_staging_key(key) for key in await keys(objects)] == [
            None,
            (new.query, 0),
            ("query", 3),
        ] or len(await keys(objects)) == 3
        await one.staging.discard(new.query)
        assert len(await keys(objects)) == 2


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (WRITE.folder + "intent", ("query", 3)),
        (WRITE.folder + "done", ("query", 3)),
        (WRITE.folder + "other", None),
        ("staging/query/3/done", None),
        ("staging/a/b/0000000000000003/done", None),
        ("pending/main/0000000000000003.parquet", None),
    ],
)
def test_keys(key, found):
    assert parse_staging_key(key) == found
    assert is_collection_key(key) == (found is not None or key.startswith("pending/"))
