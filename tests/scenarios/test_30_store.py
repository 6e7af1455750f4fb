"""A store: many logs in one process, by name, deleted and locked."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.local import contents, open_descriptors, read_values, turns
from tests.scenarios.stores import SEGMENT, Holder
from walstore import (
    InvalidSettingsError,
    LogNotFoundError,
    OutcomeUnknownError,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalLockedError,
    WalStore,
)
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.cli.holder import find_holder
from walstore.core.files.posix import PosixFileSystem
from walstore.testing import FaultyFileSystem

# -- logs by name ------------------------------------------------------------------------------


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


@pytest.mark.parametrize("after_turns", [1, 2, 9])
async def test_a_closing_that_fails_when_its_caller_is_gone_is_logged(
    scratch: Path, caplog: pytest.LogCaptureFixture, after_turns: int
) -> None:
    """Also if the caller was cancelled before the closing began."""
    faulty = FaultyFileSystem(PosixFileSystem())
    store = await WalStore.open(scratch, fs=faulty)
    await (await store.wal("a")).append(b"1")
    faulty.fail("truncate", name=SEGMENT, error=errno.EIO)
    closing = asyncio.create_task(store.aclose())
    for _ in range(after_turns):
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(StorageUnavailableError, match="Input/output error"):
        await store.aclose()
    (said,) = [record for record in caplog.records if "nobody waited for it" in record.message]
    assert "Input/output error" in said.message


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


# -- deleting ----------------------------------------------------------------------------------


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


# -- locks -------------------------------------------------------------------------------------


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


async def test_S1_the_lock_outlives_what_is_being_written(scratch: Path) -> None:
    """Whatever is cancelled, as often as it takes: the lock is given back when no thread writes."""
    faulty = FaultyFileSystem(PosixFileSystem())
    store = await WalStore.open(scratch, fs=faulty)
    wal = await store.wal("a")
    await wal.append(b"1")
    before = asyncio.all_tasks()
    with faulty.hold("pwrite", name=SEGMENT) as hold:
        wal.append_nowait(b"2")
        await hold.wait_entered()
        closing = asyncio.ensure_future(store.aclose())
        await turns()
        for _ in range(4):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await turns()
        with pytest.raises(WalLockedError):
            await WalStore.open(scratch)
    await asyncio.wait((closing, *(before - {asyncio.current_task()})))
    await until_unlocked(scratch)


@pytest.mark.parametrize("turns_before", range(6))
@pytest.mark.parametrize("times", [1, 3])
async def test_S1_cancelling_everything_as_the_closing_begins_closes_all_the_same(
    scratch: Path, turns_before: int, times: int
) -> None:
    store = await WalStore.open(scratch)
    for n in range(3):
        (await store.wal(str(n))).append_nowait(b"accepted")
    closing = asyncio.ensure_future(store.aclose())
    for _ in range(turns_before):
        await asyncio.sleep(0)
    for _ in range(times):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
    assert turns_before == 0 or closing in tasks or closing.done()
    with contextlib.suppress(asyncio.CancelledError):
        await closing
    if turns_before:
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks)
    else:
        await store.aclose()  # the first one never ran
    assert open_descriptors(scratch) == []
    for n in range(3):
        assert [record.value for record in await contents(scratch / str(n))] == [b"accepted"]


@pytest.mark.parametrize("turns_before", range(1, 6))
def test_S1_a_loop_that_ends_as_the_closing_begins(scratch: Path, turns_before: int) -> None:
    """As after a signal: all tasks are cancelled once, and those that were there are waited for."""

    async def begin() -> None:
        store = await WalStore.open(scratch)
        (await store.wal("a")).append_nowait(b"accepted")
        closing.append(asyncio.ensure_future(store.aclose()))
        for _ in range(turns_before):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)

    closing: list[asyncio.Future[None]] = []
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(begin())
    assert open_descriptors(scratch) == []
    assert [record.value for record in asyncio.run(contents(scratch / "a"))] == [b"accepted"]


@pytest.mark.parametrize("turns_between", range(1, 9))
async def test_S1_a_log_whose_opening_is_cancelled_twice_is_closed_first(
    scratch: Path, turns_between: int
) -> None:
    """The store does not know it yet, and would end the threads that close it."""

    async def use() -> None:
        async with WalStore.open(scratch) as store:
            await store.wal("a")

    await use()
    using = asyncio.ensure_future(use())
    mine = asyncio.current_task()
    name = f"walstore {scratch / 'a'}"
    async with asyncio.timeout(60):
        while not any(task.get_name() == name for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0)
    for _ in range(2):
        for task in asyncio.all_tasks() - {mine}:
            task.cancel()
        for _ in range(turns_between):
            await asyncio.sleep(0)
    with contextlib.suppress(asyncio.CancelledError):
        await using
    while tasks := asyncio.all_tasks() - {mine}:
        await asyncio.wait(tasks)
    assert open_descriptors(scratch) == []


async def until_unlocked(path: Path) -> None:
    """Open and close a store as soon as nobody else has it; TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while True:
            try:
                await (await WalStore.open(path)).aclose()
                return
            except WalLockedError:
                await asyncio.sleep(0)
