"""A group: each record is one member's at a time, until it is acknowledged."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case
from tests.contract.faces import Face, on
from tests.contract.neighbour import beside
from walstore import (
    CorruptionError,
    InvalidSettingsError,
    LeaseExpiredError,
    OffsetNotWrittenError,
    WalClosedError,
)

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
        assert await one.fetch(max_wait_seconds=0) == []


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
        assert await group.fetch(max_wait_seconds=0) == []


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
            await group.fetch(max_wait_seconds=0)
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
            for job in await group.fetch(2, max_wait_seconds=0):
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


@on(*WITH_GROUPS)
async def test_a_member_of_a_deleted_group_does_nothing_in_the_next_of_that_name(
    face: Face,
) -> None:
    await face.writer.append_many([b"1", b"2", b"3"])
    await find(face.log)
    async with face.log.group("g", **LONG) as before:
        (old,) = await fetched(before, 1)
        assert await face.log.delete_group("g")
        async with face.log.group("g", **LONG) as after:
            (job,) = await fetched(after, 1)
            assert (job.value, job.deliveries) == (old.value, 1)
            calls = {"fetch": partial(before.fetch, max_wait_seconds=0)}
            if not face.is_blocking:
                calls |= {"all": partial(before.ack, [old]), "statistics": before.statistics}
            calls |= {verb: getattr(old, verb) for verb in ("ack", "nak", "in_progress", "term")}
            for verb, does in calls.items():
                with case(verb), pytest.raises(WalClosedError, match="deleted"):
                    await does()
            await job.in_progress()
        async with face.log.group("g", **LONG) as after:
            assert [job.value for job in await fetched(after, 3)] == [b"1", b"2", b"3"]


@on("opened", "replicated", "served", "stored", "blocking", "distant")
async def test_options_change_once_nobody_is_there(face: Face) -> None:
    """Until then the refusal says who is there; what was acknowledged before stays so."""
    await face.writer.append_many([b"1", b"2", b"3"])
    async with face.log.group("g", **LONG) as group:
        first, _ = await fetched(group, 2)
        await first.ack()
        for other in ({"ack_wait_seconds": 60.0}, {"max_ack_pending": 5, **LONG}):
            with (
                case(other),
                pytest.raises(
                    InvalidSettingsError, match="1 members are there and 1 jobs are leased"
                ),
            ):
                await enter(face.log.group("g", **other))
    async with face.log.group("g", ack_wait_seconds=60.0) as group:
        jobs = await fetched(group, 2)
        assert [job.value for job in jobs] == [b"2", b"3"]
        for job in jobs:
            await job.ack()
        with pytest.raises(InvalidSettingsError, match="1 members are there and 0 jobs are leased"):
            await enter(face.log.group("g", **LONG))
    async with (
        face.log.group("g", max_ack_pending=1, **LONG) as group,
        face.log.group("g", max_ack_pending=1, **LONG) as other,
    ):
        await face.writer.append_many([b"4", b"5"])
        (job,) = await fetched(group, 1)
        assert await other.fetch(max_wait_seconds=0) == []
        with pytest.raises(InvalidSettingsError, match="2 members are there and 1 jobs are leased"):
            await enter(face.log.group("g", **LONG))
        await job.ack()
        assert [job.value for job in await fetched(other, 1)] == [b"5"]


@on("opened", "replicated", "served", "stored", "blocking", "distant")
async def test_what_was_done_late_counts_although_the_options_have_changed(face: Face) -> None:
    """While the group with the other options is in use, and while nobody is there."""
    await face.writer.append_many([b"%d" % number for number in range(1, 7)])
    await find(face.log)
    async with face.log.group("g", **LONG) as group:
        one, two, three, four, five, _ = await fetched(group, 6)
    async with face.log.group("g", ack_wait_seconds=60.0) as group:
        await one.ack()
        await two.term()
        jobs = await fetched(group, 4)
        assert [job.value for job in jobs] == [b"3", b"4", b"5", b"6"]
        await three.ack()
        assert (await group.statistics()).pending == 3
        await four.nak()  # the lease is another member's
        with pytest.raises(LeaseExpiredError):
            await four.in_progress()
        assert (await group.statistics()).pending == 3
    await four.ack()
    async with face.log.group("g", ack_wait_seconds=70.0) as group:
        await five.ack()  # from two changes before
        await five.ack()
        (job,) = await fetched(group, 1)
        assert job.value == b"6"
        assert await face.log.delete_group("g")
        for late in (four, five, job):
            with pytest.raises(WalClosedError, match="deleted"):
                await late.ack()


@on("opened", "replicated", "served", "stored", "blocking", "distant")
async def test_a_delay_is_kept_when_the_options_change(face: Face) -> None:
    """Also if they change twice, and nobody looks in between."""
    await face.writer.append_many([b"1", b"2"])
    await find(face.log)
    async with face.log.group("g", **LONG) as group:
        first, _ = await fetched(group, 2)
        await first.nak(delay_seconds=600)
    for seconds in (60.0, 70.0):
        async with face.log.group("g", ack_wait_seconds=seconds):
            pass
    async with face.log.group("g", ack_wait_seconds=80.0) as group:
        (job,) = await fetched(group, 1)
        assert (job.value, await group.fetch(max_wait_seconds=0)) == (b"2", [])


@on("opened", "replicated", "served")
async def test_stream_and_order_change_once_nobody_is_there(face: Face) -> None:
    await face.writer.append(b"1", stream="a")
    async with face.log.group("g", stream="a", **LONG) as group:
        (job,) = await fetched(group, 1)
        await job.ack()
    async with face.log.group("g", stream="b", ordered=True, **LONG) as group:
        await face.writer.append(b"2", stream="b", key=b"k")
        assert [job.value for job in await fetched(group, 1)] == [b"2"]


@on("stored")
async def test_stream_and_order_of_a_group_in_a_store_never_change(face: Face) -> None:
    """Members of other programs are not known, and one that is idle would go on with the former ones."""
    await face.writer.append(b"1", stream="a")
    async with face.log.group("g", stream="a", **LONG) as group:
        (job,) = await fetched(group, 1)
        await job.ack()
    for other in ({"stream": "b"}, {"stream": "a", "ordered": True}, {}):
        with case(other), pytest.raises(InvalidSettingsError):
            await enter(face.log.group("g", **other, **LONG))
    async with face.log.group("g", stream="a", **LONG) as group:
        assert (await group.statistics()).unsettled == 0
    assert await face.log.delete_group("g")
    async with face.log.group("g", stream="b", ordered=True, **LONG) as group:
        await face.writer.append(b"2", stream="b", key=b"k")
        assert [job.value for job in await fetched(group, 1)] == [b"2"]


@on("opened", "replicated", "served", "stored", "blocking", "distant")
async def test_groups_are_listed_in_use_or_not(face: Face) -> None:
    await face.writer.append_many([b"1", b"2"])
    async with face.log.group("g", **LONG) as group:
        first, _ = await fetched(group, 2)
        await first.ack()
        async with face.log.group("h", **LONG):
            one, other = await face.log.groups()
            assert (one.name, one.floor, one.behind, one.problem) == ("g", 2, 1, None)
            assert (other.name, other.floor, other.behind, other.problem) == ("h", 1, 2, None)
            assert (one.statistics.pending, one.statistics.unsettled) == (1, 1)
    assert await face.log.delete_group("h")
    (one,) = await face.log.groups()
    assert (one.name, one.floor, one.behind, one.problem) == ("g", 2, 1, None)
    async with face.again() as log:
        assert [(found.name, found.floor) for found in await log.groups()] == [("g", 2)]


@on("opened", "served", "blocking", "distant")
async def test_a_damaged_group_is_listed_with_what_is_wrong(face: Face, tmp_path: Path) -> None:
    async with face.log.group("good", **LONG):
        pass
    (tmp_path / "log/groups/torn").write_bytes(b"not a group")
    good, torn = await face.log.groups()
    assert (good.problem, torn.statistics) == (None, None)
    assert isinstance(torn.problem, CorruptionError)
    assert str(torn.problem.path) == str(tmp_path / "log/groups/torn")
    assert "torn" in str(torn.problem)
    assert await face.log.delete_group("torn")
    assert [one.name for one in await face.log.groups()] == ["good"]


async def enter(group: Any) -> None:
    """Enter a group, and leave it."""
    async with group:
        pass
