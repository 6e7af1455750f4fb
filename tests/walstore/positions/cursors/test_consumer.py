"""Consumers: what counts as processed, when it is committed, and where the next one begins."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest

from tests.cursors import consumers_of, on_disk
from tests.local import SMALL, turns
from tests.waiting import until
from walstore import (
    CursorMovedError,
    DiskFullError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    Wal,
    WalClosedError,
)
from walstore.testing import FaultyFileSystem, ManualClock


@pytest.fixture
async def wal(log_directory: Path):
    """A log of the records 1 to 20, in batches of five."""
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for start in range(1, 21, 5):
            await wal.append_many([b"%d" % at for at in range(start, start + 5)])
        yield wal


class BodyError(Exception):
    """What a consumer's user raises."""


# -- what counts as processed ----------------------------------------------------------------


# -- committing ------------------------------------------------------------------------------


async def test_auto_commit(wal: Wal, clock: ManualClock) -> None:
    async with (
        consumers_of(wal, clock=clock) as make,
        make.consumer(auto_commit_seconds=5) as consumer,
    ):
        async for record in consumer:
            if record.offset == 7:
                break
        await clock.wait_for_sleepers()
        assert on_disk(wal.path).position == 1
        clock.advance(5)
        await until(lambda: consumer.committed == 7)
        assert on_disk(wal.path).position == 7
        assert (await anext(consumer)).offset == 8
        await clock.wait_for_sleepers()
        clock.advance(5)
        await until(lambda: on_disk(wal.path).position == 8)


async def test_auto_commit_while_nothing_comes(wal: Wal, clock: ManualClock) -> None:
    async with (
        consumers_of(wal, clock=clock) as make,
        make.consumer(follow=True) as consumer,
    ):
        reading = asyncio.create_task(_read_until(consumer, 21))
        await until(lambda: consumer.position == 21)
        await clock.wait_for_sleepers()
        clock.advance(5)
        await until(lambda: on_disk(wal.path).position == 21)
        revision = on_disk(wal.path).revision
        await clock.wait_for_sleepers()
        clock.advance(5)
        await clock.wait_for_sleepers()
        assert on_disk(wal.path).revision == revision, "nothing new, nothing written"
        await wal.append(b"21")
        await reading


async def _read_until(consumer, offset: int) -> None:
    async for record in consumer:
        if record.offset == offset:
            return


async def test_the_end_waits_for_a_commit_under_way(
    wal: Wal, clock: ManualClock, faulty: FaultyFileSystem
) -> None:
    async with consumers_of(wal, fs=faulty, clock=clock) as make:
        consumer = await make.consumer().__aenter__()
        await consumer.fetch(max_records=20)
        await consumer.fetch()
        await clock.wait_for_sleepers()
        with faulty.hold("replace") as hold:
            clock.advance(5)
            await hold.wait_entered()
            leaving = asyncio.create_task(consumer.__aexit__(None, None, None))
            await turns()
            assert not leaving.done()
            faulty.fail("sync_directory", times=None)
        with pytest.raises(OutcomeUnknownError):
            await leaving
        faulty.heal()


# -- leases ----------------------------------------------------------------------------------


@pytest.mark.parametrize("auto_commit_seconds", [None, 1000.0])
async def test_a_lease_is_kept_up(
    wal: Wal, clock: ManualClock, auto_commit_seconds: float | None
) -> None:
    async with consumers_of(wal, clock=clock) as make:
        options = {"auto_commit_seconds": auto_commit_seconds, "lease_seconds": 30}
        async with make.consumer(**options):
            for _ in range(6):
                await clock.wait_for_sleepers()
                clock.advance(10)
                deadline_us = clock.now_us() + 30_000_000
                await until(lambda due=deadline_us: on_disk(wal.path).deadline_us == due)
        clock.advance(30)
        (info,) = await make.store.list()
        assert info.is_expired


async def test_a_consumer_that_comes_back_too_late(wal: Wal, clock: ManualClock) -> None:
    async with consumers_of(wal, clock=clock) as make:
        async with make.consumer(lease_seconds=30):
            pass
        clock.advance(30)
        if not hasattr(wal, "trim"):
            pytest.skip("trim is not there yet")
        assert await wal.trim(before=10) == 10
        with pytest.raises(OffsetTrimmedError):
            async with make.consumer():
                pass
        await make.store.delete("c")
        async with make.consumer() as consumer:
            assert consumer.position == wal.head


# -- what goes wrong -------------------------------------------------------------------------


async def test_a_cursor_moved_by_another(wal: Wal, clock: ManualClock) -> None:
    async with consumers_of(wal, clock=clock) as make:
        with pytest.raises(CursorMovedError):
            async with make.consumer() as consumer:
                assert (await anext(consumer)).offset == 1
                assert (await anext(consumer)).offset == 2
                other = await make.store.open("c")
                await other.commit(15)
                await clock.wait_for_sleepers()
                clock.advance(5)
                await until(lambda: consumer._keeper.failure is not None)
                for call in (consumer.fetch, consumer.commit, consumer.__anext__):
                    with pytest.raises(CursorMovedError):
                        await call()
                with pytest.raises(CursorMovedError):
                    consumer.batches()
        assert await make.position() == 15


async def test_a_full_disk_is_got_over(
    wal: Wal, clock: ManualClock, faulty: FaultyFileSystem, caplog
) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        consumers_of(wal, fs=faulty, clock=clock) as make,
        make.consumer() as consumer,
    ):
        await consumer.fetch(max_records=5)
        await consumer.fetch(max_records=5)
        faulty.fail("pwrite", errno.ENOSPC)
        await clock.wait_for_sleepers()
        clock.advance(5)
        await until(lambda: "will be moved later" in caplog.text)
        await clock.wait_for_sleepers()
        clock.advance(5)
        await until(lambda: on_disk(wal.path).position == 6)


async def test_a_failing_commit_at_the_end_is_raised(wal: Wal, faulty: FaultyFileSystem) -> None:
    async with consumers_of(wal, fs=faulty) as make:
        with pytest.raises(DiskFullError):
            async with make.consumer() as consumer:
                await consumer.fetch()
                faulty.fail("pwrite", errno.ENOSPC)


async def test_a_closed_log(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        async with make.consumer(follow=True) as consumer:
            await consumer.fetch(max_records=20)
            await wal.aclose()
            with pytest.raises(WalClosedError):
                await consumer.fetch()
        assert await make.position() == 21


async def test_it_leaves_no_task_behind(wal: Wal) -> None:
    before = asyncio.all_tasks()
    async with consumers_of(wal) as make:
        async with make.consumer(lease_seconds=60):
            assert asyncio.all_tasks() != before
        with pytest.raises(BodyError):
            async with make.consumer():
                raise BodyError
        assert asyncio.all_tasks() == before
