"""Members of groups over a connection: what they are sent at once, and what becomes of it if they die."""

from __future__ import annotations

import asyncio
import contextlib
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.local import SMALL
from tests.waiting import until
from tests.walstore.serve.served import Proxy, serving
from walstore import InvalidSettingsError, LeaseExpiredError, Wal, connect
from walstore.positions.groups.coordinator import RESUME_SECONDS
from walstore.positions.groups.group_settings import GroupSettings
from walstore.serve import Server, ServeSettings

pytestmark = pytest.mark.timeout(60)
MIB = 1 << 20
ROOMY = SMALL.replace(max_record_bytes=64 * MIB, channel_bytes=256 * MIB, segment_bytes=256 * MIB)


async def all_jobs(group: Any, wanted: int) -> list[Any]:
    """Fetch and acknowledge until so many jobs are done."""
    done: list[Any] = []
    while len(done) < wanted:
        jobs = await group.fetch(1000, max_wait_seconds=60)
        assert jobs
        await group.ack(jobs)
        done += jobs
    return done


async def test_more_ready_jobs_than_a_message_holds_come_in_several(tmp_path: Path) -> None:
    """Each is delivered once; before, the client lost its connection and leased the next ones."""
    async with (
        serving(tmp_path / "log", ROOMY) as served,
        served.connect() as remote,
        remote.group("g", max_deliver=3) as group,
    ):
        await served.wal.append_many([bytes(MIB)] * 40)
        done = await all_jobs(group, 40)
        assert [(job.offset, job.deliveries) for job in done] == [(n + 1, 1) for n in range(40)]
        assert all(len(job.value) == MIB for job in done)
        assert (await group.statistics()).dead == 0
        assert served.server.figures.connected == 1


async def test_a_job_larger_than_an_answer_comes_alone_with_all_its_parts(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "log", ROOMY) as served,
        served.connect() as remote,
        remote.group("g") as group,
    ):
        big = {"key": bytes(20 * MIB), "headers": {"h": bytes(17 * MIB)}, "stream": "s"}
        await served.wal.append(b"small")
        await served.wal.append(bytes(18 * MIB), **big)
        await served.wal.append(b"last", b"k", headers={"h": b"1"})
        first, second, third = (await group.fetch(9), await group.fetch(9), await group.fetch(9))
        assert [(len(jobs), jobs[0].deliveries) for jobs in (first, second, third)] == [(1, 1)] * 3
        (job,) = second
        assert (len(job.value), len(job.key), len(job.headers["h"]), job.stream) == (
            18 * MIB,
            20 * MIB,
            17 * MIB,
            "s",
        )
        assert (third[0].key, dict(third[0].headers), third[0].stream) == (b"k", {"h": b"1"}, None)


async def test_what_does_not_fit_is_left_to_others(tmp_path: Path) -> None:
    """It is not leased: another member has it at once, and it counts no delivery."""
    serve = ServeSettings(read_bytes=2048)
    async with (
        serving(tmp_path / "log", SMALL, serve) as served,
        served.connect() as remote,
        remote.group("g", ack_wait_seconds=1000) as one,
        remote.group("g", ack_wait_seconds=1000) as other,
    ):
        await served.wal.append_many([bytes(1000)] * 4)
        mine = await one.fetch(4)
        theirs = await other.fetch(4)
        assert 1 <= len(mine) < 4
        assert [job.offset for job in mine + theirs][:2] == [1, 2]
        assert {job.deliveries for job in mine + theirs} == {1}


async def fetch_and_die(served: Any, most: int, *, begins: int = 0, **options: Any) -> list[Any]:
    """Have a worker, in a process of its own as far as the server can tell, take jobs and be killed.

    It does what it was given, in order, until there is poison. ``begins``: it does nothing, and says that it
    began so many.
    """
    async with Proxy(served.address) as proxy:
        remote = await connect(proxy.address, reconnect_seconds=0.0)
        group = remote.group("g", **options)
        await group.__aenter__()
        jobs: list[Any] = []
        while len(jobs) < most:
            jobs += await group.fetch(most - len(jobs), max_wait_seconds=60)
        for job in jobs[:begins]:
            await job.in_progress()
        for job in takewhile(lambda job: not begins and job.value != b"poison", jobs):
            await job.ack()
        proxy.refuses = True
        proxy.lose()
    await remote.aclose()
    return jobs


class GraceClock(SkippingClock):
    """A clock by which lost members have no time to come back, or all that a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = asyncio.Event()
        self.passes.set()

    async def sleep(self, seconds: float) -> None:
        if seconds == RESUME_SECONDS:
            await self.passes.wait()
        else:
            await super().sleep(seconds)


async def test_a_job_that_kills_its_worker_leaves_the_others_that_it_fetched_alone(
    tmp_path: Path,
) -> None:
    """All come again soon; those that were not begun were not delivered."""
    options = {"max_deliver": 3, "ack_wait_seconds": 1000.0}
    async with serving(tmp_path / "log", SMALL, clock=GraceClock()) as served:
        await served.wal.append_many([b"poison", b"2", b"3", b"4"])
        async with served.wal.group("g", **options) as here:
            seen: list[list[int]] = []
            for _ in range(3):
                await served.wal.append_many([b"healthy"] * 3)
                killed = await fetch_and_die(served, 4, **options)
                seen += [[job.offset, job.deliveries] for job in killed]
                await until(lambda: served.wal.statistics().groups["g"].pending == 0)
            assert [deliveries for offset, deliveries in seen if offset == 1] == [1, 2, 3]
            assert {deliveries for offset, deliveries in seen if offset > 1} == {1}
            while (await here.statistics()).unsettled or not (await here.statistics()).dead:
                await here.ack(await here.fetch(9, max_wait_seconds=0.01))
            async with served.wal.reader(stream="g.dead", follow=False) as letters:
                assert [letter.value async for letter in letters] == [b"poison"]


async def test_what_a_killed_worker_had_not_begun_is_remembered_so(tmp_path: Path) -> None:
    """Also by the next owner of the log. What it said to be in progress was begun."""
    options = {"max_deliver": 5, "ack_wait_seconds": 1000.0}
    async with serving(tmp_path / "log", SMALL, clock=GraceClock()) as served:
        await served.wal.append_many([b"1", b"2", b"3", b"4"])
        async with served.wal.group("g", **options) as here:
            await fetch_and_die(served, 4, begins=2, **options)
            await until(lambda: served.wal.statistics().groups["g"].pending == 0)
            assert (await here.statistics()).delivered == 2
    async with Wal.open(tmp_path / "log") as wal, wal.group("g", **options) as here:
        jobs: list[Any] = []
        while len(jobs) < 2:
            jobs += await here.fetch(9)
        assert [(job.offset, job.deliveries) for job in jobs] == [(3, 1), (4, 1)]
        # The next owner knows of the others that somebody in another process began them.
        assert await here.fetch(9, max_wait_seconds=0) == []


async def test_who_comes_back_over_another_connection_keeps_its_jobs(tmp_path: Path) -> None:
    clock, options = GraceClock(), {"ack_wait_seconds": 1000.0}
    clock.passes.clear()
    async with (
        serving(tmp_path / "log", SMALL, clock=clock) as served,
        Proxy(served.address) as proxy,
        connect(proxy.address) as remote,
        remote.group("g", **options) as there,
        served.wal.group("g", **options) as here,
    ):
        await served.wal.append_many([b"1", b"2", b"3"])
        jobs: list[Any] = []
        while len(jobs) < 3:
            jobs += await there.fetch(3)
        for _ in range(3):  # also if it is lost again before the first loss is over
            proxy.lose()
            await until(lambda: not remote.is_connected)
            await remote.refresh()
            await until(lambda: count(served.wal) == 2)
        clock.passes.set()
        await remote.refresh()
        assert await here.fetch(9, max_wait_seconds=0) == []
        assert (await here.statistics()).pending == 3
        await jobs[2].in_progress()
        await there.ack(jobs)


async def test_who_closes_its_client_gives_its_jobs_back_at_once(tmp_path: Path) -> None:
    """Though it did not leave its group; what it had not begun was no delivery."""
    clock, options = GraceClock(), {"ack_wait_seconds": 1000.0}
    clock.passes.clear()
    async with (
        serving(tmp_path / "log", SMALL, clock=clock) as served,
        served.wal.group("g", **options) as here,
    ):
        await served.wal.append_many([b"1", b"2"])
        remote = await served.connect()
        async with remote.group("g", **options) as there:
            jobs: list[Any] = []
            while len(jobs) < 2:
                jobs += await there.fetch(2)
            await remote.aclose()
            again: list[Any] = []
            while len(again) < 2:
                again += await here.fetch(2)
            assert [(job.offset, job.deliveries) for job in again] == [(1, 2), (2, 1)]
        await remote.aclose()


async def test_who_had_a_job_cannot_end_the_lease_of_who_has_it_now(tmp_path: Path) -> None:
    """Both have it for the first time, as the one that lost its connection had not begun it."""
    options = {"ack_wait_seconds": 1000.0}
    async with (
        serving(tmp_path / "log", SMALL, clock=GraceClock()) as served,
        Proxy(served.address) as proxy,
    ):
        await served.wal.append_many([b"1", b"2"])
        async with (
            connect(proxy.address) as remote,
            remote.group("g", **options) as there,
            served.wal.group("g", **options) as here,
        ):
            lost: list[Any] = []
            while len(lost) < 2:
                lost += await there.fetch(2)
            proxy.refuses = True
            proxy.lose()
            jobs: list[Any] = []
            while len(jobs) < 2:
                jobs += await here.fetch(2)
            assert [(job.offset, job.deliveries) for job in jobs] == [(1, 2), (2, 1)]
            proxy.refuses = False
            await lost[1].nak()
            for job in lost:
                with pytest.raises(LeaseExpiredError):
                    await job.in_progress()
            assert (await here.statistics()).pending == 2
            await there.ack(lost)  # the work is done, whoever did it
            assert (await here.statistics()).unsettled == 0


async def test_a_server_that_stops_takes_no_jobs_back(tmp_path: Path) -> None:
    """The worker lives on, and goes on with the next server."""
    socket = tmp_path / "s.sock"
    options = {"ack_wait_seconds": 1000.0}
    async with contextlib.AsyncExitStack() as stack, Wal.open(tmp_path / "log") as wal:
        await wal.append_many([b"1", b"2", b"3"])
        async with Server.open(wal, unix=socket):
            remote = await stack.enter_async_context(connect(f"unix://{socket}"))
            group = remote.group("g", **options)
            await group.__aenter__()
            jobs: list[Any] = []
            while len(jobs) < 3:
                jobs += await group.fetch(3)
        async with Server.open(wal, unix=socket), wal.group("g", **options) as here:
            assert (await here.statistics()).pending == 3
            assert await here.fetch(9, max_wait_seconds=0) == []
            await group.ack(jobs)
            await group.__aexit__(None, None, None)
            await remote.aclose()


def count(wal: Wal, name: str = "g") -> int:
    """Return how many members are there, as who wants other options is told."""
    with pytest.raises(InvalidSettingsError) as refused:
        wal.coordinator(name, GroupSettings(max_deliver=9))
    found = re.search(r"(\d+) members are there", str(refused.value))
    assert found is not None
    return int(found[1])


async def test_members_are_counted_once_whatever_becomes_of_their_connection(
    tmp_path: Path,
) -> None:
    """Also those that ask for nothing: else others could change the options while they are there."""
    async with serving(tmp_path / "log", SMALL) as served, Proxy(served.address) as proxy:
        async with contextlib.AsyncExitStack() as stack:
            here = await stack.enter_async_context(served.wal.group("g"))
            remote = await stack.enter_async_context(connect(proxy.address))
            idle, busy = remote.group("g"), remote.group("g")
            async with idle, busy:
                assert count(served.wal) == 3
                for losses in range(1, 4):
                    proxy.lose()
                    assert await busy.fetch(max_wait_seconds=0) == []
                    assert remote.client.reconnects == losses
                    await until(lambda: count(served.wal) == 3)
            assert count(served.wal) == 1
            async with remote.group("g"):
                assert count(served.wal) == 2
                await remote.aclose()
                await until(lambda: count(served.wal) == 1)
            assert (await here.statistics()).pending == 0
        assert served.wal.coordinator("g", GroupSettings(max_deliver=9)).settings.max_deliver == 9


async def test_a_member_of_a_deleted_group_does_not_make_it_again(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "log", SMALL) as served,
        Proxy(served.address) as proxy,
        connect(proxy.address) as remote,
        remote.group("g"),
    ):
        assert await served.wal.delete_group("g")
        proxy.lose()
        await remote.refresh()
        assert (remote.client.reconnects, await remote.groups()) == (1, [])


async def test_members_of_a_server_that_stopped_are_there_no_longer(tmp_path: Path) -> None:
    """Until they come back, at the next server."""
    socket = tmp_path / "s.sock"
    async with contextlib.AsyncExitStack() as stack, Wal.open(tmp_path / "log") as wal:
        async with Server.open(wal, unix=socket):
            remote = await stack.enter_async_context(connect(f"unix://{socket}"))
            group = remote.group("g")
            await group.__aenter__()
            assert count(wal) == 1
        await until(lambda: not wal.coordinator("g", GroupSettings()).members)
        async with Server.open(wal, unix=socket):
            await remote.refresh()
            await until(lambda: count(wal) == 1)
            await group.__aexit__(None, None, None)
            await remote.aclose()
