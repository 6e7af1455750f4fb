"""ReadonlyWal: follows a log from outside, through all that its writer may do, and costs nothing idle."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tests.local import SMALL, copy_log, drop_before, open_descriptors, read_all, segments, turns
from tests.waiting import until
from walstore import (
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    Record,
    StorageUnavailableError,
    Wal,
    WalClosedError,
)
from walstore import log_files as log_files_module
from walstore.checkpoint import CELL_BYTES, CELL_FILE_NAME, FILE_NAME
from walstore.log_watch import LONGEST_POLL_SECONDS, SHORTEST_POLL_SECONDS
from walstore.posix import PosixFileSystem
from walstore.reader import Reader
from walstore.readonly import ReadonlyWal
from walstore.records import from_timestamp_us
from walstore.testing import FaultyFileSystem, ManualClock

FS = PosixFileSystem()


def put(path: Path, data: bytes) -> None:
    """Store bytes in a file that others have mapped, as its writer does."""
    with path.open("r+b") as file:
        file.write(data)


async def drain(log: ReadonlyWal, start=1) -> list[Record]:
    return [record async for record in log.reader(start, follow=False)]


async def fill(directory: Path, count: int, *, size: int = 1000) -> None:
    async with Wal.open(directory, settings=SMALL) as wal:
        for at in range(count):
            await wal.append(b"%d" % at + bytes(size), durability="memory")


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value.rstrip(b"\0")) for record in records]


# -- opening and looking ---------------------------------------------------------------------------


async def test_it_can_be_awaited_or_entered(log_directory: Path) -> None:
    await fill(log_directory, 3)
    log = await ReadonlyWal.open(log_directory)
    assert (log.head, log.limit, log.tail, log.durable_limit, log.epoch) == (1, 4, 4, 4, 1)
    assert repr(log) == f"<ReadonlyWal {log_directory} [1, 4) epoch=1 waiting=0>"
    await log.aclose()
    await log.aclose()
    async with ReadonlyWal.open(str(log_directory)) as log, log:
        assert numbers(await drain(log)) == [0, 1, 2]


async def test_there_may_be_no_log(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "none", tmp_path / "file"):
        with pytest.raises(LogNotFoundError):
            await ReadonlyWal.open(path)


async def test_a_directory_that_cannot_be_read(log_directory: Path, faulty) -> None:
    await fill(log_directory, 1)
    for call in ("list", "read", "open", "view_cell"):
        faulty.fail(call)
        with pytest.raises(StorageUnavailableError):
            await ReadonlyWal.open(log_directory, fs=faulty)


@pytest.mark.parametrize(("shortest", "longest"), [(0, 1), (-1, 1), (2, 1)])
async def test_intervals_that_make_no_sense(shortest: float, longest: float) -> None:
    with pytest.raises(InvalidSettingsError):
        ReadonlyWal.open("x", shortest_poll_seconds=shortest, longest_poll_seconds=longest)


async def test_it_takes_no_lock_and_changes_nothing(log_directory: Path) -> None:
    await fill(log_directory, 100)
    before = {path: path.stat().st_mtime_ns for path in log_directory.iterdir()}
    async with ReadonlyWal.open(log_directory) as log:
        assert len(await drain(log)) == 100
        await log.refresh()
        assert {path: path.stat().st_mtime_ns for path in log_directory.iterdir()} == before
        async with Wal.open(log_directory, settings=SMALL) as wal:
            await wal.append(b"100")
        assert len(await drain(log)) == 101
        assert open_descriptors(log_directory) == [str(log_directory / CELL_FILE_NAME)]
    assert open_descriptors(log_directory) == []


async def test_everything_there_is_any_way_it_is_read(log_directory: Path) -> None:
    """Random positions, limits and sizes, in sealed segments and the active one."""
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for at in range(300):
            await wal.append(b"%d" % at + bytes(at * 7), durability="memory")
        await wal.flush()
        expected = await read_all(wal)
        async with ReadonlyWal.open(log_directory) as log:
            assert await drain(log) == expected
            chance = random.Random(1)
            for _ in range(150):
                start = chance.randrange(1, 301)
                stop = chance.randrange(start, 302)
                reader = log.reader(start, stop=stop, follow=False)
                reader._read_bytes = chance.choice([1, 500, 5000, 1 << 20])
                assert [record async for record in reader] == expected[start - 1 : stop - 1]
    assert len(segments(log_directory)) > 3


async def test_offsets_outside_are_refused(log_directory: Path) -> None:
    await fill(log_directory, 3)
    async with ReadonlyWal.open(log_directory) as log:
        with pytest.raises(OffsetNotWrittenError):
            await anext(log.reader(6))
        with pytest.raises(OffsetTrimmedError):
            await anext(log.reader(0))
        for offset, error in ((0, OffsetTrimmedError), (4, OffsetNotWrittenError)):
            with pytest.raises(error):
                await log.timestamp_at(offset)


# -- following -------------------------------------------------------------------------------------


async def test_it_follows_through_rotations_and_restarts(log_directory: Path) -> None:
    expected: list[int] = []
    log = reader = None
    for life in range(1, 4):
        async with Wal.open(log_directory, settings=SMALL) as wal:
            log = log or await ReadonlyWal.open(log_directory)
            reader = reader or log.reader()
            for step in range(20):
                for _at in range(10):
                    expected.append(len(expected))
                    await wal.append(b"%d" % expected[-1] + bytes(700), durability="memory")
                await wal.flush()
                if step % 7 == 0:
                    await wal.rotate()
                assert log.limit == wal.durable_limit
                found = [await anext(reader) for _ in range(10)]
                assert numbers(found) == expected[-10:]
            assert log.epoch == life
    assert log is not None
    assert log.limit == len(expected) + 1
    assert numbers(await drain(log)) == expected
    await log.aclose()


async def test_visible_is_durable(log_directory: Path, faulty: FaultyFileSystem) -> None:
    """A record is there the moment its sync has returned, and not before."""
    async with Wal.open(log_directory, fs=faulty) as wal, ReadonlyWal.open(log_directory) as log:
        reading = asyncio.create_task(anext(log.reader("latest")))
        with faulty.hold("datasync") as hold:
            offset = wal.append_nowait(b"value")
            await hold.wait_entered()
            assert segments(log_directory)[-1].stat().st_size > 64, "it is written"
            await log.refresh()
            assert (log.limit, log.tail) == (offset, offset + 1)
            assert await drain(log) == []
            assert not reading.done()
        assert (await reading).offset == offset


async def test_what_syncing_is_left_to_the_system_for_is_seen_once_written(
    log_directory: Path,
) -> None:
    async with (
        Wal.open(log_directory, settings=SMALL.replace(sync="os")) as wal,
        ReadonlyWal.open(log_directory) as log,
    ):
        reader = log.reader()
        for at in range(200):
            await wal.append(b"%d" % at + bytes(500), durability="memory")
            assert numbers([await anext(reader)]) == [at]


async def test_large_transactions_come_whole(log_directory: Path) -> None:
    settings = SMALL.replace(transaction_memory_bytes=4096)
    async with (
        Wal.open(log_directory, settings=settings) as wal,
        ReadonlyWal.open(log_directory) as log,
    ):
        reader = log.reader()
        for life in range(4):
            if life % 2:
                await wal.append(b"between")
                assert (await anext(reader)).value == b"between"
            async with wal.transaction() as transaction:
                for at in range(50):
                    await transaction.append(b"%d" % at + bytes(500))
                assert log.limit == wal.tail
            assert log.limit == transaction.span.stop
            assert numbers([await anext(reader) for _ in range(50)]) == list(range(50))


async def test_changes_without_records_are_passed_over(log_directory: Path) -> None:
    """Registers and streams make frames and segments that hold no record."""
    async with Wal.open(log_directory, settings=SMALL) as wal:
        async with ReadonlyWal.open(log_directory) as log:
            reader = log.reader()
            for at in range(60):
                for _ in range(5):
                    async with wal.transaction(update={f"register {at % 7}": "x" * 900}):
                        pass
                await wal.append(b"%d" % at)
                assert numbers([await anext(reader)]) == [at]
            assert numbers(await drain(log)) == list(range(60))
        async with ReadonlyWal.open(log_directory) as log:
            assert numbers(await drain(log, 31)) == list(range(30, 60))


async def test_latest_is_the_next_to_become_durable(log_directory: Path) -> None:
    await fill(log_directory, 50)
    async with (
        Wal.open(log_directory, settings=SMALL) as wal,
        ReadonlyWal.open(log_directory) as log,
    ):
        reader = log.reader("latest")
        reading = asyncio.create_task(anext(reader))
        await until(lambda: log.is_polling)
        await wal.append(b"50")
        assert numbers([await reading]) == [50]


async def test_who_waits_reads_on_where_the_cell_said(log_directory: Path, faulty) -> None:
    """Nobody scans the active segment for its end."""
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append_many([bytes(100)] * 200)
        async with ReadonlyWal.open(log_directory, fs=faulty) as log:
            reader = log.reader("latest")
            for _ in range(10):
                reading = asyncio.create_task(anext(reader))
                await until(lambda: log.is_polling)
                await wal.append(b"v")
                calls = len(faulty.calls)
                await reading
                reads = [call for call in faulty.calls[calls:] if call.kind == "pread"]
                assert len(reads) == 1
                assert reads[0].position > 20_000
                assert reads[0].size_bytes < 200, "and nobody reads what is reserved behind it"


async def test_several_readers_at_once(log_directory: Path) -> None:
    await fill(log_directory, 7)
    async with Wal.open(log_directory, settings=SMALL) as wal:
        async with ReadonlyWal.open(log_directory) as log, asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(_take(log.reader(start), 300)) for start in range(1, 9)]
            for at in range(7, 307):
                await wal.append(b"%d" % at + bytes(at * 5), durability="memory")
                if at % 10 == 0:
                    await wal.flush()
            await wal.flush()
        for start, task in enumerate(reading):
            assert numbers(task.result()) == list(range(start, start + 300))


async def _take(reader: Reader, count: int) -> list[Record]:
    return [await anext(reader) for _ in range(count)]


async def test_one_stream_of_many(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for at in range(100):
            await wal.append(b"%d" % at, stream=f"stream {at % 3}")
        async with ReadonlyWal.open(log_directory) as log:
            reader = log.reader(stream="stream 1", follow=False)
            assert numbers([record async for record in reader]) == list(range(1, 100, 3))


async def test_what_was_remembered_wrongly_is_forgotten(log_directory: Path) -> None:
    """Places and indexes are hints: one that proves wrong costs a second look, not the read."""
    await fill(log_directory, 100)
    async with ReadonlyWal.open(log_directory) as log:
        files = log._files
        sealed, last = files._ordered[0], files._ordered[-1]
        files._note(50, log_files_module.Place(sealed.start, 777))
        assert numbers([await anext(log.reader(50))]) == [49]
        assert last.index is not None
        last.index.positions.append(1001)
        last.index.starts.append(last.start)
        last.index.timestamps_us.append(1)
        assert numbers([await anext(log.reader(last.start + 1))]) == [last.start]
        last.index.positions[-1] = 1001
        time = await log.timestamp_at(100)
        assert await log.offset_at(time) <= 100
        assert await log.timestamp_at(await log.offset_at(time)) == time


async def test_a_future_time_is_waited_for(log_directory: Path, clock: ManualClock) -> None:
    async with (
        Wal.open(log_directory, clock=clock) as wal,
        ReadonlyWal.open(log_directory) as log,
    ):
        await wal.append(b"old")
        moment = from_timestamp_us(clock.now_us()) + timedelta(hours=1)
        reading = asyncio.create_task(anext(log.reader(moment)))
        await until(lambda: log.is_polling)
        await wal.append(b"too early")
        await wal.append_many([b"early, too"] * 3)
        clock.advance(3600)
        await wal.append(b"now")
        await wal.append(b"later")
        assert (await reading).value == b"now"


# -- polling ---------------------------------------------------------------------------------------


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
            async with asyncio.timeout(0.01):
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
        reader = log.reader()
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


# -- the cell --------------------------------------------------------------------------------------


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
        reading = asyncio.create_task(anext(log.reader("latest")))
        await clock.wait_for_sleepers()
        await fill(log_directory, 1)
        clock.advance(1)
        assert (await reading).offset == 4
        await fill(log_directory, 1)
        assert log.limit == 6, "it is mapped now"


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
            assert log.limit == 4, "this one is mapped still"
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
        last = asyncio.create_task(anext(log.reader(11)))
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
        reader = log.reader()
        assert numbers([await anext(reader) for _ in range(30)]) == list(range(30))
        reading = asyncio.create_task(anext(reader))
        await until(lambda: log.is_polling)
        async with Wal.open(copy, settings=SMALL) as wal:
            assert wal.recovery.truncated_bytes > 0
            await wal.append(b"30")
            assert numbers([await reading]) == [30]
            assert log.epoch == 2


# -- what may go wrong -----------------------------------------------------------------------------


async def test_removed_records_are_trimmed_and_never_a_gap(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for at in range(200):
            await wal.append(b"%d" % at + bytes(1000), durability="memory")
        await wal.flush()
        async with ReadonlyWal.open(log_directory) as log:
            reader = log.reader()
            slow = log.reader()
            slow._read_bytes = 4096
            await anext(slow)
            assert numbers([await anext(reader) for _ in range(150)]) == list(range(150))
            head = await drop_before(wal, 120)
            assert 1 < head <= 120
            assert (log.head, log.reader().position) == (head, head)
            assert numbers([await anext(reader) for _ in range(50)]) == list(range(150, 200))
            with pytest.raises(OffsetTrimmedError) as found:
                while True:
                    record = await anext(slow)
                    assert record.offset == slow.position - 1
            assert found.value.head == head
            assert found.value.requested <= head
            slow.seek(found.value.head)
            assert (await anext(slow)).offset == head


async def test_a_file_removed_during_the_read_is_trimmed(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for at in range(200):
            await wal.append(b"%d" % at + bytes(1000), durability="memory")
        await wal.flush()
        async with ReadonlyWal.open(log_directory, fs=faulty) as log:
            hold = faulty.hold("open", name="*.wal")
            reading = asyncio.create_task(anext(log.reader()))
            await hold.wait_entered()
            head = await drop_before(wal, 120)
            hold.release()
            with pytest.raises(OffsetTrimmedError) as found:
                await reading
            assert (found.value.requested, found.value.head) == (1, head)
            assert numbers([await anext(log.reader())]) == [head - 1]


async def test_a_file_that_somebody_takes_away_is_no_gap_either(log_directory: Path) -> None:
    await fill(log_directory, 200)
    async with ReadonlyWal.open(log_directory) as log:
        paths = segments(log_directory)
        await asyncio.to_thread(paths[1].unlink)
        with pytest.raises(StorageUnavailableError, match=paths[1].name):
            await drain(log)
        await asyncio.to_thread(paths[0].unlink)
        with pytest.raises(OffsetTrimmedError):
            await drain(log)


async def test_damage_is_reported(log_directory: Path) -> None:
    await fill(log_directory, 200)
    path = segments(log_directory)[1]
    data = bytearray(await asyncio.to_thread(path.read_bytes))
    data[3000] ^= 1
    await asyncio.to_thread(path.write_bytes, data)
    async with ReadonlyWal.open(log_directory) as log:
        with pytest.raises(CorruptionError, match=path.name):
            await drain(log)


async def test_a_read_that_fails_once_can_be_repeated(log_directory: Path, faulty) -> None:
    await fill(log_directory, 20)
    async with ReadonlyWal.open(log_directory, fs=faulty) as log:
        reader = log.reader()
        faulty.fail("pread")
        with pytest.raises(StorageUnavailableError):
            await anext(reader)
        assert numbers([await anext(reader)]) == [0]
        assert await log.offset_at(0) == 1
        faulty.fail("open")
        with pytest.raises(StorageUnavailableError):
            await log.offset_at(0)


async def test_a_directory_that_is_removed(log_directory: Path, clock) -> None:
    await fill(log_directory, 3)
    async with ReadonlyWal.open(log_directory, clock=clock) as log:
        waiting = [asyncio.create_task(log.wait_limit(9)) for _ in range(2)]
        await clock.wait_for_sleepers()
        await asyncio.to_thread(shutil.rmtree, log_directory)
        clock.advance(1)
        for task in waiting:
            with pytest.raises(LogNotFoundError):
                await task
        assert not log.is_polling
        again = asyncio.create_task(log.wait_limit(9))
        await clock.wait_for_sleepers()
        clock.advance(1)
        with pytest.raises(LogNotFoundError):
            await again
        with pytest.raises(LogNotFoundError):
            await log.refresh()


async def test_another_log_in_its_place(log_directory: Path, clock) -> None:
    await fill(log_directory, 3)
    async with ReadonlyWal.open(log_directory, clock=clock) as log:
        waiting = asyncio.create_task(log.wait_limit(9))
        await clock.wait_for_sleepers()
        await asyncio.to_thread(shutil.rmtree, log_directory)
        await fill(log_directory, 20)
        clock.advance(1)
        with pytest.raises(CorruptionError, match="another log"):
            await waiting
        for call in (log.wait_limit(2), log.refresh(), log.offset_at(0), log.read(1, 2, 1)):
            with pytest.raises(CorruptionError, match="another log"):
                await call


@pytest.mark.parametrize("way", ["waiting", "looking"])
async def test_a_log_that_lost_durable_records(
    log_directory: Path, tmp_path: Path, way: str
) -> None:
    """Somebody put an older copy in place, and a writer went on there."""
    await fill(log_directory, 3)
    old = await asyncio.to_thread(copy_log, log_directory, tmp_path / "old")
    await fill(log_directory, 5)
    async with ReadonlyWal.open(log_directory) as log:
        assert log.limit == 9

        def put_back() -> None:
            for path in old.iterdir():
                put(log_directory / path.name, path.read_bytes())
                with (log_directory / path.name).open("r+b") as file:
                    file.truncate(path.stat().st_size)

        await asyncio.to_thread(put_back)
        assert log.limit == 9, "limits never go back"
        async with Wal.open(log_directory, settings=SMALL):
            pass
        async with Wal.open(log_directory, settings=SMALL) as wal:
            await wal.append(b"4")
            if way == "looking":
                cell = log_directory / CELL_FILE_NAME
                await asyncio.to_thread(shutil.copy, cell, tmp_path / "cell")
                await asyncio.to_thread((tmp_path / "cell").replace, cell)
                log._watch.observe = lambda: None  # type: ignore[method-assign]
            with pytest.raises(CorruptionError, match="had been durable"):
                await (log.wait_limit(20) if way == "waiting" else log.refresh())
            assert log.limit == 9


async def test_closing_ends_those_who_wait(log_directory: Path, clock) -> None:
    await fill(log_directory, 3)
    log = await ReadonlyWal.open(log_directory, clock=clock)
    reader = log.reader()
    reading = asyncio.create_task(anext(log.reader("latest")))
    await clock.wait_for_sleepers()
    await log.aclose()
    with pytest.raises(WalClosedError):
        await reading
    for call in (anext(reader), log.refresh(), log.wait_limit(2), log.offset_at(0)):
        with pytest.raises(WalClosedError):
            await call
    assert log.limit == 4
    gc.collect()


async def test_closing_during_a_look(log_directory: Path, faulty: FaultyFileSystem) -> None:
    await fill(log_directory, 3)
    log = await ReadonlyWal.open(log_directory, fs=faulty)
    with faulty.hold("list") as hold:
        looking = asyncio.create_task(log.refresh())
        await hold.wait_entered()
        closing = asyncio.create_task(log.aclose())
        await turns()
    await closing
    with pytest.raises(WalClosedError):
        await looking


async def test_an_open_that_is_cancelled_leaves_nothing(log_directory: Path, faulty) -> None:
    await fill(log_directory, 3)
    with faulty.hold("list") as hold:
        opening = asyncio.create_task(_open(log_directory, faulty))
        await hold.wait_entered()
        opening.cancel()
        await turns()
    with pytest.raises(asyncio.CancelledError):
        await opening


async def _open(directory: Path, fs: FaultyFileSystem) -> ReadonlyWal:
    return await ReadonlyWal.open(directory, fs=fs)


async def test_a_defect_leaves_nobody_waiting(log_directory: Path) -> None:
    class BrokenClock(ManualClock):
        async def sleep(self, seconds: float) -> None:
            raise ZeroDivisionError

    await fill(log_directory, 3)
    async with ReadonlyWal.open(log_directory, clock=BrokenClock()) as log:
        with pytest.raises(StorageUnavailableError, match="cannot be followed") as found:
            await log.wait_limit(9)
        assert isinstance(found.value.__cause__, ZeroDivisionError)


async def test_indexes_are_kept_within_bounds(log_directory: Path, monkeypatch) -> None:
    monkeypatch.setattr(log_files_module, "INDEX_BYTES", 300)
    await fill(log_directory, 900)
    assert len(segments(log_directory)) > 10
    async with ReadonlyWal.open(log_directory) as log:
        for _ in range(2):
            for start in range(1, 900, 60):
                assert numbers([await anext(log.reader(start))]) == [start - 1]
                assert log._files.index_bytes <= 300
        kept = [s for s in log._files._segments.values() if s.index is not None]
        assert 1 < len(kept) <= 5
