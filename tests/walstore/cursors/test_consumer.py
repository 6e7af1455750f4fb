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
    InvalidSettingsError,
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


async def test_all_that_was_read_is_committed_at_the_end(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        async with make.consumer() as consumer:
            assert [int(record.value) async for record in consumer] == list(range(1, 21))
            assert consumer.position == 21
        assert await make.position() == 21
        async with make.consumer() as consumer:
            assert [record async for record in consumer] == []


async def test_it_goes_on_where_the_last_one_ended(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        async with make.consumer() as consumer:
            async for record in consumer:
                if record.offset == 7:
                    break
        assert await make.position() == 8, "the block was left without an exception"
        async with make.consumer() as consumer:
            assert (await anext(consumer)).offset == 8


async def test_an_exception_leaves_the_record_to_be_read_again(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        with pytest.raises(BodyError):
            async with make.consumer() as consumer:
                async for record in consumer:
                    if record.offset == 7:
                        raise BodyError
        assert await make.position() == 7
        async with make.consumer() as consumer:
            assert (await anext(consumer)).offset == 7


async def test_an_exception_leaves_the_batch_to_be_read_again(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        with pytest.raises(BodyError):
            async with make.consumer() as consumer:
                async for batch in consumer.batches():
                    if batch.start == 11:
                        raise BodyError
        assert await make.position() == 11
        async with make.consumer() as consumer:
            assert [b.start async for b in consumer.batches()] == [11, 16]
        assert await make.position() == 21


async def test_an_exception_leaves_what_was_fetched_to_be_read_again(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        with pytest.raises(BodyError):
            async with make.consumer() as consumer:
                assert len(await consumer.fetch(max_records=3)) == 3
                assert len(await consumer.fetch(max_records=3)) == 3
                raise BodyError
        assert await make.position() == 4
        async with make.consumer() as consumer:
            while batch := await consumer.fetch(max_records=7):
                last = batch.limit
        assert await make.position() == last == 21


async def test_a_cancelled_body(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        began = asyncio.Event()

        async def body() -> None:
            async with make.consumer() as consumer:
                async for record in consumer:
                    if record.offset == 5:
                        began.set()
                        await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await began.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await make.position() == 5


async def test_a_cancelled_wait_for_more_has_processed_what_came_before(wal: Wal) -> None:
    seen: list[int] = []

    async with consumers_of(wal) as make:

        async def consume() -> None:
            async with make.consumer(follow=True) as consumer:
                async for record in consumer:
                    seen.append(record.offset)

        task = asyncio.create_task(consume())
        await until(lambda: len(seen) == 20)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await make.position() == 21


async def test_the_ways_of_reading_mix(wal: Wal) -> None:
    async with consumers_of(wal) as make, make.consumer() as consumer:
        assert (await anext(consumer)).offset == 1
        assert (await consumer.fetch(max_records=2)).start == 2
        assert (await anext(consumer.batches())).start == 4
        assert (await anext(consumer)).offset == 6


async def test_the_start_of_a_new_one(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        async with make.consumer("a", start=10) as consumer:
            assert (await anext(consumer)).offset == 10
        async with make.consumer("b", start="latest") as consumer:
            assert consumer.position == 21
        async with make.consumer("a", start=1) as consumer:
            assert (await anext(consumer)).offset == 11


async def test_one_stream_only(wal: Wal) -> None:
    await wal.append_many([b"x", b"y"], stream="eu")
    await wal.append(b"other")
    async with consumers_of(wal) as make:
        if "stream" not in wal.reader.__kwdefaults__:
            pytest.skip("readers of one stream are not there yet")
        async with make.consumer(stream="eu") as consumer:
            assert [record.value async for record in consumer] == [b"x", b"y"]
        assert await make.position() == 24, "what was passed over is done with"


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


async def test_by_hand(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        async with make.consumer(auto_commit_seconds=None) as consumer:
            async for record in consumer:
                if record.offset == 5:
                    await consumer.commit()
                if record.offset == 10:
                    await consumer.commit(9)
        assert await make.position() == 9
        with pytest.raises(BodyError):
            async with make.consumer(auto_commit_seconds=None) as consumer:
                await consumer.fetch(max_records=3)
                await consumer.commit()
                await consumer.fetch(max_records=3)
                raise BodyError
        assert await make.position() == 12


async def test_commit_says_that_what_was_handed_out_is_processed(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        with pytest.raises(BodyError):
            async with make.consumer() as consumer:
                async for record in consumer:
                    if record.offset == 5:
                        await consumer.commit()
                        raise BodyError
        assert await make.position() == 6


async def test_seeking_back_moves_the_cursor_back(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        async with make.consumer() as consumer:
            async for _ in consumer:
                pass
            await consumer.commit()
            with pytest.raises(ValueError, match="rewind"):
                await consumer.commit(3)
            consumer.seek(3)
            assert consumer.position == 3
            await consumer.commit()
            assert on_disk(wal.path).position == 3
            assert (await anext(consumer)).offset == 3
        assert await make.position() == 4


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


async def test_a_cursor_moved_by_another_shows_at_the_end(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        with pytest.raises(CursorMovedError):
            async with make.consumer() as consumer:
                await consumer.fetch()
                await (await make.store.open("c")).commit(15)
        with pytest.raises(BodyError):
            async with make.consumer() as consumer:
                await consumer.fetch()
                await (await make.store.open("c")).commit(17)
                raise BodyError


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


async def test_misuse(wal: Wal) -> None:
    async with consumers_of(wal) as make:
        consumer = make.consumer()
        assert repr(consumer) == "<Consumer 'c' not open>"
        with pytest.raises(WalClosedError, match="async with"):
            await anext(consumer)
        with pytest.raises(WalClosedError, match="async with"):
            _ = consumer.committed
        async with consumer:
            assert repr(consumer) == "<Consumer 'c' at 1>"
            with pytest.raises(RuntimeError, match="once"):
                await consumer.__aenter__()
            with pytest.raises(InvalidSettingsError, match="output"):
                consumer.transaction()
        for seconds in (0, -1, float("nan")):
            with pytest.raises(InvalidSettingsError):
                make.consumer(auto_commit_seconds=seconds)


async def test_it_leaves_no_task_behind(wal: Wal) -> None:
    before = asyncio.all_tasks()
    async with consumers_of(wal) as make:
        async with make.consumer(lease_seconds=60):
            assert asyncio.all_tasks() != before
        with pytest.raises(BodyError):
            async with make.consumer():
                raise BodyError
        assert asyncio.all_tasks() == before
