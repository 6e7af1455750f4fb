"""A log as a chain of manifests, from end to end: the same writers, the same readers, the same tools."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from uploader import CloudLog, CloudTier
from uploader.care.admin.destroy import destroy
from uploader.care.admin.fork import fork
from uploader.care.admin.scrubber import Scrubber
from uploader.care.admin.seal import seal
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.care.restoring.restore import restore
from uploader.chain import ChainRoot, ChainSettings, rebuild
from uploader.format.layout import MANIFEST_PREFIX
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import Fault, fail, happen_then_kill, kill
from uploader.write.cloud_writer import CloudWriter
from walstore import LogSealedError, Wal
from walstore.errors import OutcomeUnknownError, UnsupportedStoreError

URL = "memory://ignored"
CHAIN = ChainSettings(alpha=4, shards=3)


async def values(store) -> list[bytes]:
    """Return everything that the prefix alone gives back, after verifying it."""
    async with CloudLog.open(URL, store=store) as log:
        await log.verify()
        return [record.value async for record in log.reader()]


async def fill(store, expected: list[bytes], *, chain: ChainSettings = CHAIN) -> None:
    async with CloudWriter.open(URL, store=store, layout="chain", chain=chain) as log:
        for value in expected:
            await log.append(value)


async def test_a_store_that_has_no_swaps() -> None:
    """Writers and readers need put-if-absent only; of the default layout the probe says what is missing."""
    no_swaps = UnsupportedStoreError("this store has no swaps")
    store = FaultyStore(MemoryStore())
    store.on("put_if_match", fail(no_swaps), times=100)
    expected = [b"%d" % number for number in range(20)]
    await fill(store, expected)
    assert await values(store) == expected
    assert store.count("put_if_match").requests == 0
    with pytest.raises(UnsupportedStoreError):
        await CloudWriter.open(URL, store=MemoryStoreWithout(no_swaps))


class MemoryStoreWithout(MemoryStore):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        raise self._error


@pytest.mark.slow
async def test_resharding_and_another_alpha() -> None:
    store = MemoryStore()
    expected: list[bytes] = []
    for alpha, shards in ((1, 1), (8, 12), (2, 3)):
        more = [b"%d of %d" % (number, shards) for number in range(15)]
        await fill(store, more, chain=ChainSettings(alpha=alpha, shards=shards))
        expected += more
    assert await values(store) == expected
    folders = {listed.key[:9] async for listed in store.list("shard")}
    assert len(folders) == 12


async def test_a_local_log_ships_to_a_chain(log_directory: Path) -> None:
    store = MemoryStore()
    tier = CloudTier(URL, store=store, layout="chain", chain=CHAIN)
    async with Wal.open(log_directory, tier=tier) as wal:
        for number in range(30):
            await wal.append(b"%d" % number, durability="cloud" if number % 10 == 9 else "memory")
    assert await values(store) == [b"%d" % number for number in range(30)]
    async with CloudLog.open(URL, store=store) as log:
        assert isinstance(log._root, ChainRoot)


@pytest.mark.slow
async def test_the_tools_do_not_care(tmp_path: Path) -> None:
    """Collected, scrubbed, restored, forked, sealed and destroyed like any other log."""
    store = MemoryStore("a chain for all tools")
    url = store.url
    expected = [b"%d" % number for number in range(150)]
    await fill(store, expected)
    async with CloudLog.open(url, store=store) as log:
        await log.cursors.commit("reader", 101)
    settings = CollectorSettings(interval_seconds=0, delete_pause_seconds=0)
    async with GarbageCollector.open(url, store=store, settings=settings) as collector:
        collected = await collector.apply(await collector.plan())
    assert collected.head == 101
    assert await values(store) == expected[100:]
    shards = [listed.key async for listed in store.list("shard")]
    assert len(shards) == 50
    async with Scrubber.open(url, store=store) as scrubber:
        assert not (await scrubber.scrub()).findings
    restored = await restore(url, tmp_path / "restored")
    assert (restored.head, restored.limit) == (101, 151)
    await fork(url, "memory://the fork of a chain")
    assert await values(MemoryStore("the fork of a chain")) == expected[100:]
    found = await rebuild(store, "rebuilt", write=True)
    assert found.left_out == ()
    assert await values(store) == expected[100:]
    await seal(url)
    with pytest.raises(LogSealedError):
        await fill(store, [b"more"])
    await destroy(url)
    left = [listed.key async for listed in store.list("")]
    assert left.pop() == "tombstone/DESTROYED"
    assert all(key.startswith("manifest/") for key in left)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [kill, happen_then_kill])
async def test_killed_at_every_call_of_the_store(fault: type[Fault]) -> None:
    """Whatever was acknowledged is read back, in order, once, when the next writer has opened."""
    for nth in range(1, 200):
        store = FaultyStore(MemoryStore())
        store.on("any", fault(), nth=nth)
        acknowledged: list[tuple[int, bytes]] = []

        async def append(log: CloudWriter, value: bytes, told=acknowledged) -> None:
            told.append((await log.append(value), value))

        try:
            async with CloudWriter.open(URL, store=store, layout="chain", chain=CHAIN) as log:
                for turn in range(4):
                    async with asyncio.TaskGroup() as group:
                        for number in range(3):
                            group.create_task(append(log, b"%d/%d" % (turn, number)))
        except* (StoreKilled, OutcomeUnknownError):
            pass
        await fill(store.inner, [b"last"])
        found = await values(store.inner)
        assert len(set(found)) == len(found)
        for offset, value in acknowledged:
            assert found[offset - 1] == value
        assert found[-1] == b"last"
        if not store.is_killed:
            assert len(acknowledged) == 12
            assert [key async for key in _manifests(store.inner)]
            return
    pytest.fail("the run never got to its end")


async def _manifests(store: MemoryStore):
    async for listed in store.list(MANIFEST_PREFIX):
        yield listed.key
