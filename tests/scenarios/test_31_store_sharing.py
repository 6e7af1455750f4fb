"""A store's logs share threads, budgets and descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.local import UnsyncedFileSystem, copy_log, open_descriptors, read_values
from tests.scenarios.stores import SEGMENT
from tests.waiting import until
from walstore import (
    DiskFullError,
    OutcomeUnknownError,
    Settings,
    StorageUnavailableError,
    StoreSettings,
    Wal,
    WalClosedError,
    WalError,
    WalStore,
    WouldBlock,
)
from walstore.core.files.posix import PosixFileSystem
from walstore.core.settings import KIB, MIB
from walstore.testing import FaultyFileSystem, ManualClock, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

# -- parking -----------------------------------------------------------------------------------


async def test_logs_beyond_the_limit_are_parked_and_go_on(scratch: Path) -> None:
    few = StoreSettings(max_open_logs=3, writer_threads=2)
    async with WalStore.open(scratch, store_settings=few) as store:
        logs = [await store.wal(str(n)) for n in range(20)]
        for turn in range(3):
            for n, wal in enumerate(logs):
                assert await wal.append(b"%d" % n) == turn + 1
            assert store.statistics().logs_with_files <= 3
            assert len([p for p in open_descriptors(scratch) if p.endswith(".wal")]) <= 3
        sizes = [path.stat().st_size for path in scratch.glob("*/*.wal")]
        assert sorted(sizes)[-4] < 4 * KIB  # parked logs hold no reserved space
        for n, wal in enumerate(logs):
            assert await read_values(wal) == [b"%d" % n] * 3
            await wal.rotate()
        for wal in logs:
            assert await wal.append(b"last") == 4
    async with WalStore.open(scratch, store_settings=few) as store:
        for n in range(20):
            assert await read_values(await store.wal(str(n))) == [b"%d" % n] * 3 + [b"last"]


async def test_parked_logs_survive_a_crash(scratch: Path, tmp_path: Path) -> None:
    few = StoreSettings(max_open_logs=1)
    async with WalStore.open(scratch, store_settings=few) as store:
        for turn in range(3):
            for n in range(5):
                await (await store.wal(str(n))).append(b"%d" % turn)
        await asyncio.to_thread(copy_log, scratch, tmp_path / "crashed")
    async with WalStore.open(tmp_path / "crashed") as store:
        for n in range(5):
            assert await read_values(await store.wal(str(n))) == [b"0", b"1", b"2"]


@pytest.mark.slow
async def test_parked_logs_survive_a_power_loss(scratch: Path, tmp_path: Path) -> None:
    (scratch / "store").mkdir()
    power = PowerLossFileSystem(scratch / "store", PosixFileSystem())
    few = StoreSettings(max_open_logs=1)
    store = await WalStore.open(scratch / "store", store_settings=few, fs=power)
    acknowledged: dict[str, list[bytes]] = {str(n): [] for n in range(4)}
    for turn in range(4):
        for name, values in acknowledged.items():
            value = b"%d" % turn
            await (await store.wal(name)).append(value)
            values.append(value)
    first = first_seed("parked logs")
    for seed in (LOSE_ALL, KEEP_ALL, *range(first, first + 4)):
        await asyncio.to_thread(power.crash, seed, tmp_path / f"crashed {seed}")
        async with WalStore.open(tmp_path / f"crashed {seed}") as crashed:
            for name, values in acknowledged.items():
                assert await read_values(await crashed.wal(name)) == values
    with pytest.raises(StorageUnavailableError):
        await store.aclose()  # there is no power left to close with


async def test_a_parked_log_whose_file_was_cut_fails_instead_of_leaving_a_hole(
    scratch: Path,
) -> None:
    few = StoreSettings(max_open_logs=1)
    async with WalStore.open(scratch, store_settings=few) as store:
        victim = await store.wal("victim")
        await victim.append(b"1")
        await (await store.wal("other")).append(b"1")
        (path,) = (scratch / "victim").glob("*.wal")
        await asyncio.to_thread(os.truncate, path, path.stat().st_size - 10)
        with pytest.raises(StorageUnavailableError) as found:
            await victim.append(b"2")
        assert found.value.outcome == "not_written"
        await (await store.wal("other")).append(b"2")
        with pytest.raises(WalClosedError):
            await store.close_log("victim")


async def test_no_descriptors_left_fails_the_log_that_needs_one_only(scratch: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    few = StoreSettings(max_open_logs=1)
    async with WalStore.open(scratch, store_settings=few, fs=faulty) as store:
        a, b = await store.wal("a"), await store.wal("b")
        faulty.fail("open", name="*.wal", error=errno.EMFILE)
        with pytest.raises(StorageUnavailableError) as found:
            await a.append(b"1")
        assert found.value.outcome == "not_written"
        faulty.heal()
        assert await b.append(b"1") == 1
        assert await (await store.wal("a")).append(b"1") == 1


async def test_unsynced_records_are_synced_before_their_log_is_parked(scratch: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    settings = Settings(durability="memory", sync="os")
    few = StoreSettings(max_open_logs=1)
    async with WalStore.open(scratch, settings=settings, store_settings=few, fs=faulty) as store:
        lazy, other = await store.wal("lazy"), await store.wal("other")
        await lazy.append(b"1")
        await until(lambda: lazy.statistics().commits == 1)
        before = faulty.count("datasync", name=SEGMENT)
        await other.append(b"1")
        await until(lambda: other.statistics().commits == 1)
        assert faulty.count("datasync", name=SEGMENT) == before + 1
        await lazy.flush()
        assert lazy.durable_limit == 2
        await lazy.append(b"2")
        await until(lambda: lazy.statistics().commits == 2)
        faulty.fail("datasync", name=SEGMENT, error=errno.EIO)
        await other.append(b"2")
        await until(lambda: other.statistics().commits == 2)
        faulty.heal()
        with pytest.raises(OutcomeUnknownError):
            await lazy.flush()  # the sync that failed while it was parked is not forgotten
        await store.wal("lazy")


# -- budgets -----------------------------------------------------------------------------------


async def test_the_caches_of_all_logs_keep_within_one_budget(scratch: Path) -> None:
    tight = StoreSettings(cache_bytes=64 * KIB)
    async with WalStore.open(scratch, store_settings=tight) as store:
        for n in range(10):
            wal = await store.wal(str(n))
            for _ in range(5):
                await wal.append(bytes(4 * KIB))
            assert store.statistics().cache_bytes <= 64 * KIB
        assert (await store.wal("0")).statistics().cache_bytes == 0
        assert (await store.wal("9")).statistics().cache_bytes > 20 * KIB
        held = (await store.wal("9")).statistics().cache_bytes
        total = store.statistics().cache_bytes
        await store.close_log("9")
        assert store.statistics().cache_bytes == total - held
        assert len(await read_values(await store.wal("0"))) == 5


async def test_appends_wait_for_their_share_and_in_turn(scratch: Path) -> None:
    faulty = FaultyFileSystem(UnsyncedFileSystem())
    tight = StoreSettings(channel_bytes=1 * MIB, writer_threads=1)
    async with WalStore.open(scratch, store_settings=tight, fs=faulty) as store:
        flood, other = await store.wal("flood"), await store.wal("other")
        order: list[str] = []

        async def append(wal: Wal, name: str) -> None:
            await wal.append(bytes(256 * KIB))
            order.append(name)

        with faulty.hold("pwrite", name=SEGMENT) as held:
            async with asyncio.TaskGroup() as group:
                for _ in range(40):
                    group.create_task(append(flood, "flood"))
                await held.wait_entered()
                with pytest.raises(WouldBlock):
                    other.append_nowait(bytes(256 * KIB))
                group.create_task(append(other, "other"))
                await until(lambda: store.statistics().waiting_logs == 2)
                held.release()
        assert order.index("other") < 20
        assert store.statistics().channel_bytes == 0
        assert store.statistics().waiting_logs == 0


async def test_a_group_larger_than_the_shared_budget_goes_through(scratch: Path) -> None:
    tight = StoreSettings(channel_bytes=1 * MIB)
    fs = UnsyncedFileSystem()
    async with WalStore.open(scratch, store_settings=tight, fs=fs) as store:
        logs = [await store.wal(str(n)) for n in range(3)]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for wal in logs:
                for _ in range(3):
                    group.create_task(wal.append_many([bytes(700 * KIB)] * 3))
                    group.create_task(wal.append(bytes(10)))
        for wal in logs:
            assert wal.durable_limit == 13
        assert store.statistics().channel_bytes == 0


async def test_a_cancelled_wait_for_room_lets_the_others_go_on(scratch: Path) -> None:
    faulty = FaultyFileSystem(UnsyncedFileSystem())
    tight = StoreSettings(channel_bytes=1 * MIB)
    async with WalStore.open(scratch, store_settings=tight, fs=faulty) as store:
        a, b, c = [await store.wal(name) for name in "abc"]
        with faulty.hold("pwrite", name=SEGMENT) as held:
            first = asyncio.create_task(a.append(bytes(600 * KIB)))
            await held.wait_entered()
            second = asyncio.create_task(b.append(bytes(600 * KIB)))
            third = asyncio.create_task(c.append(bytes(100 * KIB)))
            await until(lambda: store.statistics().waiting_logs == 2)
            second.cancel()
            await until(lambda: store.statistics().waiting_logs == 0)  # c fits
            assert c.tail == 2
            held.release()
        await asyncio.gather(first, third)
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (b.tail, store.statistics().channel_bytes) == (1, 0)


async def test_a_log_that_fails_gives_its_share_back(scratch: Path) -> None:
    faulty = FaultyFileSystem(UnsyncedFileSystem())
    tight = StoreSettings(channel_bytes=1 * MIB)
    async with WalStore.open(scratch, store_settings=tight, fs=faulty) as store:
        bad, good = await store.wal("bad"), await store.wal("good")
        with faulty.hold("pwrite", name=SEGMENT) as held:
            failing = [asyncio.create_task(bad.append(bytes(300 * KIB))) for _ in range(5)]
            await held.wait_entered()
            waiting = asyncio.create_task(good.append(bytes(900 * KIB)))
            await until(lambda: store.statistics().waiting_logs == 2)
            faulty.fail("pwrite", name=SEGMENT, error=errno.EIO)
            held.release()
            for result in await asyncio.gather(*failing, return_exceptions=True):
                assert isinstance(result, WalError)
            faulty.heal()
        await asyncio.gather(waiting, return_exceptions=True)
        assert store.statistics().channel_bytes == 0
        await store.wal("bad")


async def test_one_watch_looks_after_the_space_for_all_logs(scratch: Path) -> None:
    faulty, clock = FaultyFileSystem(UnsyncedFileSystem()), ManualClock()
    settings = Settings(min_free_bytes=1 * MIB, segment_bytes=64 * KIB)
    async with WalStore.open(scratch, settings=settings, fs=faulty, clock=clock) as store:
        logs = [await store.wal(str(n)) for n in range(5)]
        faulty.limit_space(1 * MIB + 200 * KIB)
        with pytest.raises(DiskFullError) as found:
            for _ in range(100):
                await logs[0].append(bytes(50 * KIB))
        assert (found.value.outcome, found.value.retriable) == ("not_written", True)
        for wal in [*logs, await store.wal("opened later")]:
            with pytest.raises(DiskFullError):
                wal.append_nowait(b"x")
        faulty.heal()
        await clock.wait_for_sleepers()
        clock.advance(1)
        await until(lambda: not store._disk_watch.refusal)
        for wal in logs:
            await wal.append(b"x")
        assert clock.sleepers == 0


# -- many --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_hundreds_of_idle_logs(scratch: Path) -> None:
    await _many_idle_logs(scratch, 500)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_thousands_of_idle_logs(scratch: Path) -> None:
    await _many_idle_logs(scratch, some(10_000))


async def _many_idle_logs(scratch: Path, count: int) -> None:
    few = StoreSettings(max_open_logs=50)
    async with WalStore.open(scratch, store_settings=few, fs=UnsyncedFileSystem()) as store:
        names = iter(range(count))

        async def open_some() -> None:
            for n in names:
                await (await store.wal(f"log/{n}")).append(b"%d" % n)

        async with asyncio.TaskGroup() as group:
            for _ in range(16):
                group.create_task(open_some())
        assert store.statistics().open_logs == count
        assert len(open_descriptors(scratch)) <= 2 * (50 + 8) + 1
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        assert loop._scheduled == []  # type: ignore[attr-defined]  # no timers
        assert len(loop._ready) <= 1  # type: ignore[attr-defined]  # nobody wants to run
        wal = await store.wal(f"log/{count // 2}")
        assert await wal.append(b"again") == 2
    assert open_descriptors(scratch) == []
