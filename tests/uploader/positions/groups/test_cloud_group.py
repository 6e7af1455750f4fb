"""A group of a log in a store, as its members see it: one process and several, faults, and bad input."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cloud import FAST
from tests.uploader.cloud_streams import put_log, put_records
from tests.uploader.positions.groups.conftest import KEY, advance, opened
from tests.waiting import until
from uploader import CloudWriter
from uploader.care.gc.collector import GarbageCollector
from uploader.care.gc.garbage_plan import plan_garbage
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, hang, happen_then_fail, timeout
from walstore import Wal
from walstore.errors import (
    CorruptionError,
    InvalidSettingsError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
    WrongLoopError,
)
from walstore.records import Record


async def take(group: Any, count: int) -> list[int]:
    return [job.offset for job in await group.fetch(count, max_wait_seconds=0)]


async def test_what_a_dead_process_had_comes_again_after_the_lease(store, clock) -> None:
    await put_log(store, 1, lambda _: None)
    async with opened(store, clock=clock) as dead, opened(store, clock=clock) as alive:
        member = dead.group("g", ack_wait_seconds=5)
        await member.__aenter__()
        assert len(await member.fetch(10)) == 10  # and nothing is heard of it again
        async with alive.group("g", ack_wait_seconds=5) as group:
            waiting = asyncio.ensure_future(group.fetch(10))
            await advance(clock, 4.5, waiting)
            assert not waiting.done()
            await advance(clock, 1.0, waiting)
            assert [job.deliveries for job in await waiting] == [2] * 10


async def test_a_job_that_ends_its_member_takes_no_others_to_the_dead_letters(store) -> None:
    """Each member is ended by the first of ten jobs, and leaves with one swap for all of them."""
    async with CloudWriter.open("memory://g", store=FaultyStore(store)) as writer:
        await writer.append_many([b"%d" % number for number in range(10)])
        async with opened(store) as log:
            inner: Any = log._store
            for _ in range(3):
                with pytest.raises(RuntimeError, match="of the job"):
                    async with log.group("g", max_deliver=3, letters=writer) as group:
                        assert len(await group.fetch(10)) == 10
                        before = inner.count("put_if_match").requests
                        raise RuntimeError("of the job")
                assert inner.count("put_if_match").requests - before == 1
            async with log.group("g", max_deliver=3, letters=writer) as group:
                rest = await group.fetch(10)
                assert [(job.offset, job.deliveries) for job in rest] == [
                    (offset, 1) for offset in range(2, 11)
                ]


async def test_a_job_of_a_key_waits_for_the_one_before_also_in_another_process(store) -> None:
    keys = [b"a", b"a", b"b", None, b"a"]
    entry = await put_records(
        store, 1, [Record(at, b"v", key, timestamp_us=at) for at, key in enumerate(keys, 1)]
    )
    manifest = Manifest.initial("w").apply_fragments([entry], "w")
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())

    async with opened(store) as one, opened(store) as two:
        async with (
            one.group("g", ordered=True) as first,
            two.group("g", ordered=True) as second,
        ):
            (job,) = await first.fetch(1)
            assert job.offset == 1
            assert await take(second, 5) == [3, 4]
            await job.ack()
            assert await take(second, 5) == [2]
        with pytest.raises(InvalidSettingsError, match="ordered=True"):
            await two.group("g2", ordered=True).__aenter__()
            await one.group("g2").__aenter__()


async def test_records_that_come_later_arrive(store, clock) -> None:
    await put_log(store, 1, lambda _: None, records=2)
    async with opened(store, clock=clock) as log, log.group("g", start="latest") as group:
        waiting = asyncio.ensure_future(group.fetch(10))
        await advance(clock, 1, waiting)
        found = await store.get(layout.MANIFEST)
        manifest = Manifest.parse(found.data)
        more = await put_records(store, 2, [Record(3, b"new", timestamp_us=3)])
        await store.put_if_match(
            layout.MANIFEST, manifest.apply_fragments([more], "w").serialise(), found.etag
        )
        await advance(clock, 3, waiting)
        assert [job.value for job in await waiting] == [b"new"]


async def test_only_a_streams_records_are_jobs(store) -> None:
    await put_log(store, 2, lambda at: "a" if at % 5 == 0 else "b")
    async with opened(store) as log, log.group("g", stream="a") as group:
        assert await take(group, 100) == [5, 10, 15, 20]
        found = await group.statistics()
        assert (found.floor, found.pending, found.unsettled, found.lag) == (5, 4, 4, 0)
        with pytest.raises(InvalidSettingsError, match="in use with other options"):
            await log.group("g", stream="b").__aenter__()


# -- dead letters ----------------------------------------------------------------------------


async def test_a_letter_that_cannot_be_written_is_written_later(store, clock, tmp_path) -> None:
    await put_log(store, 1, lambda _: None, records=1)

    class Failing:
        def __init__(self, wal: Wal) -> None:
            self.wal = wal
            self.calls = 0

        async def append(self, value: bytes, **options: Any) -> int:
            self.calls += 1
            if self.calls == 1:
                raise StorageUnavailableError("not now", outcome="not_written")
            return await self.wal.append(value, **options)

    async with Wal.open(tmp_path) as wal, opened(store, clock=clock) as log:
        letters = Failing(wal)
        async with log.group("g", max_deliver=1, ack_wait_seconds=5, letters=letters) as group:
            (job,) = await group.fetch(1)
            await job.nak()
            waiting = asyncio.ensure_future(group.fetch(1))
            await until(lambda: letters.calls == 1)
            await advance(clock, 6, waiting)
            await until(lambda: wal.tail == 2)
            waiting.cancel()


# -- faults ----------------------------------------------------------------------------------


async def test_an_acknowledgement_whose_answer_is_lost_is_kept(store) -> None:
    await put_log(store, 1, lambda _: None, records=3)
    async with opened(store) as log:
        inner: Any = log._store
        async with log.group("g") as group:
            jobs = await group.fetch(3)
            inner.on("put_if_match", happen_then_fail(timeout()), key_prefix=KEY)
            await group.ack(jobs)
            assert (await group.statistics()).unsettled == 0


async def test_leases_whose_answer_is_lost_go_to_a_member(store, clock) -> None:
    """The store says nothing until attempts are used up; the jobs are neither lost nor late."""
    await put_log(store, 1, lambda _: None, records=3)
    retry = RetryPolicy(attempts=1)
    async with opened(store, clock=clock, retry=retry) as log:
        inner: Any = log._store
        async with log.group("g") as group:
            inner.on("put_if_match", happen_then_fail(timeout()), key_prefix=KEY)
            inner.on("get", fail(timeout("not_written")), key_prefix=KEY)
            with pytest.raises(OutcomeUnknownError, match="try again"):
                await group.fetch(3)
            jobs = await group.fetch(3)
            assert [(job.offset, job.deliveries) for job in jobs] == [(1, 1), (2, 1), (3, 1)]


async def test_a_member_that_no_longer_waits_leaves_its_jobs_to_others(store) -> None:
    await put_log(store, 1, lambda _: None, records=3)
    async with opened(store) as log:
        inner: Any = log._store
        release, reached = asyncio.Event(), asyncio.Event()
        async with log.group("g") as group:
            inner.on("put_if_match", hang(release, reached), key_prefix=KEY)
            gone = asyncio.ensure_future(group.fetch(3))
            await reached.wait()
            gone.cancel()
            release.set()
            jobs = await group.fetch(3)
            assert [(job.offset, job.deliveries) for job in jobs] == [(1, 1), (2, 1), (3, 1)]


async def test_calls_of_one_process_share_a_request(store) -> None:
    await put_log(store, 10, lambda _: None)
    async with opened(store) as log:
        inner: Any = log._store
        async with log.group("g") as group:
            jobs = await group.fetch(100)
            before = inner.count("put_if_match").requests
            await asyncio.gather(*(job.ack() for job in jobs))
            assert inner.count("put_if_match").requests - before <= 2


async def test_a_damaged_group_is_told_and_left_alone(store) -> None:
    await put_log(store, 1, lambda _: None)
    await store.put_if_absent(KEY, b"{}")
    async with opened(store) as log:
        with pytest.raises(CorruptionError, match=KEY):
            await log.group("g").__aenter__()
    assert (await store.get(KEY)).data == b"{}"


# -- what holds, and what goes ---------------------------------------------------------------


async def test_its_cursor_holds_what_is_not_settled(store, clock) -> None:
    await put_log(store, 3, lambda _: None)
    async with opened(store, clock=clock) as log:
        async with log.group("g") as group:
            jobs = await group.fetch(15)
            await group.ack(jobs[1:])
        (cursor,) = await log.cursors.list()
        assert cursor.name.startswith("group_g_")
        assert cursor.position == 1
        async with log.group("g") as group:
            (job,) = await group.fetch(1)
            clock.advance(2)
            await job.ack()
            await group.fetch(1)
        await until(lambda: True)
    async with opened(store) as log:
        (cursor,) = await log.cursors.list()
        assert cursor.position == 16
        async with GarbageCollector.open("memory://g", store=FaultyStore(store)) as collector:
            plan = await collector.plan()
        assert plan.head <= 16
        (info,) = await log.groups()
        assert (info.name, info.floor, info.behind, info.statistics) == ("g", 16, 15, None)


async def test_a_deleted_group_ends_for_members_everywhere_and_begins_anew(store) -> None:
    await put_log(store, 1, lambda _: None)
    async with opened(store) as one, opened(store) as two:
        member = one.group("g")
        await member.__aenter__()
        jobs = await member.fetch(3)
        assert await two.delete_group("g")
        assert not await two.delete_group("g")
        assert await two.groups() == []
        assert await two.cursors.list() == []
        with pytest.raises(WalClosedError, match="deleted"):
            await jobs[0].ack()
        with pytest.raises(WalClosedError, match="deleted"):
            await member.fetch()
        await member.__aexit__(None, None, None)
        async with two.group("g") as again, one.group("g") as other:
            assert await take(again, 2) == [1, 2]
            assert await take(other, 1) == [3]


async def test_a_new_group_at_what_an_interrupted_collection_takes_says_how_to_end_it(
    store,
) -> None:
    """It tries again first, as one that runs is soon done; it leaves neither a group nor a cursor."""
    await put_log(store, 3, lambda _: None)
    async with opened(store) as log:
        await log.refresh()
        cut = plan_garbage(log.manifest, 11, {})
        assert cut is not None
        await store.inner.put_if_absent(layout.GARBAGE, cut.garbage.serialise())
        before = store.count("put_if_absent").requests
        with pytest.raises(OffsetTrimmedError, match="walstore gc apply"):
            await asyncio.wait_for(log.group("g").__aenter__(), 20)
        assert store.count("put_if_absent").requests - before <= 5 * FAST.attempts
        assert await log.groups() == []
        assert await log.cursors.list() == []
        async with log.group("g", start=11) as group:
            assert await take(group, 1) == [11]


async def test_bad_input(store) -> None:
    await put_log(store, 1, lambda _: None)
    async with opened(store) as log:
        for name in ("", "a.b", "../x", "x" * 101, "a\0"):
            with pytest.raises(ValueError, match="the name of a group"):
                log.group(name)
        with pytest.raises(TypeError):
            log.group(7)  # type: ignore[arg-type]
        with pytest.raises(InvalidSettingsError, match="letters="):
            log.group("g", max_deliver=3)
        with pytest.raises(InvalidSettingsError, match="at most 10000"):
            log.group("g", max_ack_pending=20_000)
        with pytest.raises(OffsetNotWrittenError):
            await log.group("g", start=12).__aenter__()
        with pytest.raises(OffsetTrimmedError):
            await log.group("g", start=0).__aenter__()
        with pytest.raises(ValueError, match="start must be"):
            await log.group("g", start="soon").__aenter__()
        async with log.group("g") as group:
            await group.fetch(1)
            with pytest.raises(OffsetNotWrittenError):
                await group.backend.settle([7])
        with pytest.raises(WalClosedError):
            await group.fetch(1)
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(asyncio.run, log.group("h").__aenter__())
    with pytest.raises(WalClosedError):
        await log.group("g").__aenter__()


async def test_statistics_come_between_no_change(store) -> None:
    """What another process has done meanwhile is not overwritten by a change that does not know of it."""
    await put_log(store, 3, lambda _: None)
    release, reached = asyncio.Event(), asyncio.Event()
    async with (
        opened(store) as one,
        opened(store) as two,
        one.group("g") as first,
        two.group("g") as second,
        two.group("g") as third,
    ):
        inner: Any = two._store
        inner.on("get_range", hang(release, reached), key_prefix="log/")
        waiting = asyncio.ensure_future(second.fetch(10))
        await reached.wait()  # it reads the records of the jobs that it is about to lease
        jobs = await first.fetch(4)
        await first.ack(jobs)
        looking = asyncio.ensure_future(third.statistics())
        await until(lambda: not looking.done())
        release.set()
        found = [job.offset for job in await waiting]
        assert not set(found) & {job.offset for job in jobs}
        assert (await looking).floor > 4


async def test_closing_answers_what_is_under_way(store) -> None:
    await put_log(store, 1, lambda _: None)
    release, reached = asyncio.Event(), asyncio.Event()
    async with opened(store) as log:
        member = log.group("g")
        await member.__aenter__()
        (job,) = await member.fetch(1)
        inner: Any = log._store
        inner.on("put_if_match", hang(release, reached), key_prefix=KEY)
        acking = asyncio.ensure_future(job.ack())
        await reached.wait()
    async with asyncio.timeout(60):
        with pytest.raises(WalClosedError):
            await acking


async def test_an_order_that_is_none_is_refused(store) -> None:
    await put_log(store, 1, lambda _: None)
    async with opened(store) as log:
        for wrong in (1, "no", None):
            with pytest.raises(TypeError, match="ordered"):
                log.group("g", ordered=wrong)  # type: ignore[arg-type]
