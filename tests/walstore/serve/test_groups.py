"""Groups of an opened log and of a served one: files, faults, and what only these two have."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case
from tests.clocks import SkippingClock
from tests.interrupted import Interrupted, finish
from tests.local import SMALL
from tests.waiting import until
from tests.walstore.serve.served import Proxy, serving
from walstore import (
    DiskFullError,
    Group,
    InvalidSettingsError,
    Job,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalError,
    connect,
)
from walstore.core.files.posix import PosixFileSystem
from walstore.serve import Server
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)
JOURNAL = ".next"
"""The name with which a new journal is opened."""


async def append(log: Any, *values: bytes, **options: Any) -> None:
    for value in values:
        await log.append(value, **options)


async def dead_letters(log: Any, stream: str) -> list[Any]:
    async with log.reader(stream=stream, follow=False) as reader:
        return [record async for record in reader]


@pytest.mark.parametrize("most", [20, 40, 100, 150, 1000])
async def test_a_letter_that_would_be_too_large_lacks_what_does_not_fit(
    tmp_path: Path, most: int
) -> None:
    """The headers of its origin come on top of a record that is as large as may be."""
    settings = SMALL.replace(max_record_bytes=most)
    header = b"h" * (most // 4)
    async with Wal.open(tmp_path / "log", settings=settings) as wal:
        await wal.append(b"v" * (most * 3 // 4 - 10), b"kk", headers={"h": header})
        await wal.append(b"next")
        async with wal.group("g", max_deliver=1) as group:
            for job in await group.fetch(2):
                await job.nak()
            await until_dead(group, 2)
        letters = await dead_letters(wal, "g.dead")
    async with (
        Wal.open(tmp_path / "log", settings=settings) as wal,
        wal.group("g", max_deliver=1) as group,
    ):
        assert await group.fetch(max_wait_seconds=0) == []
    assert len(letters) == {20: 0, 40: 2, 100: 2, 150: 2, 1000: 2}[most]
    if most == 1000:
        assert (letters[0].key, letters[0].headers["walstore.omitted"]) == (b"kk", b"value")
        assert letters[1].value == b"next"


async def test_a_letter_that_its_closed_stream_refuses_comes_later(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log") as wal:
        await wal.open_stream("g.dead")
        await wal.close_stream("g.dead")
        await wal.append(b"v", stream="in")
        async with wal.group("g", stream="in", max_deliver=1) as group:
            (job,) = await group.fetch()
            await job.nak()
            assert await group.fetch(max_wait_seconds=0.05) == []
            await wal.open_stream("g.dead")
            await until_dead(group, 1)
        assert [letter.value for letter in await dead_letters(wal, "g.dead")] == [b"v"]


async def until_dead(group: Any, wanted: int) -> None:
    while (await group.statistics()).dead < wanted:
        await group.fetch(max_wait_seconds=0.01)


async def test_options_and_names_that_are_none(log: Any) -> None:
    for wrong in (
        {"ack_wait_seconds": 0}, {"ack_wait_seconds": float("inf")}, {"max_deliver": 0},
        {"max_ack_pending": 0}, {"stream": "s", "dead_letters": "s"},
    ):  # fmt: skip
        with case(wrong), pytest.raises(InvalidSettingsError):
            log.group("g", **wrong)
    for name in ("", "..", "a/b", "a\0", "x" * 101):
        with case(name), pytest.raises(ValueError, match="name"):
            log.group(name)
    with pytest.raises(TypeError):
        log.group(None)
    async with log.group("g") as group:
        with pytest.raises(InvalidSettingsError, match="other options"):
            async with log.group("g", max_deliver=3):
                pass
        for wrong in (0, 10_001):
            with pytest.raises(InvalidSettingsError):
                await group.fetch(wrong)
        await append(log, b"a")
        (job,) = await group.fetch()
        for delay in (-1, float("inf")):
            with pytest.raises(ValueError, match="delay"):
                await job.nak(delay_seconds=delay)
    with pytest.raises(WalClosedError):
        await log.group("g").fetch()


async def test_it_holds_retention_back(log: Any) -> None:
    await append(log, b"a", b"b", b"c")
    async with log.group("g") as group:
        jobs = await group.fetch(3, max_wait_seconds=60)
        assert await log.trim(4) == 1
        await group.ack(jobs)
    assert [(info.name, info.position) for info in await log.cursors()] == [("group.g", 1)]


async def test_what_is_acknowledged_stays_so(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log", settings=SMALL) as wal:
        await append(wal, *(b"%d" % n for n in range(10)))
        async with wal.group("g", max_deliver=5) as group:
            jobs = await group.fetch(8, max_wait_seconds=60)
            await group.ack(jobs[1::2])
    for deliveries in (2, 3):
        async with (
            Wal.open(tmp_path / "log", settings=SMALL) as wal,
            wal.group("g", max_deliver=5) as group,
        ):
            again = await group.fetch(20, max_wait_seconds=60)
            assert [(job.offset, job.deliveries) for job in again if job.offset < 9] == [
                (1, deliveries),  # the one that the member had begun
                *((offset, 1) for offset in (3, 5, 7)),
            ]
    async with Wal.open(tmp_path / "log", settings=SMALL) as wal:
        async with wal.group("g", max_deliver=5) as group:
            await group.ack(await group.fetch(20, max_wait_seconds=60))
        assert await wal.cursors()
    async with Wal.open(tmp_path / "log", settings=SMALL) as wal:
        assert (await wal.cursor("group.g")).position == 11


async def test_the_journal_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walstore.positions.groups.journal.FileJournal.most_bytes", 4000)
    async with Wal.open(tmp_path / "log") as wal:
        await wal.append_many([b"x"] * 5000)
        async with wal.group("g") as group:
            first = await group.fetch()
            done = 1
            while done < 4990:
                jobs = await group.fetch(100, max_wait_seconds=60)
                await group.ack(jobs)
                done += len(jobs)
            await first[0].nak(delay_seconds=1000)
    assert (tmp_path / "log" / "groups" / "g").stat().st_size < 40_000
    async with Wal.open(tmp_path / "log") as wal, wal.group("g") as group:
        jobs = await group.fetch(100, max_wait_seconds=60)
        assert jobs[0].offset == 1
        assert len(jobs) == 5000 - done + 1


async def test_a_client_that_lost_its_connection_keeps_its_lease_and_its_answer_may_be_lost(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "log") as served, Proxy(served.address) as proxy:
        await append(served.wal, b"a", b"b")
        async with (
            connect(proxy.address) as remote,
            served.wal.group("g", ack_wait_seconds=20) as here,
            remote.group("g", ack_wait_seconds=20) as there,
        ):
            (job,) = await there.fetch()
            proxy.lose()
            assert [one.value for one in await here.fetch(5, max_wait_seconds=60)] == [b"b"]
            await job.ack()  # over the next connection
            assert (await there.statistics()).floor == 2


async def test_leases_of_other_processes_survive_the_owner(
    tmp_path: Path, skipping: SkippingClock
) -> None:
    socket = tmp_path / "s.sock"
    remote = None
    async with Wal.open(tmp_path / "log") as wal, Server.open(wal, unix=socket):
        await append(wal, b"a", b"b")
        remote = await connect(f"unix://{socket}")
        group = remote.group("g", ack_wait_seconds=60)
        await group.__aenter__()
        (job,) = await group.fetch()
    async with (
        Wal.open(tmp_path / "log", clock=skipping) as wal,
        Server.open(wal, unix=socket),
    ):
        async with wal.group("g", ack_wait_seconds=60) as here:
            others = await here.fetch(5, max_wait_seconds=60)
            assert [one.value for one in others] == [b"b"]
            await here.ack(others)
            skipping.skip(60)
            assert [(one.value, one.deliveries) for one in await here.fetch(5)] == [(b"a", 2)]
            await job.ack()
            assert (await here.statistics()).unsettled == 0
        await group.__aexit__(None, None, None)
        await remote.aclose()


async def test_who_leaves_after_the_owner_was_restarted_gives_its_jobs_back(tmp_path: Path) -> None:
    """Those that it has not settled, given back, or lost to another member."""
    socket = tmp_path / "s.sock"
    async with contextlib.AsyncExitStack() as stack:
        async with Wal.open(tmp_path / "log") as wal, Server.open(wal, unix=socket):
            await append(wal, *(b"%d" % n for n in range(6)))
            remote = await stack.enter_async_context(connect(f"unix://{socket}"))
            group = remote.group("g", ack_wait_seconds=1000)
            await group.__aenter__()
            jobs: list[Any] = []
            while len(jobs) < 5:
                jobs += await group.fetch(5 - len(jobs))
            await jobs[0].ack()
            await jobs[1].nak(delay_seconds=1000)
            await jobs[2].in_progress()
        async with (
            Wal.open(tmp_path / "log") as wal,
            Server.open(wal, unix=socket),
            wal.group("g", ack_wait_seconds=1000) as here,
        ):
            assert [job.value for job in await here.fetch(9, max_wait_seconds=60)] == [b"5"]
            assert await here.fetch(9, max_wait_seconds=0.05) == []
            waiting = asyncio.ensure_future(here.fetch(9))
            await asyncio.sleep(0)
            await group.__aexit__(None, None, None)
            again = await waiting
            while len(again) < 3:
                again += await here.fetch(9)
            assert {(job.value, job.deliveries) for job in again} == {
                (b"2", 2),
                (b"3", 2),
                (b"4", 2),
            }
            await remote.aclose()


async def test_a_member_outlives_a_restart_and_no_deletion_after_it(tmp_path: Path) -> None:
    """The server that was started anew does not know which group it was, and the member goes on in it."""
    socket = tmp_path / "s.sock"
    async with contextlib.AsyncExitStack() as stack:
        async with Wal.open(tmp_path / "log") as wal, Server.open(wal, unix=socket):
            await append(wal, b"0", b"1", b"2")
            async with wal.group("first"):
                remote = await stack.enter_async_context(connect(f"unix://{socket}"))
                group = await stack.enter_async_context(remote.group("g"))
            jobs = [*await group.fetch(), *await group.fetch()]
        async with Wal.open(tmp_path / "log") as wal, Server.open(wal, unix=socket):
            await jobs[0].ack()
            while (await group.statistics()).floor < 2:  # the job is read again meanwhile
                pass
            await wal.delete_group("g")
            async with wal.group("g") as after:
                (job,) = await after.fetch()
                for call in (jobs[1].ack, jobs[0].nak, group.fetch):
                    with pytest.raises(WalClosedError, match="deleted"):
                        await call()
                assert (job.offset, (await after.statistics()).floor) == (1, 1)


async def test_a_member_at_an_older_server_is_bound_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walstore.serve.members.pack_bound", lambda *_: None)
    async with serving(tmp_path / "log") as served, served.connect() as remote:
        await append(served.wal, b"a")
        async with remote.group("g") as group:
            await (await group.fetch())[0].ack()
            assert (await group.statistics()).floor == 2


async def test_what_a_member_has_is_remembered_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walstore.net.remote.group._HELD_AT_ONCE", 3)
    async with serving(tmp_path / "log") as served, served.connect() as remote:
        await append(served.wal, *(b"%d" % n for n in range(20)))
        options = {"max_ack_pending": 8, "ack_wait_seconds": 1000.0}
        async with remote.group("g", **options) as here:
            async with remote.group("g", **options) as there:
                jobs: list[Any] = []
                while len(jobs) < 16:
                    jobs += await there.fetch(8)
                    await here.ack(jobs[-8:])  # this member does not learn of it
                while len(jobs) < 20:
                    jobs += await there.fetch(4)
                backend: Any = there.backend
                assert sorted(backend._held)[-4:] == [17, 18, 19, 20]
                assert len(backend._held) == 8
            assert [job.offset for job in await here.fetch(9)] == [17, 18, 19, 20]


async def test_a_lease_of_another_process_is_in_the_journal_before_the_answer(
    tmp_path: Path,
) -> None:
    """Otherwise the next owner of the log gives the job to another member within the lease."""
    fs = FaultyFileSystem(PosixFileSystem())
    socket = tmp_path / "s.sock"
    async with (
        Wal.open(tmp_path / "log", fs=fs) as wal,
        Server.open(wal, unix=socket),
        connect(f"unix://{socket}") as remote,
        remote.group("g") as group,
    ):
        with fs.hold("pwrite", name=JOURNAL) as held:
            await append(wal, b"a")
            fetching = asyncio.ensure_future(group.fetch())
            await held.wait_entered()
            for _ in range(5):
                await remote.statistics()  # an answer that was under way would be here before this
            assert not fetching.done()
        assert [job.value for job in await fetching] == [b"a"]


async def test_a_fetch_cancelled_before_its_answer_leaves_the_job_to_others(tmp_path: Path) -> None:
    fs = FaultyFileSystem(PosixFileSystem())
    socket = tmp_path / "s.sock"
    async with (
        Wal.open(tmp_path / "log", fs=fs) as wal,
        Server.open(wal, unix=socket),
        connect(f"unix://{socket}") as remote,
        remote.group("g") as group,
        remote.group("g") as other,
    ):
        with fs.hold("pwrite", name=JOURNAL) as held:
            await append(wal, b"a")
            fetching = asyncio.ensure_future(group.fetch())
            await held.wait_entered()
            fetching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await fetching
            await remote.statistics()  # the server has had the cancellation before this
        (job,) = await asyncio.wait_for(other.fetch(), 60)
        assert (job.value, job.deliveries) == (b"a", 1)
        await job.ack()


async def test_a_full_disk_refuses_leases_of_other_processes_and_counts_no_deliveries(
    tmp_path: Path,
) -> None:
    fs = FaultyFileSystem(PosixFileSystem())
    socket = tmp_path / "s.sock"
    async with (
        Wal.open(tmp_path / "log", fs=fs) as wal,
        Server.open(wal, unix=socket),
        connect(f"unix://{socket}") as remote,
        remote.group("g", max_deliver=1) as group,
    ):
        await append(wal, b"a")
        fs.fail("pwrite", errno.ENOSPC, name=JOURNAL, times=10, written_bytes=10)
        for _ in range(5):
            with pytest.raises(DiskFullError):
                await group.fetch()
        fs.heal()
        (job,) = await group.fetch()
        assert (job.value, job.deliveries) == (b"a", 1)
        await job.ack()


async def _settle_each(group: Any, jobs: list[Job]) -> None:
    await jobs[0].ack()
    await jobs[1].term()


@pytest.mark.parametrize("end", [Group.ack, _settle_each])
async def test_a_full_disk_refuses_acknowledgements_until_there_is_room(
    tmp_path: Path, end: Callable[[Any, list[Job]], Awaitable[None]]
) -> None:
    fs = FaultyFileSystem(PosixFileSystem())
    async with Wal.open(tmp_path / "log", fs=fs) as wal:
        await append(wal, b"a", b"b")
        async with wal.group("g") as group:
            jobs = await group.fetch(2, max_wait_seconds=60)
            fs.fail("pwrite", errno.ENOSPC, name=JOURNAL, times=3, written_bytes=10)
            await jobs[0].in_progress()  # not written
            await jobs[1].nak()
            jobs[1:] = await group.fetch(max_wait_seconds=60)
            refusals = 0
            while refusals < 4:
                try:
                    await end(group, jobs)
                    break
                except DiskFullError as error:
                    refusals += error.retriable
            assert 1 <= refusals <= 3
    async with Wal.open(tmp_path / "log") as again, again.group("g") as group:
        assert await group.fetch(max_wait_seconds=0.1) == []


async def test_a_log_that_failed_closes_with_its_groups(tmp_path: Path) -> None:
    fs = FaultyFileSystem(PosixFileSystem())
    wal = await Wal.open(tmp_path / "log", fs=fs)
    await append(wal, b"a", b"b")
    async with wal.group("g") as group:
        jobs = await group.fetch(2, max_wait_seconds=60)
        fs.fail("datasync", name=JOURNAL)
        with pytest.raises(StorageUnavailableError) as failed:
            await jobs[0].ack()
        assert failed.value.outcome == "unknown"
        with pytest.raises(WalError):
            await group.fetch()
    assert await wal.append(b"c") == 3  # the log itself is well
    closing = asyncio.ensure_future(wal.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await closing
    async with Wal.open(tmp_path / "log") as again, again.group("g") as group:
        assert {job.value for job in await group.fetch(5, max_wait_seconds=60)} >= {b"b", b"c"}


async def test_a_deletion_that_failed_is_done_by_the_next(tmp_path: Path) -> None:
    fs = FaultyFileSystem(PosixFileSystem())
    async with Wal.open(tmp_path / "log", fs=fs) as wal:
        await append(wal, b"a")
        async with wal.group("g") as group:
            await group.ack(await group.fetch())
        fs.fail("remove", errno.EIO, name="g", times=1)
        with pytest.raises(StorageUnavailableError) as failed:
            await wal.delete_group("g")
        assert (failed.value.outcome, failed.value.retriable) == ("unknown", True)
        assert [(one.name, one.floor) for one in await wal.groups()] == [("g", None)]
        assert await wal.delete_group("g")
        assert await wal.groups() == []
        async with wal.group("g") as anew:
            assert len(await anew.fetch(max_wait_seconds=60)) == 1


async def test_a_journal_that_cannot_be_replaced_for_want_of_space_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walstore.positions.groups.journal.FileJournal.most_bytes", 1 << 10)
    fs = FaultyFileSystem(PosixFileSystem())
    async with Wal.open(tmp_path / "log", fs=fs) as wal:
        await append(wal, *(b"%d" % n for n in range(300)), durability="memory")
        async with wal.group("g") as group:
            jobs = await group.fetch(300, max_wait_seconds=60)
            fs.fail("open", errno.ENOSPC, name=JOURNAL, times=10_000)
            for at in range(0, 200, 10):
                await group.ack(jobs[at : at + 10])
            assert (tmp_path / "log" / "groups" / "g").stat().st_size > 200 * 24
            fs.heal()
            for at in range(200, 300, 10):
                await group.ack(jobs[at : at + 10])
            assert (tmp_path / "log" / "groups" / "g").stat().st_size < 200 * 24
    async with Wal.open(tmp_path / "log") as again, again.group("g") as group:
        assert await group.fetch(max_wait_seconds=0.1) == []


@pytest.mark.parametrize("late", [False, True])
async def test_a_deletion_cancelled_anywhere_is_done_by_the_next(
    tmp_path: Path, late: bool
) -> None:
    async with Wal.open(tmp_path / "log") as wal:
        await append(wal, b"a", b"b")
        for nth in count(1):
            async with wal.group("g") as group:
                job, *_ = await group.fetch()
                await job.ack()
                deleting = Interrupted(wal.delete_group("g"), nth, late=late)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.create_task(finish(deleting))
                await wal.delete_group("g")
                assert await wal.groups() == []
                assert await wal.cursors() == []
                with pytest.raises(WalClosedError, match="was deleted"):
                    await group.fetch()
            if deleting.is_over:
                break
            assert job.offset == 1, "it began anew"
    assert nth > 2


async def test_closing_the_log_ends_the_members(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log") as wal:
        group = wal.group("g")
        await group.__aenter__()
        waiting = asyncio.ensure_future(group.fetch())
        await until(lambda: not waiting.done())
        await asyncio.sleep(0)
    with pytest.raises(WalClosedError):
        await waiting
    with contextlib.suppress(WalClosedError):
        await group.__aexit__(None, None, None)
    with pytest.raises(WalClosedError):
        await wal.group("g").__aenter__()
