"""When what was written is synced: with every write, after a time, or when the system likes to."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.local import SMALL, UnsyncedFileSystem, contents, read_values, turns
from tests.waiting import until
from walstore import OutcomeUnknownError, Wal, WalError
from walstore.core.files.directory import read_cell
from walstore.core.files.posix import PosixFileSystem
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem, ManualClock, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

MEMORY = SMALL.replace(durability="memory")


def syncs(faulty: FaultyFileSystem) -> int:
    return faulty.count("datasync", name="next.tmp")


async def written(wal: Wal, limit: int) -> None:
    """Wait until the writer handed everything below ``limit`` to the system."""
    await until(lambda: wal._channel.written_limit >= limit)
    await turns(50)


async def test_every_batch(log_directory, faulty) -> None:
    async with Wal.open(log_directory, settings=MEMORY, fs=faulty) as wal:
        before = syncs(faulty)
        await wal.append(b"x")
        await until(lambda: wal.durable_limit == 2)
        assert syncs(faulty) == before + 1


async def test_after_a_time(log_directory, faulty, clock: ManualClock) -> None:
    settings = MEMORY.replace(sync=5.0)
    async with Wal.open(log_directory, settings=settings, fs=faulty, clock=clock) as wal:
        assert clock.sleepers == 0, "an idle log has no timer"
        before = syncs(faulty)
        await wal.append(b"1")
        await written(wal, 2)
        await clock.wait_for_sleepers()
        clock.advance(4.9)
        await wal.append(b"2")
        await written(wal, 3)
        assert (syncs(faulty), wal.durable_limit) == (before, 1)
        assert await read_values(wal) == []
        clock.advance(0.2)
        await until(lambda: wal.durable_limit == 3)
        assert syncs(faulty) == before + 1
        assert await read_values(wal) == [b"1", b"2"]
        await turns(50)
        assert clock.sleepers == 0


@pytest.mark.parametrize("sync", [5.0, "os"])
async def test_at_once_for_who_waits_for_the_disk(log_directory, faulty, clock, sync) -> None:
    settings = MEMORY.replace(sync=sync)
    async with Wal.open(log_directory, settings=settings, fs=faulty, clock=clock) as wal:
        await wal.append(b"1")
        await written(wal, 2)
        assert wal.durable_limit == 1
        assert await wal.append(b"2", durability="disk") == 2
        assert wal.durable_limit == 3
        await wal.append(b"3")
        await written(wal, 4)
        await wal.wait_durable(3)
        assert wal.durable_limit == 4
        await wal.append(b"4")
        await wal.flush()
        assert wal.durable_limit == 5
        async with wal.transaction(update={"a": "1"}, durability="disk"):
            pass
        assert wal.registers == {"a": "1"}
        clock.advance(5)
        await turns(50)
        assert clock.sleepers == 0, "everything is synced, so nothing is waited for"


async def test_left_to_the_system_readers_see_what_is_written(log_directory, faulty) -> None:
    async with Wal.open(log_directory, settings=MEMORY.replace(sync="os"), fs=faulty) as wal:
        before = syncs(faulty)
        reader = wal.follow()
        for n in range(20):
            await wal.append(b"%d" % n)
            assert (await anext(reader)).value == b"%d" % n
        assert (syncs(faulty), wal.durable_limit) == (before, 1)
        cell = await asyncio.to_thread(read_cell, PosixFileSystem(), log_directory)
        assert cell is not None
        assert (cell.durable_limit, cell.visible_limit) == (1, 21)
    assert len(await contents(log_directory)) == 20


@pytest.mark.parametrize("sync", [5.0, "os"])
async def test_rotation_and_close_sync(log_directory, faulty, clock, sync) -> None:
    settings = MEMORY.replace(sync=sync)
    async with Wal.open(log_directory, settings=settings, fs=faulty, clock=clock) as wal:
        await wal.append(b"1")
        await wal.rotate()
        assert wal.durable_limit == 2
        for _ in range(20):
            await wal.append(bytes(10 * KIB))
        await until(lambda: wal.durable_limit > 10)
        await wal.append(b"last")
    assert len(await contents(log_directory)) == 22


@pytest.mark.parametrize("sync", [5.0, "os"])
@pytest.mark.parametrize("seed", [LOSE_ALL, KEEP_ALL, 2, 3, 4, 5])
async def test_a_power_cut_takes_back_only_what_nobody_waited_for(tmp_path, sync, seed) -> None:
    root = tmp_path / "root"
    root.mkdir()
    power = PowerLossFileSystem(root, UnsyncedFileSystem())
    settings = MEMORY.replace(sync=sync)
    wal = await Wal.open(root / "log", settings=settings, fs=power, clock=ManualClock())
    for n in range(1, 41):
        await wal.append(b"%d" % n * 200, durability="disk" if n % 10 == 0 else "memory")
    for n in range(41, 46):
        await wal.append(b"%d" % n * 200)
    await written(wal, 46)
    power.cut()
    with pytest.raises(WalError):
        await wal.append(b"x", durability="disk")
    with pytest.raises(WalError):
        await wal.aclose()
    await asyncio.to_thread(power.crash, seed, tmp_path / "crashed")
    found = [record.value for record in await contents(tmp_path / "crashed/log")]
    assert len(found) >= 40
    assert found[:45] == [b"%d" % n * 200 for n in range(1, min(len(found), 45) + 1)]


async def test_what_was_written_before_a_failure_is_not_called_unwritten(
    log_directory, faulty, clock
) -> None:
    """It may have reached the disk; only what the failed write was about certainly did not."""
    settings = MEMORY.replace(sync=5.0)
    wal = await Wal.open(log_directory, settings=settings, fs=faulty, clock=clock)
    await wal.append(b"written")
    await written(wal, 2)
    faulty.fail("pwrite", error=errno.EIO, times=None)
    with faulty.hold("pwrite") as hold:
        await wal.append(b"unwritten")
        await hold.wait_entered()
        waiting = [asyncio.create_task(wal.wait_durable(offset)) for offset in (1, 2)]
        await turns()
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(errors[0], OutcomeUnknownError)
    assert errors[1].outcome == "not_written"
    faulty.heal()
    with pytest.raises(WalError):
        await wal.aclose()
    assert [record.value for record in await contents(log_directory)] == [b"written"]


async def test_linger_gathers_more_into_one_write(log_directory, faulty) -> None:
    async with Wal.open(log_directory, settings=SMALL.replace(linger_seconds=10), fs=faulty) as wal:
        before = faulty.count("pwrite")
        waiting = [asyncio.create_task(wal.append(b"x" * 100))]
        for _ in range(29):
            await turns(20)
            waiting.append(asyncio.create_task(wal.append(b"x" * 100)))
        await turns(50)
        assert faulty.count("pwrite") == before
        waiting.append(asyncio.create_task(wal.append(b"x" * 2000)))  # now the batch is full
        await asyncio.gather(*waiting[:30])
        assert faulty.count("pwrite") == before + 1
        closing = asyncio.create_task(wal.aclose())
        async with asyncio.timeout(60):
            await closing  # which does not linger
        assert await waiting[30] == 31


async def test_linger_ends_after_its_time(log_directory) -> None:
    async with Wal.open(log_directory, settings=SMALL.replace(linger_seconds=0.01)) as wal:
        async with asyncio.timeout(60):
            assert await wal.append(b"x") == 1
        async with asyncio.timeout(60):
            wal.append_nowait(b"y")
            await wal.rotate()
        assert wal.durable_limit == 3


async def test_compressed_batches_are_smaller_and_read_alike(tmp_path: Path) -> None:
    values = [b'{"name": "value", "number": %d}' % n for n in range(2000)]
    sizes = {}
    for codec in (None, "zstd"):
        path = tmp_path / str(codec)
        async with Wal.open(path, settings=SMALL.replace(compression=codec)) as wal:
            await wal.append_many(values, key=b"key", stream="eu", headers={"h": b"1"})
            await wal.append(b"\x00")
            wal._state.cache.clear()
            assert await read_values(wal) == [*values, b"\x00"]
        found = await contents(path)
        assert [record.value for record in found] == [*values, b"\x00"]
        assert found[7][2:5] == (b"key", "eu", {"h": b"1"})
        sizes[codec] = sum(p.stat().st_size for p in path.glob("*.wal"))
    assert sizes["zstd"] * 4 < sizes[None]
