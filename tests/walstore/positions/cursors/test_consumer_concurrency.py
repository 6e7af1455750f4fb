"""Consumers with several records at once: committed is what lies before the first that is not done."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.effort import first_seed
from tests.local import SMALL, turns
from walstore import CursorMovedError, InvalidSettingsError, Record, Wal

RECORDS = 20


@pytest.fixture
async def wal(log_directory: Path):
    """A log of the records 1 to 20, in batches of five."""
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for start in range(1, RECORDS + 1, 5):
            await wal.append_many([b"%d" % at for at in range(start, start + 5)])
        yield wal


async def position(wal: Wal) -> int:
    return (await wal.cursor("c")).position


class Gates:
    """A handler whose calls end when a test says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self._open: dict[int, asyncio.Future[None]] = {}

    async def __call__(self, record: Record) -> None:
        self.begun.append(record.offset)
        gate = self._open[record.offset] = asyncio.get_running_loop().create_future()
        try:
            await gate
        except asyncio.CancelledError:
            self.cancelled.append(record.offset)
            raise
        self.ended.append(record.offset)

    async def end(self, *offsets: int, error: Exception | None = None) -> None:
        for offset in offsets:
            gate = self._open.pop(offset)
            gate.set_exception(error) if error else gate.set_result(None)
        await turns()


async def test_so_many_handlers_run_at_once_and_begin_in_order(wal: Wal) -> None:
    gates = Gates()
    async with (
        wal.consumer("c", concurrency=4, follow=False) as consumer,
        asyncio.TaskGroup() as group,
    ):
        running = group.create_task(consumer.run(gates))
        await turns()
        assert gates.begun == [1, 2, 3, 4]
        await gates.end(3)
        assert gates.begun == [1, 2, 3, 4, 5]
        for offset in range(1, RECORDS + 1):
            if offset != 3:
                await gates.end(offset)
        await running
    assert sorted(gates.ended) == list(range(1, RECORDS + 1))
    assert await position(wal) == RECORDS + 1


async def test_committed_is_what_lies_before_the_first_that_is_not_done(wal: Wal) -> None:
    gates = Gates()
    async with wal.consumer("c", concurrency=4, auto_commit_seconds=None) as consumer:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(consumer.run(gates))
            await turns()
            for ended, expected in (((2, 4), 1), ((1,), 3), ((3,), 5), ((6, 7, 8), 5), ((5,), 9)):
                await gates.end(*ended)
                await consumer.commit()
                assert await position(wal) == consumer.committed == expected
            running.cancel()
        assert sorted(gates.cancelled) == [9, 10, 11, 12]
        assert consumer.position == 9
    assert await position(wal) == 9


async def test_an_error_cancels_the_others_and_gives_their_records_back(wal: Wal) -> None:
    gates = Gates()
    async with wal.consumer("c", concurrency=4, follow=False) as consumer:
        async with asyncio.TaskGroup() as group:

            async def run() -> None:
                with pytest.raises(ZeroDivisionError, match="mine"):
                    await consumer.run(gates)

            group.create_task(run())
            await turns()
            await gates.end(1, 4)
            await gates.end(3, error=ZeroDivisionError("mine"))
        assert sorted(gates.cancelled) == [2, 5, 6]
        assert consumer.position == 2
        seen: list[int] = []

        async def note(record: Record) -> None:
            seen.append(record.offset)

        await consumer.run(note)
        assert seen == list(range(2, RECORDS + 1))
    assert await position(wal) == RECORDS + 1


async def test_an_error_that_leaves_the_block_commits_the_prefix(wal: Wal) -> None:
    async def fail(record: Record) -> None:
        if record.offset == 7:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with wal.consumer("c", concurrency=3, follow=False) as consumer:
            await consumer.run(fail)
    assert await position(wal) == 7


async def test_records_that_are_read_one_by_one_are_done_when_that_is_said(wal: Wal) -> None:
    async with wal.consumer("c", concurrency=3, follow=False, auto_commit_seconds=None) as consumer:
        held = [await anext(consumer) for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(anext(consumer))  # type: ignore[arg-type]
            await turns()
            assert not waiting.done()
            consumer.done(held[1])
            fourth = await waiting
        await consumer.commit()
        assert await position(wal) == 1
        consumer.done(held[0])
        consumer.done(held[0])
        await consumer.commit()
        assert await position(wal) == 3
        consumer.seek(10)
        consumer.done(fourth)  # it was passed over
        assert (await anext(consumer)).offset == 10
    assert await position(wal) == 3


async def test_one_after_the_other_without_concurrency(wal: Wal) -> None:
    most = running = 0

    async def handle(_: Record) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async with wal.consumer("c", follow=False) as consumer:
        await consumer.run(handle)
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
    assert (most, await position(wal)) == (1, RECORDS + 1)


async def test_another_handle_that_commits_ends_it(wal: Wal) -> None:
    gates = Gates()
    async with asyncio.TaskGroup() as group:

        async def run() -> None:
            with pytest.raises(CursorMovedError):
                async with wal.consumer("c", concurrency=2, auto_commit_seconds=None) as consumer:

                    async def handle(record: Record) -> None:
                        await gates(record)
                        await consumer.commit()

                    await consumer.run(handle)

        group.create_task(run())
        await turns()
        await (await wal.cursor("c")).commit(15)
        await gates.end(1)
        await gates.end(2)  # by now the first is done, so that there is something to commit
    assert await position(wal) == 15


async def test_what_cannot_be(wal: Wal) -> None:
    for wrong in (0, -1, 100_001):
        with pytest.raises(InvalidSettingsError, match="concurrency"):
            wal.consumer("c", concurrency=wrong)
    for wrong in ("8", 2.0, None, True):
        with pytest.raises(TypeError):
            wal.consumer("c", concurrency=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingsError, match="output"):
        wal.consumer("c", concurrency=2, output=wal)
    async with wal.consumer("c", concurrency=2, follow=False) as consumer:
        with pytest.raises(InvalidSettingsError, match="single records"):
            await consumer.fetch()
        with pytest.raises(InvalidSettingsError, match="single records"):
            consumer.batches()

        async def again(_: Record) -> None:
            await consumer.run(again)

        async def seek(_: Record) -> None:
            consumer.seek(1)

        for handler in (again, seek):
            with pytest.raises(RuntimeError, match="runs a handler"):
                await consumer.run(handler)
        assert consumer.position == 1


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_that_is_committed_was_not_done(wal: Wal, seed: int) -> None:
    """Handlers end in any order, fail and are cancelled; the next consumer goes on at the cursor."""
    chance = random.Random(seed + first_seed("consumers"))
    done: list[int] = []

    async def handle(record: Record) -> None:
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        if chance.random() < 0.05:
            raise ZeroDivisionError
        done.append(record.offset)

    while await position(wal) <= RECORDS:
        try:
            async with (
                wal.consumer("c", concurrency=chance.randrange(2, 9), follow=False) as consumer,
                asyncio.TaskGroup() as group,
            ):
                running = group.create_task(consumer.run(handle))
                if chance.random() < 0.3:
                    await turns(chance.randrange(1, 30))
                    running.cancel()
        except* ZeroDivisionError:
            pass
        assert set(range(1, await position(wal))) <= set(done)
    assert set(done) == set(range(1, RECORDS + 1))
