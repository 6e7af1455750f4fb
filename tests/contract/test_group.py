"""A group: each record is one member's at a time, until it is acknowledged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases import case
from tests.contract.faces import Face, on
from tests.contract.neighbour import beside
from walstore import OffsetNotWrittenError, WalClosedError

WITH_GROUPS = ("opened", "replicated", "served", "stored", "partitioned", "blocking", "distant")
LONG: dict[str, Any] = {"ack_wait_seconds": 3600}


async def fetched(group: Any, count: int) -> list[Any]:
    """Return so many jobs, which may come in parts."""
    found: list[Any] = []
    while len(found) < count:
        found += await group.fetch(count - len(found))
    return found


async def find(log: Any) -> None:
    """Let a partitioned log look for records that were appended meanwhile."""
    if hasattr(log, "find_logs"):
        await log.find_logs()


@on(*WITH_GROUPS)
async def test_members_share_the_records_between_them(face: Face) -> None:
    await face.writer.append_many([b"%d" % n for n in range(6)])
    await find(face.log)
    async with face.log.group("g", **LONG) as one, face.log.group("g", **LONG) as other:
        jobs = [*await fetched(one, 3), *await fetched(other, 3)]
        assert [int(job.value) for job in jobs] == list(range(6))
        assert {job.deliveries for job in jobs} == {1}
        for job in jobs:
            await job.ack()
        assert await one.fetch(max_wait=0) == []


@on(*WITH_GROUPS)
async def test_a_job_comes_again_when_it_is_given_back(face: Face) -> None:
    await face.writer.append_many([b"1", b"2"])
    await find(face.log)
    async with face.log.group("g", **LONG) as group:
        first, second = await fetched(group, 2)
        await second.ack()
        await first.nak()
        (again,) = await fetched(group, 1)
        assert (again.value, again.deliveries) == (b"1", 2)
        await again.in_progress()
        await again.term()
        assert await group.fetch(max_wait=0) == []


@on(*WITH_GROUPS)
async def test_what_a_member_leaves_behind_comes_at_once_and_what_it_did_does_not(
    face: Face,
) -> None:
    await face.writer.append_many([b"1", b"2"])
    await find(face.log)
    async with face.log.group("g", **LONG) as group:
        first, _ = await fetched(group, 2)
        await first.ack()
    async with face.log.group("g", **LONG) as group:
        (job,) = await fetched(group, 1)
        assert (job.value, job.deliveries) == (b"2", 2)
        await job.ack()


@on(*WITH_GROUPS)
async def test_it_is_deleted_with_all_that_it_remembers(face: Face) -> None:
    await face.writer.append(b"1")
    await find(face.log)
    async with face.log.group("g", **LONG) as group:
        (job,) = await fetched(group, 1)
        await job.ack()
        assert await face.log.delete_group("g")
        with pytest.raises(WalClosedError):
            await group.fetch(max_wait=0)
    assert not await face.log.delete_group("g")
    async with face.log.group("g", **LONG) as group:
        assert [job.deliveries for job in await fetched(group, 1)] == [1]


@on("opened", "replicated", "served", "stored")
async def test_a_fetch_that_is_cancelled_takes_nothing_from_anybody(
    face: Face, request: pytest.FixtureRequest
) -> None:
    """Neither from the member itself nor from others: no job is lost, and none was delivered to nobody."""
    async with (
        face.log.group("g", **LONG) as group,
        beside(face, request.node.name, group="g") as neighbour,
    ):
        mine: list[int] = []
        for number in range(30):
            await face.writer.append(b"%d" % number)
            for job in await group.fetch(2, max_wait=0):
                assert job.deliveries == 1
                mine.append(job.offset)
                await job.ack()
    theirs = [offset for offset, _ in neighbour.jobs]
    assert sorted([*mine, *theirs]) == list(range(1, 31))


@on("opened", "replicated", "served")
async def test_what_is_no_job_is_refused(face: Face) -> None:
    async with face.log.group("g", **LONG) as group:
        with pytest.raises(TypeError):
            await group.ack([b"1"])
        with pytest.raises(ValueError, match="max_jobs"):
            await group.fetch(0)
        with pytest.raises(OffsetNotWrittenError):
            await group.backend.settle((99,))
    with pytest.raises(WalClosedError):
        await group.fetch()


@on("opened", "replicated", "served", "stored", "blocking", "distant")
async def test_what_a_member_had_not_begun_when_it_left_was_no_delivery(face: Face) -> None:
    """It takes its jobs in their order, so it has begun the first, and what it says it has."""
    await face.writer.append_many([b"1", b"2", b"3", b"4"])
    async with face.log.group("g", **LONG) as group:
        done, _, _, begun = await fetched(group, 4)
        await done.ack()
        await begun.in_progress()
        assert (await group.statistics()).delivered == 4
    async with face.log.group("g", **LONG) as group:
        again = sorted(await fetched(group, 3), key=lambda job: job.value)
        assert [(job.value, job.deliveries) for job in again] == [(b"2", 2), (b"3", 1), (b"4", 2)]
        statistics = await group.statistics()
        assert (statistics.delivered, statistics.redelivered) == (6, 2)


@on(*WITH_GROUPS)
async def test_a_settled_job_of_a_deleted_group_says_that_it_is_gone(face: Face) -> None:
    """As one that was not settled, wherever the group was deleted."""
    await face.writer.append(b"1")
    await find(face.log)
    for verb in ("ack", "term", "nak", "in_progress"):
        async with face.log.group(verb, **LONG) as group:
            (job,) = await fetched(group, 1)
            await job.ack()
            async with face.again() as log:
                assert await log.delete_group(verb)
            with case(verb), pytest.raises(WalClosedError, match="deleted"):
                await getattr(job, verb)()
