"""ReadonlyWal costs nothing idle: how often it looks, and what the durable cell spares it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.local import SMALL, copy_log, segments, turns
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.following import drain, fill, numbers, put
from walstore import (
    Wal,
)
from walstore.core.format.checkpoint import CELL_BYTES, CELL_FILE_NAME, FILE_NAME
from walstore.core.read.log_watch import LONGEST_POLL_SECONDS, SHORTEST_POLL_SECONDS
from walstore.log.readonly import ReadonlyWal
from walstore.testing import ManualClock

# -- polling -----------------------------------------------------------------------------------


class NotingClock(ManualClock):
    """Remembers for how long it was asked to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.naps: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        await super().sleep(seconds)


async def test_nobody_waits_nothing_runs(log_directory: Path) -> None:
    await fill(log_directory, 5)
    clock = NotingClock()
    async with ReadonlyWal.open(log_directory, clock=clock) as log:
        before = asyncio.all_tasks()
        await drain(log)
        assert (log.is_polling, clock.naps, asyncio.all_tasks()) == (False, [], before)
        waiting = [asyncio.create_task(log.wait_limit(target)) for target in (8, 7, 9)]
        await clock.wait_for_sleepers()
        assert (log.is_polling, clock.sleepers) == (True, 1)
        assert len(asyncio.all_tasks() - before) == 4, "one poller serves all"
        for task in waiting:
            task.cancel()
            await asyncio.wait((task,))
        assert not log.is_polling
        await turns()
        assert (clock.sleepers, asyncio.all_tasks()) == (0, before)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(RUNS_OUT_SECONDS):
                await log.wait_limit(7)
        await turns()
        assert asyncio.all_tasks() == before


async def test_the_longer_nothing_comes_the_less_often_it_looks(log_directory: Path) -> None:
    await fill(log_directory, 1)
    clock = NotingClock()
    async with Wal.open(log_directory) as wal, ReadonlyWal.open(log_directory, clock=clock) as log:
        waiting = asyncio.create_task(log.wait_limit(4))
        while not clock.naps or clock.naps[-1] < LONGEST_POLL_SECONDS:
            await clock.wait_for_sleepers()
            clock.advance(clock.naps[-1])
        assert clock.naps[0] == SHORTEST_POLL_SECONDS
        assert clock.naps == sorted(clock.naps)
        waited = 0.0
        for nap in clock.naps:
            assert nap <= max(SHORTEST_POLL_SECONDS, waited / 8 + 1e-6)
            waited += nap
        assert len(clock.naps) < 60
        await wal.append(b"")
        await clock.wait_for_sleepers()
        clock.advance(LONGEST_POLL_SECONDS)
        await turns()
        assert not waiting.done()
        await clock.wait_for_sleepers()
        assert clock.naps[-1] == SHORTEST_POLL_SECONDS, "the log has come to life"
        await wal.append(b"")
        clock.advance(SHORTEST_POLL_SECONDS)
        await waiting


async def test_intervals_may_be_chosen(log_directory: Path) -> None:
    await fill(log_directory, 1)
    clock = NotingClock()
    opening = ReadonlyWal.open(
        log_directory, clock=clock, shortest_poll_seconds=2, longest_poll_seconds=3
    )
    async with opening as log:
        waiting = asyncio.create_task(log.wait_limit(3))
        for _ in range(8):
            await clock.wait_for_sleepers()
            clock.advance(3)
            await turns(100)
            await until(lambda: clock.sleepers == 1)
        assert (clock.naps[0], clock.naps[-1]) == (2, 3)
        waiting.cancel()


async def test_cancelled_at_any_turn_a_reader_goes_on_where_it_was(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal, ReadonlyWal.open(log_directory) as log:
        reader = log.follow()
        for at in range(40):
            reading = asyncio.create_task(anext(reader))
            await turns(at % 8)
            reading.cancel()
            await asyncio.wait((reading,))
            if not reading.cancelled():
                raise AssertionError("there was nothing to read")
            await wal.append(b"%d" % at)
            reading = asyncio.create_task(anext(reader))
            await turns(at % 5)
            reading.cancel()
            await asyncio.wait((reading,))
            record = await anext(reader) if reading.cancelled() else reading.result()
            assert numbers([record]) == [at]
        assert not log.is_polling


# -- the cell ----------------------------------------------------------------------------------


async def test_a_cell_caught_half_way_says_nothing_new(log_directory: Path, clock) -> None:
    await fill(log_directory, 3)
    cell = log_directory / CELL_FILE_NAME
    async with Wal.open(log_directory) as wal, ReadonlyWal.open(log_directory, clock=clock) as log:
        assert log.limit == 4
        whole = cell.read_bytes()
        await wal.append(b"3")
        newer = cell.read_bytes()
        assert newer != whole
        for cut in range(1, CELL_BYTES):
            mixed = newer[:cut] + whole[cut:]
            await asyncio.to_thread(put, cell, mixed)
            expected = 5 if log.limit == 5 else 4
            assert log.limit == expected
        await asyncio.to_thread(put, cell, newer)
        assert log.limit == 5
        assert numbers((await drain(log))[3:]) == [3]


async def test_a_cell_that_stays_half_way_is_done_without(log_directory: Path, clock) -> None:
    """Its writer was killed within the store; the frames tell what was written."""
    await fill(log_directory, 3)
    cell = log_directory / CELL_FILE_NAME
    old = await asyncio.to_thread(cell.read_bytes)
    async with ReadonlyWal.open(log_directory, clock=clock) as log:
        await fill(log_directory, 2)
        new = await asyncio.to_thread(cell.read_bytes)
        await asyncio.to_thread(put, cell, old[:30] + new[30:])
        assert log.limit == 4
        waiting = asyncio.create_task(log.wait_limit(6))
        await clock.wait_for_sleepers()
        clock.advance(1)
        await waiting
        assert len(await drain(log)) == 5


async def test_a_missing_cell_is_found_once_it_is_there(log_directory: Path, clock) -> None:
    await fill(log_directory, 3)
    (log_directory / CELL_FILE_NAME).unlink()
    async with ReadonlyWal.open(log_directory, clock=clock) as log:
        assert (log.head, log.limit) == (1, 4)
        assert len(await drain(log)) == 3
        reading = asyncio.create_task(anext(log.follow("latest")))
        await clock.wait_for_sleepers()
        await fill(log_directory, 1)
        clock.advance(1)
        assert (await reading).offset == 4
        await fill(log_directory, 1)
        assert log.limit == 6, "it is open now"


async def test_a_cell_that_is_replaced_is_noticed(log_directory: Path, clock) -> None:
    """A file put in its place, as a restored backup would."""
    cell = log_directory / CELL_FILE_NAME
    await fill(log_directory, 3)
    async with ReadonlyWal.open(log_directory, clock=clock) as log:
        copy = cell.with_name("copy")
        await asyncio.to_thread(shutil.copy, cell, copy)
        await asyncio.to_thread(copy.replace, cell)
        async with Wal.open(log_directory, settings=SMALL) as wal:
            await wal.append(b"3")
            assert log.limit == 4, "this one is open still"
            waiting = asyncio.create_task(log.wait_limit(5))
            await clock.wait_for_sleepers()
            clock.advance(1)
            await waiting
            await wal.append(b"4")
            assert log.limit == 6
        await asyncio.to_thread(cell.unlink)
        await log.refresh()
        assert log.limit == 6
        assert len(await drain(log)) == 5


async def test_a_cell_behind_the_truth_is_overtaken(log_directory: Path, tmp_path: Path) -> None:
    """After a crash of the machine the cell may be old: more is seen than it says, never less."""
    copy = tmp_path / "copy"
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"0")
        old = {name: (log_directory / name).read_bytes() for name in (CELL_FILE_NAME, FILE_NAME)}
        for at in range(1, 10):
            await wal.append(b"%d" % at)
        await asyncio.to_thread(copy_log, log_directory, copy)
    for name, content in old.items():
        (copy / name).write_bytes(content)
    async with ReadonlyWal.open(copy) as log:
        assert (log.limit, log.tail) == (10, 11), "all but the last write before the crash"
        assert numbers(await drain(log)) == list(range(9))
        last = asyncio.create_task(anext(log.follow(11)))
        await until(lambda: log.is_polling)
        async with Wal.open(copy, settings=SMALL) as wal:
            assert wal.recovery.missing_from is None
            await wal.append(b"10")
        assert (await last).value == b"10", "its position was known before the crash"
        assert numbers(await drain(log)) == list(range(11))


async def test_a_torn_tail_is_cut_off_under_its_eyes(log_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for at in range(30):
            await wal.append(b"%d" % at)
        await asyncio.to_thread(copy_log, log_directory, copy)
    path = segments(copy)[-1]
    end = len((await asyncio.to_thread(path.read_bytes)).rstrip(b"\0"))

    def tear() -> None:
        with path.open("r+b") as file:
            file.seek(end)
            file.write(file.read(0) + b"\x57\x42\x46\x31" + bytes(range(1, 200)))

    await asyncio.to_thread(tear)
    async with ReadonlyWal.open(copy) as log:
        reader = log.follow()
        assert numbers([await anext(reader) for _ in range(30)]) == list(range(30))
        reading = asyncio.create_task(anext(reader))
        await until(lambda: log.is_polling)
        async with Wal.open(copy, settings=SMALL) as wal:
            assert wal.recovery.truncated_bytes > 0
            await wal.append(b"30")
            assert numbers([await reading]) == [30]
            assert log.epoch == 2
