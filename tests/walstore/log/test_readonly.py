"""ReadonlyWal: follows a log from outside, through all that its writer may do."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import pytest

from tests.local import SMALL, open_descriptors, read_all, segments
from tests.waiting import until
from tests.walstore.following import drain, fill, numbers
from walstore import (
    InvalidSettingsError,
    LogNotFoundError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    Record,
    StorageUnavailableError,
    Wal,
)
from walstore.core.files import log_files as log_files_module
from walstore.core.format.checkpoint import CELL_FILE_NAME
from walstore.core.read.reader import Reader
from walstore.log.readonly import ReadonlyWal
from walstore.records import from_timestamp_us
from walstore.testing import FaultyFileSystem, ManualClock

# -- opening and looking -----------------------------------------------------------------------


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


@pytest.mark.slow
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
            await anext(log.follow(6))
        with pytest.raises(OffsetTrimmedError):
            await anext(log.follow(0))
        for offset, error in ((0, OffsetTrimmedError), (4, OffsetNotWrittenError)):
            with pytest.raises(error):
                await log.timestamp_at(offset)


# -- following ---------------------------------------------------------------------------------


async def test_it_follows_through_rotations_and_restarts(log_directory: Path) -> None:
    expected: list[int] = []
    log = reader = None
    for life in range(1, 4):
        async with Wal.open(log_directory, settings=SMALL) as wal:
            log = log or await ReadonlyWal.open(log_directory)
            reader = reader or log.follow()
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
            assert log.epoch == wal.epoch == life
    assert log is not None
    assert log.limit == len(expected) + 1
    assert numbers(await drain(log)) == expected
    await log.aclose()


async def test_visible_is_durable(log_directory: Path, faulty: FaultyFileSystem) -> None:
    """A record is there the moment its sync has returned, and not before."""
    async with Wal.open(log_directory, fs=faulty) as wal, ReadonlyWal.open(log_directory) as log:
        reading = asyncio.create_task(anext(log.follow("latest")))
        with faulty.hold("datasync") as hold:
            offset = wal.append_nowait(b"value")
            await hold.wait_entered()
            assert segments(log_directory)[-1].stat().st_size > 64, "it is written"
            await log.refresh()
            assert (log.limit, log.tail) == (offset, offset + 1)
            assert await drain(log) == []
            assert not reading.done()
        assert (await reading).offset == offset


@pytest.mark.slow
async def test_what_syncing_is_left_to_the_system_for_is_seen_once_written(
    log_directory: Path,
) -> None:
    async with (
        Wal.open(log_directory, settings=SMALL.replace(sync="os")) as wal,
        ReadonlyWal.open(log_directory) as log,
    ):
        reader = log.follow()
        for at in range(200):
            await wal.append(b"%d" % at + bytes(500), durability="memory")
            assert numbers([await anext(reader)]) == [at]


async def test_large_transactions_come_whole(log_directory: Path) -> None:
    settings = SMALL.replace(transaction_memory_bytes=4096)
    async with (
        Wal.open(log_directory, settings=settings) as wal,
        ReadonlyWal.open(log_directory) as log,
    ):
        reader = log.follow()
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


@pytest.mark.slow
async def test_changes_without_records_are_passed_over(log_directory: Path) -> None:
    """Registers and streams make frames and segments that hold no record."""
    async with Wal.open(log_directory, settings=SMALL) as wal:
        async with ReadonlyWal.open(log_directory) as log:
            reader = log.follow()
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
        reader = log.follow("latest")
        reading = asyncio.create_task(anext(reader))
        await until(lambda: log.is_polling)
        await wal.append(b"50")
        assert numbers([await reading]) == [50]


async def test_who_waits_reads_on_where_the_cell_said(log_directory: Path, faulty) -> None:
    """Nobody scans the active segment for its end."""
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append_many([bytes(100)] * 200)
        async with ReadonlyWal.open(log_directory, fs=faulty) as log:
            await anext(log.follow())  # reads the segment's header, once
            reader = log.follow("latest")
            for _ in range(10):
                reading = asyncio.create_task(anext(reader))
                await until(lambda: log.is_polling)
                calls = len(faulty.calls)
                await wal.append(b"v")
                await reading
                reads = [call for call in faulty.calls[calls:] if call.kind == "pread"]
                assert len(reads) == 1
                assert reads[0].position > 20_000
                assert reads[0].size_bytes < 200, "and nobody reads what is reserved behind it"


async def test_several_readers_at_once(log_directory: Path) -> None:
    await fill(log_directory, 7)
    async with Wal.open(log_directory, settings=SMALL) as wal:
        async with ReadonlyWal.open(log_directory) as log, asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(_take(log.follow(start), 300)) for start in range(1, 9)]
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
        files._note(50, log_files_module.BatchPlace(sealed.start, 777))
        assert numbers([await anext(log.follow(50))]) == [49]
        assert last.index is not None
        last.index.positions.append(1001)
        last.index.starts.append(last.start)
        last.index.timestamps_us.append(1)
        assert numbers([await anext(log.follow(last.start + 1))]) == [last.start]
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
        reading = asyncio.create_task(anext(log.follow(moment)))
        await until(lambda: log.is_polling)
        await wal.append(b"too early")
        await wal.append_many([b"early, too"] * 3)
        clock.advance(3600)
        await wal.append(b"now")
        await wal.append(b"later")
        assert (await reading).value == b"now"
