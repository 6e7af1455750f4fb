"""Members of a group of a partitioned log."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.cloud import FAST
from tests.uploader.cloud_streams import put_log
from uploader import PartitionedLog
from uploader.partitioned import create_partitions
from uploader.partitioned.partitions import SubStore
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from walstore.errors import InvalidSettingsError, LogNotFoundError, WalClosedError


@pytest.fixture
async def store() -> FaultyStore:
    """Three logs, of which one was never written to."""
    store = FaultyStore(MemoryStore())
    await create_partitions(store, 3, retry=FAST)
    for partition in (0, 2):
        await put_log(SubStore(store, partition), 2, lambda _: None)
    return store


def opened(store: Any) -> Any:
    return PartitionedLog.open("memory://p", store=FaultyStore(store), retry=FAST)


async def test_members_share_the_records_of_all_logs(store) -> None:
    seen: Counter[tuple[int, int]] = Counter()

    async def work() -> None:
        async with opened(store) as log, log.group("g") as group:
            while jobs := await group.fetch(3, max_wait_seconds=0.5):
                seen.update((job.partition, job.offset) for job in jobs)
                await group.ack(jobs)

    await asyncio.gather(work(), work())

    assert seen == {(at, offset): 1 for at in (0, 2) for offset in range(1, 21)}


async def test_a_log_that_is_written_to_later_joins(store) -> None:
    async with opened(store) as log, log.group("g") as group:
        await group.ack(await group.fetch(100))
        await group.ack(await group.fetch(100))
        waiting = asyncio.ensure_future(anext(aiter(group)))
        await asyncio.sleep(0)
        await put_log(SubStore(store, 1), 1, lambda _: None, records=1)
        job = await waiting
        assert (job.partition, job.offset) == (1, 1)
        await job.ack()
        found = await group.statistics()
        assert {at: one.unsettled for at, one in found.items()} == {0: 0, 1: 0, 2: 0}
        assert await log.delete_group("g")
        with pytest.raises(WalClosedError, match="deleted"):
            await group.fetch(max_wait_seconds=0)


async def test_what_a_member_leaves_behind_comes_again(store) -> None:
    """It has begun the first job of each log."""
    async with opened(store) as log:
        async with log.group("g", ordered=True) as group:
            jobs = [*await group.fetch(20), *await group.fetch(20)]
            assert {job.partition for job in jobs} == {0, 2}
        with pytest.raises(WalClosedError, match="not in its group"):
            await group.fetch()
        async with log.group("g", ordered=True) as group:
            again = [*await group.fetch(20), *await group.fetch(20)]
            assert {job.partition for job in again if job.deliveries == 2} == {0, 2}
            assert [job.deliveries for job in again].count(1) == len(again) - 2
            with pytest.raises(RuntimeError, match="once"):
                await group.__aenter__()


async def test_bad_input(store) -> None:
    with pytest.raises(LogNotFoundError, match="no partitioned log"):
        await PartitionedLog.open("memory://q", store=MemoryStore())
    async with opened(store) as log:
        with pytest.raises(ValueError, match="the name of a group"):
            await log.group("../x").__aenter__()
        with pytest.raises(InvalidSettingsError, match="letters="):
            await log.group("g", max_deliver=1).__aenter__()
    with pytest.raises(WalClosedError):
        log.group("g")
    await log.aclose()


async def test_a_fetch_that_waits_ends_when_its_member_leaves(store) -> None:
    async with opened(store) as log:
        member = log.group("g")
        await member.__aexit__(None, None, None)  # before it entered: nothing happens
        await member.__aenter__()
        jobs = [*await member.fetch(20), *await member.fetch(20)]
        waiting = asyncio.ensure_future(member.fetch())
        await asyncio.sleep(0)
        await member.__aexit__(None, None, None)
        with pytest.raises(WalClosedError):
            await waiting
        with pytest.raises(RuntimeError, match="once"):
            await member.__aenter__()
        async with log.group("g") as other:
            again = [*await other.fetch(20), *await other.fetch(20)]
            assert {job.offset for job in again} == {job.offset for job in jobs}


async def test_jobs_are_acknowledged_in_their_own_group(store) -> None:
    async with opened(store) as log, log.group("a") as a, log.group("b") as b:
        jobs = await a.fetch(20)
        with pytest.raises(ValueError, match="of group 'a'"):
            await b.ack(jobs)
        for wrong in (jobs[0], [1], [jobs[0], None], 7):
            with pytest.raises(TypeError, match="takes"):
                await a.ack(wrong)  # type: ignore[arg-type]
        found = await a.statistics()
        assert sum(one.unsettled for one in found.values()) == len(jobs)
        await a.ack(jobs)
