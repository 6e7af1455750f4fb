"""GroupCoordinator: how far it reads ahead of its members, and how it begins."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from tests.local import SMALL
from walstore import Job, OffsetNotWrittenError, Wal


@pytest.mark.parametrize("size", [0, 20, 3000])
async def test_what_is_not_settled_takes_so_much_memory_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """However many members wait and whatever the records hold; all of them come, as others are settled."""
    monkeypatch.setattr("walstore.positions.groups.coordinator.MOST_HELD_BYTES", 20_000)
    monkeypatch.setattr("walstore.positions.groups.coordinator._READ_RECORDS", 5)  # at once
    async with Wal.open(tmp_path / "log", settings=SMALL) as wal:
        for _ in range(60):
            await wal.append_many([bytes(size)] * 5)
        seen: list[int] = []
        async with wal.group("g", max_ack_pending=1000) as group:
            while len(seen) < 300:
                jobs = await group.fetch(1000, max_wait_seconds=60)
                unsettled = (await group.statistics()).unsettled
                assert (unsettled - 5) * (size + 200) <= 20_000
                seen += [job.offset for job in jobs]
                await group.ack(jobs)
        assert seen == list(range(1, 301))


async def turns_beside(work: asyncio.Future[None]) -> int:
    """Return how often others come while something is done."""
    for turns in count():
        if work.done():
            return turns
        await asyncio.sleep(0)
    raise AssertionError


@pytest.mark.parametrize("ends", ["left", "cancelled", "closed"])
async def test_others_come_between_what_a_member_gives_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """All of it is given back, also if the member is cancelled or the log is closed meanwhile."""
    monkeypatch.setattr("walstore.positions.groups.job_table.PART_JOBS", 10)
    wal = await Wal.open(tmp_path / "log", settings=SMALL)
    await wal.append_many([b""] * 500)
    group = await wal.group("g", max_deliver=1).__aenter__()
    jobs = 0
    while jobs < 500:
        jobs += len(await group.fetch(500))
    leaving = asyncio.ensure_future(group.__aexit__(None, None, None))
    if ends == "left":
        assert await turns_beside(leaving) >= 50
    else:
        await asyncio.sleep(0)
        assert not leaving.done()
    if ends == "cancelled":
        leaving.cancel()
        await asyncio.wait((leaving,))
    await wal.aclose()
    await asyncio.wait((leaving,))
    async with Wal.open(tmp_path / "log") as wal, wal.group("g", max_deliver=1) as group:
        while jobs > 1:  # of the first one there is a dead letter
            jobs -= len(await group.fetch(500))
        assert await group.fetch(max_wait_seconds=0) == []


@pytest.mark.parametrize("ends", ["done", "cancelled", "closed"])
async def test_others_come_between_what_is_acknowledged_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """All of it is acknowledged, also if the caller is cancelled or the log is closed meanwhile."""
    monkeypatch.setattr("walstore.positions.groups.job_table.PART_JOBS", 10)
    wal = await Wal.open(tmp_path / "log", settings=SMALL)
    await wal.append_many([b""] * 500)
    group = await wal.group("g").__aenter__()
    jobs: list[Job] = []
    while len(jobs) < 500:
        jobs += await group.fetch(500)
    acking = asyncio.ensure_future(group.ack(jobs))
    if ends == "done":
        assert await turns_beside(acking) >= 50
    else:
        await asyncio.sleep(0)
        assert (await group.statistics()).unsettled == 490
    if ends == "cancelled":
        acking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acking
    await wal.aclose()
    if ends != "cancelled":
        await acking
    async with Wal.open(tmp_path / "log") as wal, wal.group("g") as group:
        assert await group.fetch(max_wait_seconds=0) == []


async def test_nothing_is_acknowledged_if_one_is_no_job(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log", settings=SMALL) as wal:
        await wal.append_many([b""] * 3)
        async with wal.group("g") as group:
            assert len(await group.fetch(3)) == 3
            for wrong in (0, 4):
                with pytest.raises(OffsetNotWrittenError, match="no job"):
                    await group.backend.settle([1, wrong, 2])
                assert (await group.statistics()).unsettled == 3


async def test_a_letter_that_is_refused_keeps_nobody_out_after_a_restart(tmp_path: Path) -> None:
    async with Wal.open(tmp_path) as wal:
        await wal.append_many([b"dies", b"lives"], stream="jobs")
        await wal.open_stream("g.dead")
        await wal.close_stream("g.dead")
        async with wal.group("g", stream="jobs", max_deliver=1) as group:
            (job,) = await group.fetch()
            await job.nak()
            while (await group.statistics()).pending < 1:
                await group.fetch(1, max_wait_seconds=0.05)
    async with Wal.open(tmp_path) as wal:
        for _ in range(2):  # the letter is refused at each of them
            async with wal.group("g", stream="jobs", max_deliver=1) as group:
                assert await group.fetch(max_wait_seconds=0) == []
        await wal.append(b"new", stream="jobs")
        async with wal.group("g", stream="jobs", max_deliver=1) as group:
            (job,) = await group.fetch()
            assert job.value == b"new"
            await job.ack()
            await wal.open_stream("g.dead")
            while (await group.statistics()).dead < 2:
                await group.fetch(max_wait_seconds=0.05)
        async with wal.reader(stream="g.dead", follow=False) as reader:
            assert sorted([record.value async for record in reader]) == [b"dies", b"lives"]


async def test_entering_may_be_cancelled_while_a_letter_is_appended_again(tmp_path: Path) -> None:
    async with Wal.open(tmp_path) as wal:
        await wal.append_many([b"dies", b"lives"], stream="jobs")
        await wal.open_stream("g.dead")
        await wal.close_stream("g.dead")
        async with wal.group("g", stream="jobs", max_deliver=1) as group:
            (job,) = await group.fetch()
            await job.nak()
            assert await group.fetch(max_wait_seconds=0.05) != []
    for turns in range(0, 60, 3):
        async with Wal.open(tmp_path) as wal:
            group = wal.group("g", stream="jobs", max_deliver=1)
            entering = asyncio.ensure_future(group.__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            entering.cancel()
            await asyncio.wait([entering])
            offset = await wal.append(b"%d" % turns, stream="jobs")
            async with wal.group("g", stream="jobs", max_deliver=1) as group:
                (job,) = await group.fetch()
                assert job.offset == offset
                await job.ack()
