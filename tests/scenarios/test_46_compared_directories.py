"""Two directories of one log: what they hold is compared before one of them ships again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from tests.cloud import FAST, cloud_values, snapshot
from tests.two_machines import IDLE, both, claim_in, close, outcome, records, tier
from tests.uploader.logs import collect
from tests.waiting import until
from uploader import ChainSettings
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import Layout
from uploader.layouts.swapped_root import SwappedRoot
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from walstore import ContentionError, FencedError, Wal, WalClosedError
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    CorruptionError,
    StorageUnavailableError,
)


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


OBJECTS_FIRST = ChainSettings(inline_bytes=0)


@both
async def test_a_mistaken_takeover_is_undone(tmp_path, shape) -> None:
    """With leave, the first directory gets the prefix back and ships all that it kept; the second stops."""
    store = MemoryStore()
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    await first.append(b"1", durability="cloud")
    await first.append(b"2")
    second = await Wal.open(tmp_path / "b", tier=tier(store, shape, IDLE))
    await close(first)
    async with Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True)) as wal:
        assert await wal.append(b"3", durability="cloud") == 3
        with pytest.raises(FencedError):
            await second.append(b"too late", durability="cloud")
    assert isinstance(await close(second), WalClosedError)
    assert await cloud_values(store) == [b"1", b"2", b"3"]
    with pytest.raises(FencedError):
        await Wal.open(tmp_path / "b", tier=tier(store, shape))
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)):  # needs no leave again
        assert (await claim_in(store)).epoch == 3


@both
async def test_a_takeover_that_bore_records_is_not_undone(tmp_path, shape) -> None:
    """The first directory lacks what the second one shipped: it is refused, and the second goes on."""
    store = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        await wal.append(b"both")
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        await second.append(b"theirs", durability="cloud")
        with pytest.raises(ContentionError, match="this log ends at 2"):
            await Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True))
        await second.append(b"goes on", durability="cloud")
    assert await cloud_values(store) == [b"both", b"theirs", b"goes on"]


@both
async def test_records_that_differ_are_not_shipped_with_leave(tmp_path, shape) -> None:
    """A directory that went its own way is as long, but holds something else: nothing of it is shipped."""
    store = MemoryStore()
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    await first.append(b"both", durability="cloud")
    await first.append(b"ours")
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        await second.append(b"theirs", durability="cloud")
    await close(first)
    before = await snapshot(store)
    for _ in range(2):
        with pytest.raises(FencedError, match="holds other records"):
            await Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True))
    assert await snapshot(store) == before
    assert await records(tmp_path / "a") == {1: b"both", 2: b"ours"}
    assert await cloud_values(store) == [b"both", b"theirs"]


@both
async def test_one_record_that_is_the_same_proves_nothing(tmp_path, shape) -> None:
    """The newest fragments of both sides are alike, and the ones before them are not."""
    store = MemoryStore()
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    await first.append(b"both", durability="cloud")
    for value in (b"ours", b"beat"):
        await first.append(value)
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        for value in (b"theirs", b"beat"):
            await second.append(value, durability="cloud")
    await close(first)
    with pytest.raises(FencedError, match="holds other records"):
        await Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True))
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        assert await second.append(b"goes on", durability="cloud") == 4


@both
async def test_a_store_that_fails_while_a_directory_is_compared(tmp_path, shape) -> None:
    """The opening fails, nobody is fenced, and the next one succeeds."""
    store = FaultyStore(MemoryStore())
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    await first.append(b"1", durability="cloud")
    await first.aclose()
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as first:
        await first.append(b"2", durability="cloud")
        await first.append(b"3")
    async with Wal.open(tmp_path / "copy") as copy:
        await copy.append(b"2")
        await copy.append(b"3")
    before = await snapshot(store.inner)
    folder = layout.FRAGMENT_FOLDER if shape == "swap" else "shard"
    store.on("get", faults.fail(faults.timeout()), key_prefix=folder)
    with pytest.raises(StorageUnavailableError):
        await Wal.open(tmp_path / "copy", tier=tier(store, shape))
    assert await snapshot(store.inner) == before
    async with Wal.open(tmp_path / "copy", tier=tier(store, shape)) as copy:
        assert await copy.append(b"4", durability="cloud") == 4
    assert await cloud_values(store.inner) == [b"1", b"2", b"3", b"4"]


async def same_twice(path: Path, store: MemoryStore, shape: Layout) -> None:
    """Make two directories that hold the same two records, of which the second one shipped the last."""
    async with Wal.open(path / "a", tier=tier(store, shape, chain=OBJECTS_FIRST)) as wal:
        await wal.append(b"1", durability="cloud")
    async with Wal.open(path / "b", tier=tier(store, shape, chain=OBJECTS_FIRST)) as wal:
        await wal.append(b"2", durability="cloud")
    async with Wal.open(path / "a") as wal:
        await wal.append(b"2")


@both
async def test_a_fragment_that_is_missing_cannot_be_compared(tmp_path, shape) -> None:
    store = MemoryStore()
    await same_twice(tmp_path, store, shape)
    folder = layout.FRAGMENT_FOLDER if shape == "swap" else "shard"
    keys = [listed.key async for listed in store.list(folder)]
    await store.delete([max(keys)])
    before = await snapshot(store)
    with pytest.raises(CorruptionError, match="missing"):
        await Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True))
    assert await snapshot(store) == before


async def test_a_fragment_that_is_collected_meanwhile_is_not_missing(tmp_path, worker) -> None:
    store = FaultyStore(MemoryStore())
    await same_twice(tmp_path, store.inner, "swap")
    others = SwappedRoot(store.inner, FAST, worker)
    await others.load()

    async def take_away() -> None:
        await collect(others, store.inner, 2)

    store.on("get", faults.call(take_away), key_prefix=layout.FRAGMENT_FOLDER)
    async with Wal.open(tmp_path / "a", tier=tier(store, "swap", take_over=True)) as wal:
        assert await wal.append(b"3", durability="cloud") == 3
    assert await cloud_values(store.inner) == [b"3"]


@both
async def test_a_fragment_that_arrives_late_is_in_nobodys_way(tmp_path, shape) -> None:
    """The first machine's put lands where the second one's next fragment belongs."""
    inner = MemoryStore()
    slow = FaultyStore(inner)
    first = await Wal.open(tmp_path / "a", tier=tier(slow, shape, IDLE, chain=OBJECTS_FIRST))
    await first.append(b"both", durability="cloud")
    folder = layout.FRAGMENT_FOLDER if shape == "swap" else "shard"
    release, reached = asyncio.Event(), asyncio.Event()
    slow.on("put_if_absent", faults.hang(release, reached), key_prefix=folder)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(first.append(b"late", durability="cloud")))
        await reached.wait()
        async with Wal.open(tmp_path / "b", tier=tier(inner, shape)) as second:
            release.set()
            assert isinstance(await waiting, FencedError)
            for number in range(2, 6):
                assert await second.append(b"theirs %d" % number, durability="cloud") == number
    await close(first)
    assert await cloud_values(inner) == [b"both", *(b"theirs %d" % n for n in range(2, 6))]


async def test_fragments_of_a_loser_are_not_adopted(tmp_path) -> None:
    """They lie where the log goes on, and behind: a third directory begins at the manifest's end."""
    inner = MemoryStore()
    first = FaultyStore(inner)
    wal = await Wal.open(tmp_path / "a", tier=tier(first, "swap", IDLE))
    first.on("put_if_match", faults.fail(faults.timeout("not_written")), times=10**9)
    before = first.count("put_if_match").requests
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(wal.append(b"a" * 9000, durability="cloud")))
        await until(lambda: first.count("put_if_match").requests > before)
        await (await Wal.open(tmp_path / "b", tier=tier(inner, "swap", IDLE))).aclose()
        first.is_killed = True
        await asyncio.wait((waiting,))
    with contextlib.suppress(BaseException):
        await wal.aclose()
    # The second one took the orphan over, in the first one's name: it was all of the log there was.
    assert await cloud_values(inner) == [b"a" * 9000]
    entry = Manifest.parse((await inner.get(layout.MANIFEST)).data).fragments[-1]
    loser = (await inner.get(entry.path)).data  # made in epoch 1
    await inner.put_if_absent(layout.fragment_path(entry.seq_no + 1), loser)
    await inner.put_if_absent(layout.fragment_path(entry.seq_no + 2), loser)
    async with Wal.open(tmp_path / "c", tier=tier(inner, "swap")) as third:
        assert await third.append(b"third", durability="cloud") == 2
        assert await third.append(b"more", durability="cloud") == 3
    assert await cloud_values(inner) == [b"a" * 9000, b"third", b"more"]
