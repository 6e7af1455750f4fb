"""A restore that stops anywhere leaves no log that is not whole, and the same call finishes it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cloud import copy_store, put_fragment, state_of, tier
from tests.interrupted import Interrupted, finish
from tests.local import SMALL, UnsyncedFileSystem, disk_state, read_all, segments
from tests.scenarios.test_44_restore import again
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import Fault, fail, happen_then_kill, kill, timeout
from walstore import Wal
from walstore.core.files.directory import list_segments
from walstore.core.files.posix import PosixFileSystem
from walstore.errors import (
    CorruptionError,
    DiskFullError,
    LogNotFoundError,
    StorageUnavailableError,
    WalError,
)
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.calls import Call
from walstore.testing.power import KEEP_ALL, LOSE_ALL

pytestmark = pytest.mark.slow

CONTENT = [b"%d-" % number + bytes(9000) for number in range(24)]
"""Enough for four segments."""
FAULTS: dict[str, dict[str, Any]] = {
    "one-error": {"error": errno.EIO},
    "done-and-reported-failed": {"happened": True},
    "half-written": {"error": errno.ENOSPC, "written_bytes": 100},
    "full-for-good": {"error": errno.ENOSPC, "times": None},
    "dead-disk": {"error": errno.EIO, "times": None},
}


class Killed(BaseException):
    """The process is dead: this call and every further one of the file system end like this."""


@pytest.fixture
async def store() -> MemoryStore:
    """Twelve fragments of two records, the last one not named by the manifest yet."""
    store = MemoryStore()
    manifest = Manifest.initial("w")
    for number in range(12):
        content = CONTENT[2 * number : 2 * number + 2]
        entry = await put_fragment(store, number + 1, 2 * number + 1, content)
        if number < 11:
            manifest = manifest.apply_fragments([entry], "w")
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())
    return store


States = set[tuple[bytes, bytes]]
"""What directories and stores held that were checked; what several calls leave alike is checked once."""


@pytest.fixture(scope="module")
def seen() -> States:
    return set()


async def is_log(path: Path) -> bool:
    """Return whether a directory would be taken for a log, if only by a reader."""
    try:
        return bool(await asyncio.to_thread(list_segments, PosixFileSystem(), path))
    except (LogNotFoundError, CorruptionError):
        return False


async def check_whole(path: Path, store: MemoryStore) -> None:
    """Assert that a directory holds the whole log, and goes on shipping it."""
    async with Wal.open(path, settings=SMALL, tier=tier(store)) as wal:
        assert [record.value for record in await read_all(wal)] == CONTENT
        assert wal.uploaded_limit == wal.tail == len(CONTENT) + 1


async def check_finishes(path: Path, store: MemoryStore, seen: States) -> None:
    """Assert that a directory holds no log, and that the same call makes it one; or all of the log."""
    left = disk_state(path), await state_of(store)
    if left in seen:
        return
    seen.add(left)
    if not await is_log(path):
        await again(store, path, fs=UnsyncedFileSystem())
    await check_whole(path, store)


@pytest.mark.parametrize("fault", [kill, happen_then_kill])
async def test_killed_at_every_call_of_the_store(
    scratch: Path, store: MemoryStore, seen: States, fault: type[Fault]
) -> None:
    for nth in count(1):
        fresh = await copy_store(store)
        killed = FaultyStore(fresh)
        killed.on("any", fault(), nth=nth)
        path = scratch / f"log{nth}"
        try:
            await again(killed, path)
        except BaseException:  # noqa: BLE001 - a process that dies sees nothing of it
            assert killed.is_killed
            assert not await is_log(path)
        await check_finishes(path, fresh, seen)
        if killed.requests < nth:
            break
    assert nth > 15


async def test_killed_at_every_call_of_the_file_system(
    scratch: Path, store: MemoryStore, seen: States
) -> None:
    for nth in count(1):
        fresh = await copy_store(store)
        fs = FaultyFileSystem(UnsyncedFileSystem())
        fs.before_each(_dies_at(fs, nth))
        path = scratch / f"log{nth}"
        with contextlib.suppress(Killed):
            await again(fresh, path, fs=fs)
        await check_finishes(path, fresh, seen)
        if len(fs.calls) < nth:
            break
    assert nth > 40


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_call_of_the_file_system_fails(
    scratch: Path, store: MemoryStore, seen: States, fault: str
) -> None:
    """The error is one of ours, and what it leaves is no log, or all of it."""
    for nth in count(1):
        fresh = await copy_store(store)
        fs = FaultyFileSystem(UnsyncedFileSystem())
        fs.fail("*", nth=nth, **FAULTS[fault])
        path = scratch / f"log{nth}"
        with contextlib.suppress(WalError):
            await again(fresh, path, fs=fs)
        await check_finishes(path, fresh, seen)
        if len(fs.calls) < nth:
            break
    assert nth > 40


async def test_the_power_goes_at_every_call(
    scratch: Path, store: MemoryStore, seen: States
) -> None:
    """What is left on the disk is no log, or all of it."""
    for nth in count(1):
        fresh = await copy_store(store)
        root = scratch / str(nth)
        root.mkdir()
        power = PowerLossFileSystem(root, UnsyncedFileSystem())
        fs = FaultyFileSystem(power)
        fs.before_each(lambda _, fs=fs, power=power, nth=nth: fs.count("*") >= nth and power.cut())
        with contextlib.suppress(WalError):
            await again(fresh, root / "log", fs=fs)
        for seed in (LOSE_ALL, KEEP_ALL, 2 * nth):
            crashed = scratch / f"{nth}-{seed}"
            await asyncio.to_thread(power.crash, seed, crashed)
            await check_finishes(crashed / "log", await copy_store(fresh), seen)
        if len(fs.calls) < nth:
            break
    assert nth > 40


async def test_what_was_restored_is_not_fetched_again(tmp_path: Path, store: MemoryStore) -> None:
    """A store that fails half-way: whole segments stay, and the next call goes on behind them."""
    faulty = FaultyStore(store)
    faulty.on("get_range", fail(timeout()), key_prefix=layout.fragment_path(9))
    with pytest.raises(StorageUnavailableError):
        await again(faulty, tmp_path / "new", concurrency=1)
    assert not await is_log(tmp_path / "new")
    kept = segments(tmp_path / "new")
    assert len(kept) > 1
    done = await again(store, tmp_path / "new")
    assert 8 < done.resumed_at < 19
    assert done.fragments < 12
    assert (done.limit, done.segments) == (25, len(segments(tmp_path / "new")))
    await check_whole(tmp_path / "new", store)


async def test_another_restore_begins_anew(tmp_path: Path, store: MemoryStore) -> None:
    """What an interrupted restore of something else left is not mixed in, nor is its identity."""
    faulty = FaultyStore(store)
    faulty.on("get_range", fail(timeout()), key_prefix=layout.fragment_path(9))
    with pytest.raises(StorageUnavailableError):
        await again(faulty, tmp_path / "new", concurrency=1)
    copy = await again(store, tmp_path / "new", stop=23)
    assert (copy.resumed_at, copy.owns_prefix) == (1, False)
    whole = await again(store, tmp_path / "whole")
    assert copy.log_id != whole.log_id


async def test_an_interrupted_copy_keeps_its_identity(tmp_path: Path, store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    faulty.on("get_range", fail(timeout()), key_prefix=layout.fragment_path(9))
    with pytest.raises(StorageUnavailableError):
        await again(faulty, tmp_path / "new", concurrency=1, stop=23)
    done = await again(store, tmp_path / "new", stop=23)
    assert done.resumed_at > 1
    async with Wal.open(tmp_path / "new", settings=SMALL) as wal:
        assert [record.value for record in await read_all(wal)] == CONTENT[:22]


async def test_a_damaged_segment_of_an_interrupted_restore(
    tmp_path: Path, store: MemoryStore
) -> None:
    faulty = FaultyStore(store)
    faulty.on("get_range", fail(timeout()), key_prefix=layout.fragment_path(9))
    with pytest.raises(StorageUnavailableError):
        await again(faulty, tmp_path / "new", concurrency=1)
    first = segments(tmp_path / "new")[0]
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(bytes(data))
    done = await again(store, tmp_path / "new")
    assert done.resumed_at == 1
    await check_whole(tmp_path / "new", store)


async def test_a_full_disk(tmp_path: Path, store: MemoryStore) -> None:
    fs = FaultyFileSystem(PosixFileSystem())
    fs.limit_space(100_000)
    with pytest.raises(DiskFullError, match="no space left"):
        await again(store, tmp_path / "new", fs=fs)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["LOCK"]
    fs.heal()
    await again(store, tmp_path / "new", fs=fs)
    await check_whole(tmp_path / "new", store)


@pytest.mark.parametrize("late", [False, True], ids=["at-once", "late"])
async def test_cancelled_at_every_suspension(
    scratch: Path, store: MemoryStore, seen: States, late: bool
) -> None:
    for nth in count(1):
        fresh = await copy_store(store)
        path = scratch / f"log{nth}"
        call = Interrupted(again(fresh, path, fs=UnsyncedFileSystem()), nth, late=late)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(finish(call))
            await asyncio.wait([task])
        await check_finishes(path, fresh, seen)
        if call.is_over:
            break
    assert nth > 20


def _dies_at(fs: FaultyFileSystem, nth: int) -> Callable[[Call], None]:
    def hook(_call: Call) -> None:
        if len(fs.calls) >= nth:
            raise Killed

    return hook
