"""Logs below the prefix of another one, under names that mean something there: neither harms the other."""

from __future__ import annotations

import pytest

from tests.cloud import FAST, URL, cloud_values
from uploader.care.admin.destroy import destroy
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.format import layout
from uploader.stores import ListedObject, MemoryStore, StoreWrapper
from uploader.stores.probe import MARK_FOLDER, PROBE_FOLDER
from uploader.write.cloud_writer import CloudWriter

NAMES = [
    "log", "cursor", "snapshot", "gc", "collection", "fork", "tombstone", "shard0001", "manifest",
    "rebuilt", "rebuilt/0123456789abcdef",
    PROBE_FOLDER, MARK_FOLDER,
]  # fmt: skip
EVERYTHING = CollectorSettings(
    interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1, max_wait_seconds=0
)


class Below(StoreWrapper):
    """A place in a store, as a URL with a longer prefix names it."""

    def __init__(self, inner: MemoryStore, name: str) -> None:
        super().__init__(inner)
        self._prefix = f"{name}/"

    @property
    def url(self) -> str:
        return f"{self.inner.url}/{self._prefix}"

    async def get(self, key):
        return await self.inner.get(self._prefix + key)

    async def get_range(self, key, start, limit):
        return await self.inner.get_range(self._prefix + key, start, limit)

    async def head(self, key):
        return await self.inner.head(self._prefix + key)

    async def put_if_absent(self, key, data):
        return await self.inner.put_if_absent(self._prefix + key, data)

    async def put_if_match(self, key, data, etag):
        return await self.inner.put_if_match(self._prefix + key, data, etag)

    async def delete(self, keys):
        await self.inner.delete([self._prefix + key for key in keys])

    async def list(self, prefix, *, after=None):
        behind = None if after is None else self._prefix + after
        async for listed in self.inner.list(self._prefix + prefix, after=behind):
            yield ListedObject(listed.key.removeprefix(self._prefix), listed.size_bytes)


async def fill(store, expected: list[bytes]) -> None:
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        for value in expected:
            await log.append(value)


@pytest.mark.parametrize("name", NAMES)
async def test_a_log_below_another_one(name: str) -> None:
    """Written in turns, the upper one collected and destroyed: the lower one has all of its records."""
    store = MemoryStore()
    below = Below(store, name)
    theirs = [b"theirs %d" % number for number in range(12)]
    await fill(below, theirs)
    ours = [b"ours %d" % number for number in range(6)]
    await fill(store, ours[:3])
    await fill(store, ours[3:])
    assert await cloud_values(store) == ours
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        await log.cursors.commit("reader", 5)
    async with GarbageCollector.open(
        URL, store=store, settings=EVERYTHING, retry=FAST
    ) as collector:
        await collector.collect()
    assert await cloud_values(store) == ours[4:]
    assert await cloud_values(below) == theirs
    await destroy(URL, confirm=True, store=store)
    assert await cloud_values(below) == theirs
    left = [item.key async for item in store.list("") if not item.key.startswith(f"{name}/")]
    assert left == ([] if name == "tombstone" else [layout.TOMBSTONE])
