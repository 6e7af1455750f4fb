"""A log stays in its directory: whatever becomes of the working directory, of the path, of the directory."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.cloud import URL, tier
from tests.local import (
    SMALL,
    check_contiguous,
    contents,
    open_descriptors,
    read_all,
    segments,
    stored_batches,
)
from uploader import restore
from uploader.stores import MemoryStore
from walstore import (
    LogNotFoundError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalStore,
)
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.care.verify.verifying import verify_directory
from walstore.core.files.log_files import LogSnapshot
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import FileSystem
from walstore.log.readonly import ReadonlyWal
from walstore.store.store_settings import StoreSettings
from walstore.testing import Call, FaultyFileSystem

GROUP = [bytes([number]) * 3000 for number in range(30)]
"""More than a segment."""


def bytes_of(directory: Path) -> dict[str, bytes]:
    """Return all there is below a directory."""
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


async def run(call: Callable[[], object]) -> None:
    await asyncio.to_thread(call)


async def use_all(wal: Wal) -> None:
    """Do everything that makes, renames or deletes files."""
    await wal.append_many(GROUP)
    await wal.rotate()
    cursor = await wal.cursor("c")
    await cursor.commit(wal.tail)
    async with wal.transaction() as transaction:
        for _ in range(4):
            for value in GROUP:
                await transaction.append(value)
    await wal.append_many(GROUP)
    await wal.trim(20)
    assert wal.head == 20
    check_contiguous(await read_all(wal), 20)


async def make_neighbour(path: Path) -> dict[str, bytes]:
    async with Wal.open(path, settings=SMALL) as wal:
        await wal.append(b"another log")
    return bytes_of(path)


async def test_the_working_directory_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("home", "away"):
        (tmp_path / name).mkdir()
    neighbour = await make_neighbour(tmp_path / "away" / "log")
    monkeypatch.chdir(tmp_path / "home")
    async with Wal.open("log", settings=SMALL) as wal:
        monkeypatch.chdir(tmp_path / "away")
        assert wal.path == tmp_path / "home" / "log"
        await use_all(wal)
        monkeypatch.chdir("/")
        await use_all(wal)
    assert bytes_of(tmp_path / "away" / "log") == neighbour
    check_contiguous(await contents(tmp_path / "home" / "log"), 20)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_log_that_is_moved_goes_on_in_its_directory(tmp_path: Path, replaced: bool) -> None:
    place, moved = tmp_path / "log", tmp_path / "moved"
    async with Wal.open(place, settings=SMALL) as wal:
        await wal.append(b"first")
        await run(lambda: place.rename(moved))
        neighbour = await make_neighbour(place) if replaced else {}
        await use_all(wal)
        tail = wal.tail
    assert bytes_of(place) == neighbour
    assert open_descriptors(tmp_path) == []
    found = await contents(moved)
    check_contiguous(found, 20)
    assert found[-1].offset == tail - 1
    async with Wal.open(moved, settings=SMALL) as wal:
        assert (await wal.cursor("c")).position == 32


async def test_two_writers_at_one_path_do_not_meet(tmp_path: Path) -> None:
    place, moved = tmp_path / "log", tmp_path / "moved"
    async with Wal.open(place, settings=SMALL) as first:
        await run(lambda: place.rename(moved))
        async with Wal.open(place, settings=SMALL) as second:
            for number in range(40):
                await asyncio.gather(
                    first.append(b"first" + bytes(3000)), second.append(b"second" + bytes(3000))
                )
                if number % 9 == 0:
                    await asyncio.gather(first.rotate(), second.rotate())
    for path, name in ((moved, b"first"), (place, b"second")):
        found = await contents(path)
        check_contiguous(found)
        assert len(found) == 40
        assert all(record.value.startswith(name) for record in found)


async def test_the_file_systems_object_may_be_shared(tmp_path: Path, faulty) -> None:
    """A log that was moved, and the next one at its path, through one object."""
    place, moved = tmp_path / "log", tmp_path / "moved"
    async with Wal.open(place, settings=SMALL, fs=faulty) as first:
        await run(lambda: place.rename(moved))
        async with Wal.open(place, settings=SMALL, fs=faulty) as second:
            await use_all(second)
            await use_all(first)
    for path in (moved, place):
        check_contiguous(await contents(path), 20)


async def test_a_log_that_is_moved_by_way_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    async with Wal.open(tmp_path / "link" / "log", settings=SMALL) as wal:
        await run((tmp_path / "link").unlink)
        await use_all(wal)
    check_contiguous(await contents(tmp_path / "disk" / "log"), 20)


CALLS: dict[str, Callable[[Wal], Awaitable[object]]] = {
    "append": lambda wal: wal.append(b"lost"),
    "rotate": Wal.rotate,
    "append of a segment": lambda wal: wal.append_many(GROUP),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_directory_that_is_removed_fails_the_log(tmp_path: Path, call: str) -> None:
    """What is written to files without a name is not durable, and is not said to be."""
    place = tmp_path / "log"
    wal = await Wal.open(place, settings=SMALL)
    await wal.append(b"first")
    await run(lambda: shutil.rmtree(place))
    neighbour = await make_neighbour(place)
    with pytest.raises((StorageUnavailableError, OutcomeUnknownError, WalClosedError)) as caught:
        await CALLS[call](wal)
    assert caught.value.outcome in ("not_written", "unknown")
    with pytest.raises(WalClosedError):
        await wal.append(b"later")
    with pytest.raises(WalClosedError):
        await wal.aclose()
    assert bytes_of(place) == neighbour
    assert open_descriptors(tmp_path) == []


async def test_a_directory_that_is_removed_while_nothing_is_written(tmp_path: Path) -> None:
    place = tmp_path / "log"
    wal = await Wal.open(place, settings=SMALL)
    await wal.append(b"first")
    await run(lambda: shutil.rmtree(place))
    with pytest.raises(StorageUnavailableError):
        await wal.aclose()
    assert not place.exists()
    assert open_descriptors(tmp_path) == []


# -- readers of other processes ----------------------------------------------------------------


async def test_a_reader_follows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, moved = tmp_path / "log", tmp_path / "moved"
    monkeypatch.chdir(tmp_path)
    async with Wal.open(place, settings=SMALL) as wal:
        await wal.append(b"first")
        async with ReadonlyWal.open("log") as log:
            monkeypatch.chdir("/")
            await run(lambda: place.rename(moved))
            await make_neighbour(place)
            await use_all(wal)
            await log.wait_limit(wal.tail)
            assert (log.head, log.limit) == (20, wal.tail)
            async with log.reader(follow=False) as reader:
                check_contiguous([record async for record in reader], 20)
            cursor = await log.cursor("reader")
            await cursor.commit(30)
            await log.refresh()
            await run(lambda: shutil.rmtree(moved))
            with pytest.raises(LogNotFoundError):
                await log.refresh()
            with pytest.raises((LogNotFoundError, OffsetTrimmedError)):
                await log.read(20, 21, 1)
    assert not (place / "cursors" / "reader").exists()


# -- stores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_open", [1, 256])
async def test_a_store_that_is_moved_goes_on(tmp_path: Path, most_open: int) -> None:
    """Also with logs that are parked: their files are opened again below the store's directory."""
    place, moved = tmp_path / "store", tmp_path / "moved"
    shared = StoreSettings(max_open_logs=most_open)
    async with WalStore.open(place, settings=SMALL, store_settings=shared) as store:
        logs = [await store.wal(name) for name in "abc"]
        for wal in logs:
            await wal.append(b"first")
        await run(lambda: place.rename(moved))
        async with WalStore.open(place, settings=SMALL) as other:
            for name in "abcd":
                await (await other.wal(name)).append(b"of the other store")
        neighbour = bytes_of(place)
        for wal in logs:
            await use_all(wal)
        await (await store.wal("d")).append(b"made later")
        await store.delete("c")
        assert await store.logs() == ["a", "b", "d"]
    assert bytes_of(place) == neighbour
    async with WalStore.open(moved, settings=SMALL) as store:
        assert await store.logs() == ["a", "b", "d"]
        for name in "ab":
            check_contiguous(await read_all(await store.wal(name)), 20)
    assert open_descriptors(tmp_path) == []


async def test_a_log_that_is_moved_within_a_store_fails_clean(tmp_path: Path) -> None:
    """A store holds one directory open, not thousands: another log at the path is known as such."""
    place = tmp_path / "store"
    async with WalStore.open(place, settings=SMALL) as store:
        wal = await store.wal("a")
        await wal.append(b"first")
        before = len(open_descriptors(tmp_path))
        await store.wal("b")
        assert len(open_descriptors(tmp_path)) <= before + 2
        await run(lambda: (place / "a").rename(tmp_path / "moved"))
        neighbour = await make_neighbour(tmp_path / "foreign")
        await run(lambda: (tmp_path / "foreign").rename(place / "a"))
        with pytest.raises(StorageUnavailableError, match="moved") as caught:
            await wal.append_many(GROUP)
        assert caught.value.outcome == "not_written"
        assert bytes_of(place / "a") == neighbour
        with pytest.raises(WalClosedError):
            await wal.aclose()
    assert [record.value for record in await contents(tmp_path / "moved")] == [b"first"]


async def test_ten_logs_of_a_store_take_one_directory(tmp_path: Path) -> None:
    shared = StoreSettings(max_open_logs=1)
    async with WalStore.open(tmp_path, settings=SMALL, store_settings=shared) as store:
        for number in range(10):
            await (await store.wal(f"log {number}")).append(b"x")
        held = os.listdir("/proc/self/fd")
        targets = [Path("/proc/self/fd", name) for name in held]
        found = [str(path.readlink()) for path in targets if path.is_symlink()]
        assert [name for name in found if name == str(tmp_path)] == [str(tmp_path)]
        assert len(open_descriptors(tmp_path)) <= 3  # the lock, and the files of one log


# -- repair ------------------------------------------------------------------------------------


async def test_a_repair_stays_in_its_directory(tmp_path: Path) -> None:
    place, moved = tmp_path / "log", tmp_path / "moved"
    async with Wal.open(place, settings=SMALL) as wal:
        for _ in range(3):
            await wal.append_many(GROUP)
    damaged = segments(place)[1]
    data = bytearray(damaged.read_bytes())
    data[2000] ^= 1
    damaged.write_bytes(data)
    neighbour = await make_neighbour(tmp_path / "other")
    faulty = FaultyFileSystem(PosixFileSystem())

    def move(call: Call) -> None:
        if call.kind == "lock":
            faulty.before_each(None)
            place.rename(moved)
            (tmp_path / "other").rename(place)

    plan = await asyncio.to_thread(plan_repair, place, keep="before")
    faulty.before_each(move)
    await run(lambda: apply_repair(plan, fs=faulty))
    assert bytes_of(place) == neighbour
    check_contiguous(await contents(moved))


# -- looking at a log, and making one ------------------------------------------------------------


def moving_at(nth: int, place: Path, other: Path) -> FaultyFileSystem:
    """Return a file system whose ``nth`` call finds another directory at the place, since it was moved."""
    faulty = FaultyFileSystem(PosixFileSystem())
    calls = itertools.count(1)

    def move(_: Call) -> None:
        if next(calls) == nth:
            place.rename(place.with_name("moved"))
            other.rename(place)

    faulty.before_each(move)
    return faulty


async def two_logs(tmp_path: Path) -> tuple[Path, Path]:
    """Make a log of three segments, and another one with segments of the same names."""
    for name, count in (("log", 3), ("other", 2)):
        async with Wal.open(tmp_path / name, settings=SMALL) as wal:
            for _ in range(count):
                await wal.append_many(GROUP)
    return tmp_path / "log", tmp_path / "other"


@pytest.mark.parametrize("look", ["verify", "view"])
async def test_what_is_looked_at_is_one_directory(tmp_path: Path, look: str) -> None:
    """Wherever it is moved meanwhile: all that is found is of one log or of the other."""

    def verified(path: Path, fs: FileSystem) -> object:
        report = verify_directory(path, fs=fs)
        assert report.problems == ()
        return report.log_id, report.records

    def viewed(path: Path, fs: FileSystem) -> object:
        view = LogSnapshot.open(path, fs=fs)
        try:
            records = sum(len(batch.values) for batch in stored_batches(view))
            return view.log_id, records
        finally:
            view.close()

    act = {"verify": verified, "view": viewed}[look]
    place, other = await two_logs(tmp_path)
    whole = [await asyncio.to_thread(act, path, PosixFileSystem()) for path in (place, other)]
    seen = []
    for nth in range(1, 200):
        seen.append(await asyncio.to_thread(act, place, moving_at(nth, place, other)))
        if other.exists():  # it made fewer calls
            break
        place.rename(other)
        place.with_name("moved").rename(place)
    assert len(seen) > 10
    assert seen == [whole[1]] + [whole[0]] * (len(seen) - 1)
    assert open_descriptors(tmp_path) == []


async def test_a_restored_log_is_in_one_directory(tmp_path: Path) -> None:
    """What is at its path by then is left alone."""
    place, moved = tmp_path / "log", tmp_path / "moved"
    store = MemoryStore()
    async with Wal.open(tmp_path / "source", tier=tier(store), settings=SMALL) as wal:
        await wal.append_many(GROUP, durability="cloud")
    for kind in ("lock", "replace"):
        neighbour = await make_neighbour(tmp_path / "other")
        faulty = FaultyFileSystem(PosixFileSystem())

        def move(call: Call, kind: str = kind, faulty: FaultyFileSystem = faulty) -> None:
            if call.kind == kind:
                faulty.before_each(None)
                place.rename(moved)
                (tmp_path / "other").rename(place)

        faulty.before_each(move)
        await restore(URL, place, store=store, fs=faulty, settings=SMALL)
        assert bytes_of(place) == neighbour, kind
        assert [record.value for record in await contents(moved)] == GROUP, kind
        assert open_descriptors(tmp_path) == []
        await run(lambda: [shutil.rmtree(path) for path in (place, moved)])
