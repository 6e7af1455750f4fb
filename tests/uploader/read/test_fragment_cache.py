"""Fragments kept on local disk."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.cloud import FAST, URL
from tests.uploader.cloud_streams import put_log
from tests.uploader.parquet import copy_as_wal3
from tests.waiting import until
from uploader import CloudLog, CloudTier
from uploader.read.fragment_cache import SUFFIX, FragmentCache
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from walstore.core.files.posix import PosixFileSystem
from walstore.errors import InvalidSettingsError, OffsetTrimmedError
from walstore.testing import ManualClock

TRAILER_BYTES = 8


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "a" / "cache"


@pytest.fixture
def cache(directory: Path, clock: ManualClock) -> FragmentCache:
    """Room for ten fragments of 92 bytes."""
    return FragmentCache(directory, max_bytes=1000, clock=clock)


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.exists() else []


def kept(directory: Path) -> int:
    """Count the fragments under their final names: a writer's temporary file is not one."""
    return sum(path.suffix == SUFFIX for path in files(directory))


def used(directory: Path) -> int:
    return sum(path.stat().st_size for path in files(directory))


async def test_what_is_put_comes_back(cache, directory) -> None:
    assert await cache.get("k") is None
    assert not directory.exists()
    await cache.put("k", b"content")
    assert await cache.get("k") == b"content"
    assert await cache.get("other") is None
    assert (cache.hits, cache.misses) == (1, 2)
    (path,) = files(directory)
    assert path.name.endswith(SUFFIX)
    assert path.stat().st_size == 7 + TRAILER_BYTES


async def test_it_survives_the_process(cache, directory, clock) -> None:
    await cache.put("k", b"content")
    assert await FragmentCache(directory, clock=clock).get("k") == b"content"


@pytest.mark.parametrize(
    "spoil",
    [lambda d: d[:-1], lambda d: b"", lambda d: d[1:], lambda d: b"x" + d[1:], lambda d: d + b"x"],
)
async def test_damaged_files_are_removed(cache, directory, spoil) -> None:
    await cache.put("k", b"content")
    (path,) = files(directory)
    path.write_bytes(spoil(path.read_bytes()))
    assert await cache.get("k") is None
    assert files(directory) == []
    await cache.put("k", b"content")
    assert await cache.get("k") == b"content"


async def test_what_was_not_used_for_longest_goes(cache, directory, clock) -> None:
    for number in range(10):
        await cache.put(str(number), bytes(92))
        clock.advance(1)
    assert used(directory) == 1000
    assert await cache.get("0") is not None
    clock.advance(1)
    await cache.put("10", bytes(92))
    assert used(directory) <= 1000
    kept = [number for number in range(11) if await cache.get(str(number))]
    assert kept == [0, *range(2, 11)]


async def test_what_is_larger_than_all_is_not_kept(cache, directory) -> None:
    await cache.put("k", bytes(993))
    assert await cache.get("k") is None
    await cache.put("k", bytes(992))
    assert await cache.get("k") == bytes(992)


async def test_nothing_is_kept_without_room(directory, clock) -> None:
    cache = FragmentCache(directory, max_bytes=0, clock=clock)
    await cache.put("k", b"")
    assert not directory.exists()
    with pytest.raises(InvalidSettingsError):
        FragmentCache(directory, max_bytes=-1)


@pytest.mark.slow
async def test_several_processes_share_it(cache, directory, clock) -> None:
    """Each may exceed the budget by an eighth before it looks what the others did."""
    other = FragmentCache(directory, max_bytes=1000, clock=clock)
    for number in range(200):
        await (cache, other)[number % 2].put(str(number), bytes(number % 50))
        clock.advance(1)
        assert used(directory) <= 1000 + 2 * (125 + 58)
    assert await cache.get("199") == bytes(49)
    assert await cache.get("198") == bytes(48)
    assert await other.get("198") == bytes(48)


async def test_files_that_vanish(cache, directory, monkeypatch) -> None:
    """Another process removes what this one is about to look at."""
    for number in range(10):
        await cache.put(str(number), bytes(92))
    real = os.scandir

    def scan(path):
        found = list(real(path))
        for entry in found[:5]:
            os.unlink(entry)
        return _Scan(found)

    monkeypatch.setattr("uploader.read.fragment_cache.os.scandir", scan)
    await cache.put("k", bytes(92))
    assert len(files(directory)) == 6


class _Scan(list):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


async def test_the_directory_may_be_deleted_at_any_time(cache, directory) -> None:
    await cache.put("k", b"content")
    shutil.rmtree(directory)
    assert await cache.get("k") is None
    await cache.put("k", b"content")
    assert await cache.get("k") == b"content"


async def test_left_overs_of_dead_processes(cache, directory, clock) -> None:
    directory.mkdir(parents=True)
    (directory / f"x{SUFFIX}.0123.tmp").write_bytes(b"half")
    (directory / "readme").write_bytes(b"whose?")
    clock.advance(3600 * 24 * 365 * 60)  # files have the machine's time
    await cache.put("k", b"content")
    assert [path.name for path in files(directory) if path.suffix != SUFFIX] == ["readme"]


class FullDisk(PosixFileSystem):
    """Has no room for new names while ``is_full``."""

    is_full = True

    def replace(self, source: Path, target: Path) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        super().replace(source, target)


async def test_a_full_disk_makes_it_useless_and_nothing_worse(directory, clock, caplog) -> None:
    disk = FullDisk()
    cache = FragmentCache(directory, clock=clock, fs=disk)
    for _ in range(3):
        await cache.put("k", b"content")
    assert await cache.get("k") is None
    assert files(directory) == []
    assert len(caplog.records) == 1  # said once
    disk.is_full = False
    await cache.put("k", b"content")
    assert await cache.get("k") == b"content"


async def test_a_directory_that_cannot_be_made(tmp_path, clock, caplog) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = FragmentCache(tmp_path / "file" / "cache", clock=clock)
    await cache.put("k", b"content")
    assert await cache.get("k") is None


async def test_few_wait_for_a_slow_disk(cache, directory) -> None:
    await asyncio.gather(*(cache.put(str(number), bytes(10)) for number in range(20)))
    assert len(files(directory)) == 4
    await cache.put("later", bytes(10))
    assert len(files(directory)) == 5


async def test_dropped(cache) -> None:
    await cache.put("k", b"content")
    await cache.drop("k")
    await cache.drop("k")
    assert await cache.get("k") is None


# -- in use -----------------------------------------------------------------------------------


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


def open_log(store: FaultyStore, directory: Path, **options):
    return CloudLog.open(
        URL, store=FaultyStore(store), disk_cache=FragmentCache(directory), cache_bytes=0, **options
    )


async def read_all(log: CloudLog) -> list[int]:
    return [record.offset async for record in log.reader(stop=log.limit)]


async def test_a_log_that_was_read_before_asks_for_the_manifest_only(store, directory) -> None:
    await put_log(store.inner, 4, lambda _: None)
    for count in (5, 1, 1):
        before = store.requests
        async with open_log(store, directory) as log:
            assert await read_all(log) == list(range(1, 41))
            await until(lambda: kept(directory) == 4)
        assert store.requests - before == count


async def test_a_damaged_copy_is_fetched_again(store, directory) -> None:
    """Also one whose checksum fits: what is inside is checked as if it came from the store."""
    await put_log(store.inner, 1, lambda _: None)
    async with open_log(store, directory) as log:
        await read_all(log)
        await until(lambda: kept(directory) == 1)
        entry = log.manifest.fragments[0]
        disk = log._fragments._disk
        await disk.put(log._fragments._disk_key(entry), bytes(entry.num_bytes))
        before = store.requests
        assert await read_all(log) == list(range(1, 11))
        assert store.requests == before + 1


@pytest.mark.parametrize("is_longer", [False, True])
async def test_a_fragment_of_another_length_is_kept_too(store, directory, is_longer) -> None:
    manifest = await put_log(store.inner, 1, lambda _: None)
    await copy_as_wal3(store.inner, manifest, is_longer=is_longer)
    for count in (3 if is_longer else 2, 1):
        before = store.requests
        async with open_log(store, directory) as log:
            assert await read_all(log) == list(range(1, 11))
            await until(lambda: kept(directory) == 1)
        assert store.requests - before == count


async def test_another_log_of_the_same_name_is_another_log(store, directory) -> None:
    await put_log(store.inner, 1, lambda _: None)
    async with open_log(store, directory) as log:
        await read_all(log)
        await until(lambda: kept(directory) == 1)
    other = FaultyStore(MemoryStore())
    await put_log(other.inner, 1, lambda _: None, value=lambda at: b"other %d" % at)
    async with open_log(other, directory) as log:
        assert [record.value async for record in log.reader(1, stop=2)] == [b"other 1"]


async def test_a_collected_fragment_is_not_read_from_disk(store, directory) -> None:
    """The manifest rules, not what happens to lie here."""
    manifest = await put_log(store.inner, 2, lambda _: None)
    async with open_log(store, directory) as log:
        await read_all(log)
        await until(lambda: kept(directory) == 2)
    left = manifest.fragments[1:]
    collected = type(manifest)(
        setsum=manifest.setsum,
        collected=manifest.fragments[0].setsum,
        acc_bytes=manifest.acc_bytes,
        writer="gc",
        fragments=left,
        initial_offset=11,
        initial_seq_no=2,
    )
    await store.inner.delete(["manifest/MANIFEST"])
    await store.inner.put_if_absent("manifest/MANIFEST", collected.serialise())
    async with open_log(store, directory) as log:
        with pytest.raises(OffsetTrimmedError):
            [record async for record in log.reader(5)]


async def test_a_tier_keeps_its_fragments_there_too(store, directory) -> None:
    """One after the other, so that the disk keeps up."""
    await put_log(store.inner, 4, lambda _: None)
    for requests in (4, 0):
        reading = FaultyStore(store)
        tier = CloudTier(
            URL, store=reading, cache_bytes=0, disk_cache=FragmentCache(directory), retry=FAST
        )
        await tier.open(None)
        for number, position in enumerate(range(1, 41, 10), 1):
            (batch,) = await tier.read(position, tier.limit, 1 << 20)
            assert (batch.start, batch.limit) == (position, position + 10)
            await until(lambda number=number: kept(directory) >= number)
        assert reading.count("get_range").requests == requests
        await tier.aclose()


async def test_how_it_looks(directory) -> None:
    assert repr(FragmentCache(directory)) == f"<FragmentCache {directory}>"
