"""Staging: fragments of bounded size in bounded memory, at keys that no log looks at."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.cloud import FAST
from tests.uploader.partitioned.writes import (
    NOW_US,
    SMALL,
    epoch,
    keys_in,
    stage,
    stager_of,
    table,
    worker_of,
    write_epoch,
)
from uploader import CloudWriter
from uploader.fragments.fragment import inspect_fragment
from uploader.partitioned.partitions import SubStore
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, hang, happen_then_fail, timeout
from walstore.errors import RecordTooLargeError, StorageUnavailableError, WalError


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


def values(count: int, size: int = 40) -> list[bytes]:
    return [b"%04d" % at + bytes(size - 4) for at in range(count)]


async def test_fragments_follow_the_end_of_their_log(store):
    await write_epoch(store, epoch(0), {0: values(5)})
    write = epoch(1)
    staged = await stage(store, write, {0: values(20), 3: values(2)})
    first, *rest = staged[0]
    assert first.start == 6
    for before, after in zip([first, *rest], rest, strict=False):
        assert after.start == before.limit
    assert rest[-1].limit == 26
    assert [(one.start, one.limit) for one in staged[3]] == [(1, 3)]
    for one in (*staged[0], *staged[3]):
        assert one.key.startswith(f"sink/staging/query/0000000000000001/{write.job}/0-0/")
        data = (await store.get(one.key)).data
        found = await asyncio.to_thread(inspect_fragment, data, "log/FragmentSeqNo=1.parquet")
        assert (found.start, found.limit, found.num_bytes) == (one.start, one.limit, one.num_bytes)
        assert found.setsum == one.setsum
        assert one.times_us == (NOW_US, NOW_US)


async def test_large_batches_are_cut(store):
    settings = dataclasses.replace(SMALL, fragment_bytes=1000)
    staged = await stage(store, epoch(0), {0: values(1000)}, settings=settings)
    assert sum(one.count for one in staged[0]) == 1000
    assert max(one.count for one in staged[0]) * 52 < 3000
    huge = await stage(store, epoch(0), {0: values(3, 5000)}, settings=settings)
    assert [one.count for one in huge[0]] == [1, 1, 1]


async def test_the_buffer_of_all_logs_is_bounded(store):
    """The largest part goes first, though it is not what a fragment should have."""
    settings = dataclasses.replace(SMALL, fragment_bytes=10_000, buffer_bytes=2000)
    async with (
        worker_of() as worker,
        stager_of(store, epoch(0), worker, settings=settings) as stager,
    ):
        for partition in range(8):
            await stager.add(partition, table(values(10 if partition == 3 else 5)))
        for partition in range(8):
            await stager.add(partition, table(values(1)))
        found = await stager.finish()
    assert {partition: len(found[partition]) for partition in (2, 3)} == {2: 1, 3: 2}


async def test_few_fragments_are_under_way(store):
    settings = dataclasses.replace(SMALL, max_in_flight=2)
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", hang(release, reached), times=2)
    async with (
        worker_of() as worker,
        asyncio.TaskGroup() as tasks,
        stager_of(store, epoch(0), worker, settings=settings) as stager,
    ):
        adding = tasks.create_task(stager.add(0, table(values(100))))
        await reached.wait()
        assert not adding.done()
        assert store.count("put_if_absent").requests <= 2
        release.set()
        await adding
        staged = await stager.finish()
    assert sum(one.count for one in staged[0]) == 100


async def test_an_answer_that_is_lost_is_asked_for_again(store):
    store.on("put_if_absent", happen_then_fail(timeout()))
    staged = await stage(store, epoch(0), {0: values(3)})
    assert sum(one.count for one in staged[0]) == 3


@pytest.mark.parametrize("nth", range(1, 6))
async def test_a_task_that_fails_removes_what_it_put(store, nth):
    store.on("put_if_absent", fail(StorageUnavailableError("no", retriable=False)), nth=nth)
    with pytest.raises(StorageUnavailableError):
        await stage(store, epoch(0), {0: values(20)})
    assert await keys_in(store, "sink/") == []


async def test_a_task_that_is_cut_off_by_its_rows_removes_what_it_put(store):
    async with worker_of() as worker:
        with pytest.raises(RecordTooLargeError, match="exceeds max_record_bytes"):
            async with stager_of(
                store, epoch(0), worker, settings=dataclasses.replace(SMALL, max_record_bytes=50)
            ) as stager:
                await stager.add(0, table(values(10)))
                await stager.add(0, table(values(1, 51)))
        with pytest.raises(ValueError, match="ahead of the clock"):
            async with stager_of(store, epoch(0), worker) as stager:
                await stager.add(0, table(values(1), NOW_US + 86_400_000_001))
    assert await keys_in(store, "sink/") == []


async def test_two_attempts_never_share_a_name(store):
    write = epoch(0)
    await stage(store, write, {0: values(3)})
    with pytest.raises(WalError, match="another writer put"):
        await stage(store, write, {0: values(4)})


async def test_a_log_is_looked_at_once_and_left_alone(store):
    async with CloudWriter.open("memory://x", store=SubStore(store, 0), retry=FAST) as log:
        await log.append(b"x")
    before = await keys_in(store, "0/")
    await stage(store, epoch(0), {0: values(5)})
    assert await keys_in(store, "0/") == before
    assert await keys_in(store, "1/") == []
