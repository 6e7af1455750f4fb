"""Whose lease it is: a process that has lost an answer, or a lease, leaves those of others alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.uploader.cloud_streams import put_log
from tests.uploader.positions.groups.conftest import KEY, advance, opened
from uploader.stores.retry import RetryPolicy
from uploader.testing.faults import fail, hang, happen_then_fail, postpone, timeout
from walstore.errors import LeaseExpiredError, OutcomeUnknownError


async def test_a_lease_that_is_undone_twice_ends_no_lease_of_another_process(store) -> None:
    """The answer is lost; when the process looks again, another one has the job, as its first delivery."""
    await put_log(store, 1, lambda _: None, records=1)
    leasing, leased, looking, looks = (asyncio.Event() for _ in range(4))
    async with (
        opened(store) as one,
        opened(store) as two,
        one.group("g") as first,
        two.group("g") as second,
    ):
        inner: Any = one._store
        inner.on("put_if_match", hang(leasing, leased), key_prefix=KEY)
        inner.on("put_if_match", happen_then_fail(timeout()), key_prefix=KEY)
        inner.on("get", hang(looking, looks), key_prefix=KEY)
        gone = asyncio.ensure_future(first.fetch())
        await leased.wait()
        gone.cancel()
        leasing.set()
        await looks.wait()  # after the swap that gave the lease back
        (job,) = await second.fetch(max_wait_seconds=0)
        looking.set()
        assert await first.fetch(max_wait_seconds=0) == []
        await job.in_progress()
        assert (await second.statistics()).pending == 1


async def test_leaving_twice_ends_no_lease_of_another_process(store) -> None:
    """Its swap happens without an answer; until it is made again, another process has the jobs."""
    await put_log(store, 1, lambda _: None, records=3)
    looking, looks = asyncio.Event(), asyncio.Event()
    async with opened(store) as one, opened(store) as two, two.group("g") as second:
        member = one.group("g")
        await member.__aenter__()
        assert len(await member.fetch(3)) == 3
        inner: Any = one._store
        inner.on("put_if_match", happen_then_fail(timeout()), key_prefix=KEY)
        inner.on("get", hang(looking, looks), key_prefix=KEY)
        leaving = asyncio.ensure_future(member.__aexit__(None, None, None))
        await looks.wait()
        jobs = await second.fetch(3)
        assert [(job.offset, job.deliveries) for job in jobs] == [(1, 2), (2, 1), (3, 1)]
        looking.set()
        await leaving
        for job in jobs:
            await job.in_progress()


async def test_a_job_that_was_settled_meanwhile_is_not_found_again(store, clock) -> None:
    """Its lease was made by a swap without an answer, and it is acknowledged with the next one."""
    await put_log(store, 1, lambda _: None, records=3)
    retry = RetryPolicy(attempts=1)
    async with opened(store, clock=clock, retry=retry) as log, log.group("g") as group:
        inner: Any = log._store
        inner.on("put_if_match", happen_then_fail(timeout()), key_prefix=KEY)
        inner.on("get", fail(timeout("not_written")), key_prefix=KEY)
        with pytest.raises(OutcomeUnknownError, match="try again"):
            await group.fetch(3)
        fetching = asyncio.ensure_future(group.fetch(3))
        await group.backend.settle((2,))
        assert [job.offset for job in await fetching] == [1, 3]


async def test_a_job_is_in_progress_for_several_tasks_at_once(store) -> None:
    await put_log(store, 1, lambda _: None, records=1)
    async with opened(store) as log, log.group("g") as group:
        (job,) = await group.fetch()
        await asyncio.gather(*(job.in_progress() for _ in range(3)), job.nak())
        assert [again.deliveries for again in await group.fetch()] == [2]


@pytest.mark.parametrize("happens", [True, False])
async def test_a_lease_whose_extension_has_no_answer_is_still_the_members(
    store, clock, happens: bool
) -> None:
    await put_log(store, 1, lambda _: None, records=1)
    retry = RetryPolicy(attempts=1)
    async with (
        opened(store, clock=clock, retry=retry) as one,
        opened(store, clock=clock) as two,
        one.group("g", ack_wait_seconds=5) as first,
        two.group("g", ack_wait_seconds=5) as second,
    ):
        (job,) = await first.fetch()
        inner: Any = one._store
        lost = happen_then_fail(timeout()) if happens else fail(timeout())
        inner.on("put_if_match", lost, key_prefix=KEY)
        inner.on("get", fail(timeout("not_written")), key_prefix=KEY)
        with pytest.raises(OutcomeUnknownError):
            await job.in_progress()
        assert await first.fetch(max_wait_seconds=0) == []  # it is not given to a second member
        await job.in_progress()
        await job.nak()
        (again,) = await second.fetch(max_wait_seconds=0)
        assert again.deliveries == 2
        with pytest.raises(LeaseExpiredError):
            await job.in_progress()
        await job.nak(delay_seconds=60)
        await again.in_progress()


async def test_an_extension_that_arrives_late_is_the_members_too(store, clock) -> None:
    await put_log(store, 1, lambda _: None, records=1)
    retry = RetryPolicy(attempts=1)
    async with (
        opened(store, clock=clock, retry=retry) as one,
        opened(store, clock=clock) as two,
        one.group("g", ack_wait_seconds=5) as first,
        two.group("g", ack_wait_seconds=5) as second,
    ):
        (job,) = await first.fetch()
        inner: Any = one._store
        inner.on("put_if_match", postpone(inner.late), key_prefix=KEY)
        inner.on("get", fail(timeout("not_written")), key_prefix=KEY)
        with pytest.raises(OutcomeUnknownError):
            await job.in_progress()
        assert (await first.statistics()).pending == 1  # of the object as it was
        await inner.deliver()
        assert await first.fetch(max_wait_seconds=0) == []
        await job.nak()
        (again,) = await second.fetch(max_wait_seconds=0)
        assert again.deliveries == 2


async def test_calls_about_a_lease_that_ran_out_do_not_touch_those_that_follow(
    store, clock
) -> None:
    """Of the other process, and of another member of its own."""
    await put_log(store, 1, lambda _: None, records=1)
    async with (
        opened(store, clock=clock) as one,
        opened(store, clock=clock) as two,
        one.group("g", ack_wait_seconds=5) as first,
        one.group("g", ack_wait_seconds=5) as beside,
        two.group("g", ack_wait_seconds=5) as second,
    ):
        (late,) = await first.fetch()
        for number, group in enumerate((second, beside), 2):
            waiting = asyncio.ensure_future(group.fetch())
            await advance(clock, 7.0, waiting)
            (job,) = await waiting
            assert job.deliveries == number
            await late.nak()
            with pytest.raises(LeaseExpiredError):
                await late.in_progress()
            await job.in_progress()
