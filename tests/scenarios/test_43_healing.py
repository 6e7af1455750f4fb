"""A damaged local file whose records are in the tier: readers take the tier's copy at once and go on."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cloud import SMALL, cloud_values, copy_store, tier, values
from uploader.stores.memory import MemoryStore
from uploader.stores.wrapper import Request
from uploader.testing import FaultyStore
from uploader.testing.faults import timeout
from walstore import Settings, Wal
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format import segment
from walstore.errors import CorruptionError, StorageUnavailableError, WalError
from walstore.testing import FaultyFileSystem

SETTINGS = Settings(segment_bytes=64 << 10, batch_bytes=4096, cache_bytes=0)
VALUES = values(400)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


def in_value(path: Path) -> None:
    flip(path, path.read_bytes().index(VALUES[200]) + 3)


def in_batch_header(path: Path) -> None:
    flip(path, path.read_bytes().rindex(b"WBF1", 0, path.stat().st_size // 2) + 20)


def in_segment_header(path: Path) -> None:
    flip(path, 20)


def in_footer(path: Path) -> None:
    flip(path, path.read_bytes().rindex(segment.FOOTER_MAGIC) + 30)


def in_seal(path: Path) -> None:
    flip(path, path.stat().st_size - 12)


def cut_in_half(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def empty(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(0)


DAMAGES: list[Callable[[Path], object]] = [
    in_value,
    in_batch_header,
    in_segment_header,
    in_footer,
    in_seal,
    cut_in_half,
    empty,
    Path.unlink,
]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemoryStore]:
    """A closed log of 400 records in some segments and where it was shipped to, all of it."""
    path, store = tmp_path_factory.mktemp("pristine") / "log", MemoryStore()

    async def make() -> None:
        async with Wal.open(path, settings=SETTINGS, tier=tier(store)) as wal:
            for at in range(0, 400, 5):
                await wal.append_many(VALUES[at : at + 5])
                if at == 375:
                    await wal.rotate()

    asyncio.run(make())
    return path, store


@pytest.fixture
async def shipped(pristine: tuple[Path, MemoryStore], log_directory: Path) -> FaultyStore:
    """Where the log in ``log_directory`` was shipped to."""
    path, store = pristine
    shutil.copytree(path, log_directory)
    return FaultyStore(await copy_store(store))


def middle(path: Path) -> Path:
    """Return the file of the segment that holds offset 201."""
    (found,) = (one for one in path.glob("*.wal") if VALUES[200] in one.read_bytes())
    return found


@pytest.mark.parametrize("damage", DAMAGES)
async def test_readers_go_on_through_a_damaged_segment(
    damage: Callable[[Path], object],
    shipped: FaultyStore,
    log_directory: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every record comes once and in order; behind the damage the local files are read again."""
    file = middle(log_directory)
    async with Wal.open(log_directory, settings=SETTINGS, tier=tier(shipped)) as wal:
        before = wal.statistics()
        damage(file)
        with caplog.at_level(logging.ERROR, "walstore"):
            for _ in range(2):
                found = [record async for record in wal.reader(follow=False)]
                assert [one.offset for one in found] == list(range(1, 401))
                assert [one.value for one in found] == VALUES
        now = wal.statistics()
        assert now.healed_reads > before.healed_reads == 0
        assert now.file_reads > before.file_reads + 4
        assert now.errors == {}
        (logged,) = (one for one in caplog.records if str(file) in one.getMessage())
        assert "walstore repair --from-tier" in logged.getMessage()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_times_are_found_in_a_damaged_segment(
    damage: Callable[[Path], object], shipped: FaultyStore, log_directory: Path
) -> None:
    async with Wal.open(log_directory, settings=SETTINGS, tier=tier(shipped)) as wal:
        times = [await wal.timestamp_at(offset) for offset in range(1, 401)]
    async with Wal.open(log_directory, settings=SETTINGS, tier=tier(shipped)) as wal:
        damage(middle(log_directory))
        for offset, time in list(enumerate(times, 1))[::5]:
            assert await wal.offset_at(time) == times.index(time) + 1
            assert await wal.timestamp_at(offset) == time
        assert await wal.offset_at(times[-1] + 1) == 401
        assert wal.statistics().healed_reads > 1


async def test_damage_that_is_not_in_the_tier_is_corruption(
    log_directory: Path,
) -> None:
    """For readers at once; the uploader says that it cannot ship what is damaged, and ships nothing else."""
    never = dataclasses.replace(SMALL, fragment_bytes=1 << 20, fragment_age_seconds=3600.0)
    store = MemoryStore()
    async with Wal.open(log_directory, settings=SETTINGS, tier=tier(store, never)) as wal:
        await wal.append_many(VALUES[:50])
        await wal.wait_durable(50, "cloud")
        await wal.rotate()
        await wal.append_many(VALUES[50:])
        wal._engine.state.cache.clear()
        for file in log_directory.glob("*.wal"):
            if VALUES[200] in file.read_bytes():
                in_value(file)
        found = []
        with pytest.raises(CorruptionError, match="batch is damaged"):
            async for record in wal.reader(follow=False):
                found.append(record.value)
        assert found == VALUES[: len(found)]
        assert len(found) >= 50
        assert wal.statistics().errors.keys() == {"CorruptionError"}  # the shipper may meet it, too
        with pytest.raises(WalError):
            await wal.wait_durable(400, "cloud")
        failure = wal.statistics().tier_failure
    assert failure is not None
    assert "not in the tier, which ends at offset 51" in failure
    assert (await cloud_values(store)) == VALUES[:50]


async def test_a_file_that_cannot_be_read_is_read_from_the_tier(log_directory: Path) -> None:
    """EIO is damage; having no descriptor left is not, and is reported."""
    fs, store = FaultyFileSystem(PosixFileSystem()), MemoryStore()
    async with Wal.open(log_directory, settings=SETTINGS, tier=tier(store), fs=fs) as wal:
        await wal.append_many(VALUES[:100])
        await wal.rotate()
        await wal.wait_durable(100, "cloud")
        fs.fail("pread", error=errno.EIO)
        assert [r.value async for r in wal.reader(follow=False)] == VALUES[:100]
        assert wal.statistics().healed_reads == 1
        fs.fail("open", error=errno.EMFILE)
        with pytest.raises(StorageUnavailableError):
            [r async for r in wal.reader(follow=False)]
        assert wal.statistics().healed_reads == 1


async def test_damage_with_the_tier_out_of_reach(shipped: FaultyStore, log_directory: Path) -> None:
    """The reader learns that trying again may help, and it does."""
    async with Wal.open(log_directory, settings=SETTINGS, tier=tier(shipped)) as wal:
        middle(log_directory).unlink()
        is_down = True

        async def fault(request: Request[Any]) -> object:
            if is_down:
                raise timeout("not_written")
            return await request()

        shipped.on("any", fault, times=1000)
        found = []
        reader = wal.reader(follow=False)
        with pytest.raises(StorageUnavailableError) as caught:
            async for record in reader:
                found.append(record.value)
        assert caught.value.retriable
        is_down = False
        found += [record.value async for record in reader]
        assert found == VALUES
