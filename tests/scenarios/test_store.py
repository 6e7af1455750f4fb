"""A store: many logs in one process, over shared threads, budgets and descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from tests.local import UnsyncedFileSystem, contents, open_descriptors, read_values
from tests.waiting import until
from walstore import (
    DiskFullError,
    InvalidSettingsError,
    LogNotFoundError,
    OutcomeUnknownError,
    Settings,
    StorageUnavailableError,
    StoreSettings,
    Wal,
    WalClosedError,
    WalError,
    WalLockedError,
    WalStore,
    WouldBlock,
)
from walstore.cli.holder import find_holder
from walstore.posix import PosixFileSystem
from walstore.repair.repairing import apply_repair, plan_repair
from walstore.settings import KIB, MIB
from walstore.testing import FaultyFileSystem, ManualClock, PowerLossFileSystem

ROOT = Path(__file__).parents[2]
SEGMENT = "[0n]*"
"""Segment files, by their own names and by the one under which they are made."""

HOLDER = """
import asyncio, sys
from walstore import Wal, WalLockedError, WalStore

async def main():
    kind, path = sys.argv[1:3]
    try:
        if kind == "store":
            async with WalStore.open(path) as store:
                if len(sys.argv) > 3:
                    await (await store.wal(sys.argv[3])).append(b"by the store")
                print("open", flush=True)
                sys.stdin.readline()
        else:
            async with Wal.open(path) as wal:
                await wal.append(b"by itself")
                print("open", flush=True)
                sys.stdin.readline()
    except WalLockedError:
        print("locked", flush=True)

asyncio.run(main())
"""


class Holder:
    """A real process that opens a store or a log and holds it."""

    def __init__(self, kind: str, path: Path, *more: str) -> None:
        self._arguments = [sys.executable, "-c", HOLDER, kind, str(path), *more]
        self.said = b""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        assert self._process.stdout is not None
        self.said = (await self._process.stdout.readline()).strip()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._process.communicate(b"end\n")
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()


# -- logs by name -------------------------------------------------------------------------------


async def test_logs_are_opened_by_name_and_kept(scratch: Path) -> None:
    names = ["orders", "orders/0", "orders/1", "eu-west.orders", "Größe", "LOCK", ".store"]
    async with WalStore.open(scratch / "store") as store:
        assert await store.logs() == []
        for name in names:
            wal = await store.wal(name)
            assert await wal.append(name.encode()) == 1
            assert await store.wal(name) is wal
        assert await store.logs() == sorted(names)
        assert store.statistics().open_logs == len(names)
    async with WalStore.open(scratch / "store") as store:
        assert await store.logs() == sorted(names)
        assert store.statistics().open_logs == 0
        for name in names:
            assert await read_values(await store.wal(name)) == [name.encode()]
    assert sorted(os.listdir(scratch)) == ["store"]  # nothing outside


async def test_all_who_ask_at_once_get_the_same_log(scratch: Path) -> None:
    async with WalStore.open(scratch) as store:
        found = await asyncio.gather(*(store.wal("a") for _ in range(20)))
        assert len(set(map(id, found))) == 1
        assert store.statistics().opened_logs == 1


@pytest.mark.parametrize("name", ["", "..", "../other", "/etc/passwd", "a//b", "a\0"])
async def test_what_is_no_name_is_refused(scratch: Path, name: str) -> None:
    async with WalStore.open(scratch / "store") as store:
        for call in (store.wal, store.close_log, store.delete):
            with pytest.raises(InvalidSettingsError):
                await call(name)
    assert sorted(os.listdir(scratch / "store")) == [".store"]


async def test_a_closed_log_is_opened_anew(scratch: Path) -> None:
    async with WalStore.open(scratch) as store:
        first = await store.wal("a")
        await first.append(b"1")
        await store.close_log("a")
        await store.close_log("a")
        await store.close_log("never opened")
        assert await store.logs() == ["a"]
        with pytest.raises(WalClosedError):
            await first.append(b"x")
        second = await store.wal("a")
        assert second is not first
        await second.append(b"2")
        await second.aclose()
        third = await store.wal("a")
        assert await read_values(third) == [b"1", b"2"]
        assert store.statistics().open_logs == 1


async def test_asking_for_a_log_that_is_closing_waits_for_it(scratch: Path) -> None:
    async with WalStore.open(scratch) as store:
        first = await store.wal("a")
        await first.append(b"1")
        closing = asyncio.create_task(first.aclose())
        await asyncio.sleep(0)
        second = await store.wal("a")
        assert second is not first
        assert await read_values(second) == [b"1"]
        await closing


async def test_a_failed_log_is_opened_again_and_disturbs_no_other(scratch: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    async with WalStore.open(scratch, fs=faulty) as store:
        good, bad = await store.wal("good"), await store.wal("bad")
        await bad.append(b"1")
        faulty.fail("datasync", name=SEGMENT, error=errno.EIO)
        with pytest.raises(OutcomeUnknownError):
            await bad.append(b"lost")
        faulty.heal()
        assert await good.append(b"1") == 1
        again = await store.wal("bad")
        assert again is not bad
        assert (await read_values(again))[:1] == [b"1"]


async def test_closing_tells_of_a_log_that_failed_and_closes_the_others(scratch: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    store = await WalStore.open(scratch, fs=faulty)
    good, bad = await store.wal("good"), await store.wal("bad")
    faulty.fail("datasync", name=SEGMENT, error=errno.EIO)
    with pytest.raises(OutcomeUnknownError):
        await bad.append(b"lost")
    faulty.heal()
    await good.append(b"1")
    with pytest.raises(WalClosedError) as found:
        await store.aclose()
    assert found.value.reason == "failed"
    assert open_descriptors(scratch) == []
    assert [record.value for record in await contents(scratch / "good")] == [b"1"]


async def test_a_closed_store_opens_nothing(scratch: Path) -> None:
    store = await WalStore.open(scratch)
    opening = [asyncio.create_task(store.wal(f"log {n}")) for n in range(20)]
    await asyncio.sleep(0)
    await store.aclose()
    await store.aclose()
    for task in opening:
        if task.exception() is None:
            assert task.result().is_closing
        else:
            assert isinstance(task.exception(), WalClosedError)
    for call in (store.logs, lambda: store.wal("a"), lambda: store.delete("a")):
        with pytest.raises(WalClosedError):
            await call()
    assert open_descriptors(scratch) == []


async def test_cancelling_the_closing_does_not_stop_it(scratch: Path) -> None:
    store = await WalStore.open(scratch)
    for n in range(5):
        await (await store.wal(str(n))).append(b"1")
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await store.aclose()
    assert open_descriptors(scratch) == []


async def test_cancelling_who_opens_leaves_the_log_for_others(scratch: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    async with WalStore.open(scratch, fs=faulty) as store:
        with faulty.hold("cell") as held:
            first = asyncio.create_task(store.wal("a"))
            await held.wait_entered()
            second = asyncio.create_task(store.wal("a"))
            await asyncio.sleep(0)
            first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await (await second).append(b"1") == 1


# -- deleting -----------------------------------------------------------------------------------


async def test_a_deleted_log_is_gone_and_its_name_can_be_used_again(scratch: Path) -> None:
    async with WalStore.open(scratch) as store:
        wal = await store.wal("a/b")
        first_id = wal.log_id
        await wal.append(b"1")
        await (await store.wal("a")).append(b"stays")
        await store.delete("a/b")
        assert await store.logs() == ["a"]
        assert sorted(os.listdir(scratch)) == [".store", "a"]
        with pytest.raises(WalClosedError):
            await wal.append(b"2")
        with pytest.raises(LogNotFoundError):
            await store.delete("a/b")
        again = await store.wal("a/b")
        assert (again.log_id != first_id, again.tail) == (True, 1)


@pytest.mark.parametrize(
    ("kind", "is_gone"),
    [("replace", False), ("sync_directory", None), ("remove_tree", True)],
)
async def test_S3_a_deletion_that_fails_half_way_is_whole(
    scratch: Path, kind: str, is_gone: bool | None
) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    async with WalStore.open(scratch, fs=faulty) as store:
        await (await store.wal("a")).append(b"1")
        await store.close_log("a")
        name = {"replace": ".deleted-*", "sync_directory": scratch.name}.get(kind, ".deleted-*")
        faulty.fail(kind, name=name, error=errno.EIO)
        with pytest.raises(StorageUnavailableError):
            await store.delete("a")
    async with WalStore.open(scratch) as store:
        assert [name for name in os.listdir(scratch) if name.startswith(".deleted")] == []
        if is_gone is not None:
            assert await store.logs() == ([] if is_gone else ["a"])
        if await store.logs():
            assert await read_values(await store.wal("a")) == [b"1"]


async def test_nobody_opens_a_log_while_it_is_deleted(scratch: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    async with WalStore.open(scratch, fs=faulty) as store:
        await (await store.wal("a")).append(b"1")
        with faulty.hold("replace", name=".deleted-*") as held:
            deleting = asyncio.create_task(store.delete("a"))
            await held.wait_entered()
            opening = asyncio.create_task(store.wal("a"))
            deleting.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not deleting.done()
            assert not opening.done()
        with pytest.raises(asyncio.CancelledError):
            await deleting
        assert (await opening).tail == 1


# -- locks --------------------------------------------------------------------------------------


async def test_S1_one_store_at_a_time(scratch: Path) -> None:
    async with WalStore.open(scratch) as store:
        await store.wal("a")
        with pytest.raises(WalLockedError) as found:
            await WalStore.open(scratch)
        assert found.value.owner == f"process {os.getpid()} on {os.uname().nodename}"
        with pytest.raises(WalLockedError, match="store"):
            await Wal.open(scratch / "a")
        with pytest.raises(WalLockedError):
            await Wal.open(scratch / "new")  # also one that is not there yet
    async with Wal.open(scratch / "a"):
        pass


async def test_S1_logs_opened_by_themselves_keep_the_store_closed(scratch: Path) -> None:
    async with WalStore.open(scratch):
        pass
    async with Wal.open(scratch / "a"), Wal.open(scratch / "b"):  # they do not exclude each other
        with pytest.raises(WalLockedError):
            await WalStore.open(scratch)
    async with WalStore.open(scratch) as store:
        assert await store.logs() == ["a", "b"]


async def test_S1_a_log_that_was_open_before_there_was_a_store(scratch: Path) -> None:
    async with Wal.open(scratch / "a") as wal, WalStore.open(scratch) as store:
        with pytest.raises(WalLockedError):
            await store.wal("a")
        with pytest.raises(WalLockedError):
            await store.delete("a")
        assert await wal.append(b"1") == 1
        await wal.aclose()
        assert await read_values(await store.wal("a")) == [b"1"]


async def test_S1_a_link_to_a_log_is_no_way_around(scratch: Path) -> None:
    (scratch / "link").symlink_to(scratch / "store" / "a")
    async with WalStore.open(scratch / "store") as store:
        await store.wal("a")
        with pytest.raises(WalLockedError):
            await Wal.open(scratch / "link")


async def test_S1_a_log_of_an_open_store_is_not_repaired(scratch: Path) -> None:
    async with WalStore.open(scratch) as store:
        await (await store.wal("a")).append(b"1")
        await store.close_log("a")
        (segment,) = (scratch / "a").glob("*.wal")
        os.remove(segment)
        plan = await asyncio.to_thread(plan_repair, scratch / "a")
        assert plan.is_needed
        with pytest.raises(WalLockedError):
            await asyncio.to_thread(apply_repair, plan)
        found = await asyncio.to_thread(find_holder, scratch / "a")
        assert found is not None
        assert found.pid == os.getpid()
    assert await asyncio.to_thread(find_holder, scratch / "a") is None
    await asyncio.to_thread(apply_repair, plan)


async def test_a_log_outside_of_stores_needs_no_store(scratch: Path) -> None:
    async with Wal.open(scratch / "a"), Wal.open(scratch / "a" / "b"):
        assert not (scratch / ".store").exists()


@pytest.mark.slow
async def test_S1_between_processes(scratch: Path) -> None:
    async with Holder("store", scratch, "a") as holder:
        assert holder.said == b"open"
        with pytest.raises(WalLockedError):
            await WalStore.open(scratch)
        with pytest.raises(WalLockedError):
            await Wal.open(scratch / "a")
    async with Holder("log", scratch / "a") as holder:
        assert holder.said == b"open"
        with pytest.raises(WalLockedError):
            await WalStore.open(scratch)
    async with WalStore.open(scratch) as store:
        await store.wal("a")
        async with Holder("store", scratch) as other, Holder("log", scratch / "a") as log:
            assert (other.said, log.said) == (b"locked", b"locked")
    shutil.rmtree(scratch / "a")
    (scratch / ".store").unlink()
    async with Holder("log", scratch / "a") as log, WalStore.open(scratch) as store:
        assert log.said == b"open"
        with pytest.raises(WalLockedError):
            await store.wal("a")
    async with WalStore.open(scratch) as store:
        assert await read_values(await store.wal("a")) == [b"by itself"]


@pytest.mark.slow
@pytest.mark.kill
async def test_S1_the_lock_goes_with_its_process(scratch: Path) -> None:
    holder = Holder("store", scratch, "a")
    await holder.__aenter__()
    holder.kill()
    await holder._process.wait()
    async with WalStore.open(scratch) as store:
        assert await read_values(await store.wal("a")) == [b"by the store"]


# -- parking ------------------------------------------------------------------------------------


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
        await asyncio.to_thread(shutil.copytree, scratch, tmp_path / "crashed")
    async with WalStore.open(tmp_path / "crashed") as store:
        for n in range(5):
            assert await read_values(await store.wal(str(n))) == [b"0", b"1", b"2"]


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
    for seed in range(6):
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


# -- budgets ------------------------------------------------------------------------------------


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
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
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


# -- many ---------------------------------------------------------------------------------------


async def test_hundreds_of_idle_logs(scratch: Path) -> None:
    await _many_idle_logs(scratch, 500)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_ten_thousand_idle_logs(scratch: Path) -> None:
    await _many_idle_logs(scratch, 10_000)


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
