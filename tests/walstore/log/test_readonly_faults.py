"""ReadonlyWal where something goes wrong: damage, deleted files, a directory that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.local import SMALL, copy_log, drop_before, segments, turns
from tests.walstore.following import drain, fill, numbers, put
from walstore import (
    CorruptionError,
    LogNotFoundError,
    OffsetTrimmedError,
    StorageUnavailableError,
    Wal,
    WalClosedError,
)
from walstore.core.files import log_files as log_files_module
from walstore.core.format.checkpoint import CELL_FILE_NAME
from walstore.log.readonly import ReadonlyWal
from walstore.testing import FaultyFileSystem, ManualClock


async def test_removed_records_are_trimmed_and_never_a_gap(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for at in range(200):
            await wal.append(b"%d" % at + bytes(1000), durability="memory")
        await wal.flush()
        async with ReadonlyWal.open(log_directory) as log:
            reader = log.follow()
            slow = log.follow()
            slow._read_bytes = 4096
            await anext(slow)
            assert numbers([await anext(reader) for _ in range(150)]) == list(range(150))
            head = await drop_before(wal, 120)
            assert 1 < head <= 120
            assert (log.head, log.follow().position) == (head, head)
            assert numbers([await anext(reader) for _ in range(50)]) == list(range(150, 200))
            with pytest.raises(OffsetTrimmedError) as found:
                while True:
                    record = await anext(slow)
                    assert record.offset == slow.position - 1
            assert found.value.head == head
            assert found.value.requested <= head
            slow.seek(found.value.head)
            assert (await anext(slow)).offset == head


async def test_the_way_out_of_a_trim_needs_no_cell(log_directory: Path) -> None:
    """A log that was opened without a cell learns of a trim from the files, and where they end with it."""
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append_many([bytes(1000)] * 60)
    (log_directory / CELL_FILE_NAME).unlink()
    async with ReadonlyWal.open(log_directory) as log:
        reader = log.follow()
        async with Wal.open(log_directory, settings=SMALL) as wal:
            for _ in range(20):
                await wal.append_many([bytes(1000)] * 60)
            head = await wal.trim(before=1000)
            with pytest.raises(OffsetTrimmedError) as found:
                await anext(reader)
            assert found.value.head <= head <= found.value.tail == wal.tail
            reader.seek(log.head)
            assert (await anext(reader)).offset == log.head >= found.value.head


async def test_a_file_removed_during_the_read_is_trimmed(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for at in range(200):
            await wal.append(b"%d" % at + bytes(1000), durability="memory")
        await wal.flush()
        async with ReadonlyWal.open(log_directory, fs=faulty) as log:
            hold = faulty.hold("open", name="*.wal")
            reading = asyncio.create_task(anext(log.follow()))
            await hold.wait_entered()
            head = await drop_before(wal, 120)
            hold.release()
            with pytest.raises(OffsetTrimmedError) as found:
                await reading
            assert (found.value.requested, found.value.head) == (1, head)
            assert numbers([await anext(log.follow())]) == [head - 1]


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
        reader = log.follow()
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
        for path in await asyncio.to_thread(os.listdir, log_directory):
            if path != "LOCK":
                await asyncio.to_thread(os.unlink, log_directory / path)
        await fill(log_directory, 20)
        clock.advance(1)
        with pytest.raises(CorruptionError, match="another log"):
            await waiting
        for call in (log.wait_limit(2), log.refresh(), log.offset_at(0), log.read(1, 2, 1)):
            with pytest.raises(CorruptionError, match="another log"):
                await call


async def test_another_directory_in_its_place_is_not_read(log_directory: Path, clock) -> None:
    await fill(log_directory, 3)
    async with ReadonlyWal.open(log_directory, clock=clock) as log:
        waiting = asyncio.create_task(log.wait_limit(9))
        await clock.wait_for_sleepers()
        await asyncio.to_thread(shutil.rmtree, log_directory)
        await fill(log_directory, 20)
        clock.advance(1)
        with pytest.raises(LogNotFoundError):
            await waiting
        for call in (log.refresh(), log.offset_at(0), log.read(1, 2, 1), log.registers()):
            with pytest.raises(LogNotFoundError):
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
    reader = log.follow()
    reading = asyncio.create_task(anext(log.follow("latest")))
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
                assert numbers([await anext(log.follow(start))]) == [start - 1]
                assert log._files.index_bytes <= 300
        kept = [s for s in log._files._segments.values() if s.index is not None]
        assert 1 < len(kept) <= 5


async def test_a_large_transaction_is_seen_though_the_next_segment_could_not_be_made(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """It is durable and acknowledged; then the log fails, with nobody left to say so."""
    settings = replace(SMALL, transaction_memory_bytes=4096)
    async with contextlib.AsyncExitStack() as stack:
        wal = await Wal.open(log_directory, settings=settings, fs=faulty)
        stack.push_async_callback(close_failed, wal)
        await wal.append(b"before")
        async with wal.transaction(update={"owner": "b"}) as transaction:
            for at in range(20):
                await transaction.append(b"%d" % at + bytes(1000))
            faulty.fail("open", errno.ENOSPC, name="next.tmp")
        assert transaction.span == range(2, 22)
        async with ReadonlyWal.open(log_directory) as log:
            assert (log.tail, dict(await log.registers())) == (22, {"owner": "b"})
            assert len((await log.follow(2).fetch(max_records=100)).values) == 20
    async with Wal.open(log_directory) as wal:
        assert (wal.tail, dict(wal.registers)) == (22, {"owner": "b"})


async def close_failed(wal: Wal) -> None:
    with pytest.raises(WalClosedError):
        await wal.aclose()
