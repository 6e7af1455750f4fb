"""A directory that somebody made for a log, just before the power fails."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from tests.local import SMALL, contents
from walstore import Wal, WalStore
from walstore.core.files.posix import PosixFileSystem
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import LOSE_ALL


@pytest.fixture
def power(tmp_path: Path) -> PowerLossFileSystem:
    (tmp_path / "disk").mkdir()
    return PowerLossFileSystem(tmp_path / "disk", PosixFileSystem())


async def test_its_entry_is_durable_before_the_first_record_is(
    tmp_path: Path, power: PowerLossFileSystem
) -> None:
    place = tmp_path / "disk" / "log"
    await asyncio.to_thread(power.make_unsynced_directory, place)
    wal = await Wal.open(place, settings=SMALL, fs=power)
    await wal.append(b"1")
    await asyncio.to_thread(power.crash, LOSE_ALL, tmp_path / "after")
    with pytest.raises(Exception, match="Input/output"):
        await wal.aclose()
    assert [record.value for record in await contents(tmp_path / "after" / "log")] == [b"1"]


async def test_that_of_a_store_too(tmp_path: Path, power: PowerLossFileSystem) -> None:
    place = tmp_path / "disk" / "store"
    await asyncio.to_thread(power.make_unsynced_directory, place)
    async with WalStore.open(place, settings=SMALL, fs=power) as store:
        await asyncio.to_thread(power.make_unsynced_directory, place / "a")
        await (await store.wal("a")).append(b"1")
        await (await store.wal("b")).append(b"2")
    await asyncio.to_thread(power.crash, LOSE_ALL, tmp_path / "after")
    async with WalStore.open(tmp_path / "after" / "store") as store:
        assert await store.logs() == ["a", "b"]
    assert [record.value for record in await contents(tmp_path / "after" / "store" / "a")] == [b"1"]


def test_it_is_lost_without(tmp_path: Path, power: PowerLossFileSystem) -> None:
    """What the tests above rely on."""
    place = tmp_path / "disk" / "log"
    power.make_unsynced_directory(place)
    file = power.open(place / "file", "x")
    file.datasync()
    file.close()
    power.sync_directory(place)
    power.crash(LOSE_ALL, tmp_path / "lost")
    assert not (tmp_path / "lost" / "log").exists()


async def test_a_directory_above_that_may_not_be_read_is_no_obstacle(tmp_path: Path) -> None:
    """A mounted volume, as a rule."""
    faulty = FaultyFileSystem(PosixFileSystem())
    for error in (errno.EACCES, errno.EPERM):
        faulty.fail("sync_directory", error, name="..")
        (tmp_path / "log").mkdir()
        async with Wal.open(tmp_path / "log", settings=SMALL, fs=faulty) as wal:
            await wal.append(b"1")
        await asyncio.to_thread(shutil.rmtree, tmp_path / "log")


async def test_an_entry_that_cannot_be_made_durable_fails_the_opening(tmp_path: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    (tmp_path / "log").mkdir()
    faulty.fail("sync_directory", name="..")
    with pytest.raises(Exception, match="Input/output"):
        await Wal.open(tmp_path / "log", settings=SMALL, fs=faulty)
    assert list((tmp_path / "log").glob("*.wal")) == []  # the next opening does it
    async with Wal.open(tmp_path / "log", settings=SMALL) as wal:
        await wal.append(b"1")
