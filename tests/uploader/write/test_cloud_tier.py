"""The adapter between a local log and its prefix: what opening finds, and what it refuses."""

from __future__ import annotations

import pytest

from tests.cloud import (
    LOG_ID,
    MemorySource,
    cloud_values,
    fragment_keys,
    put_fragment,
    snapshot,
    tier,
    values,
)
from tests.uploader.documents import manifest_of
from uploader import CloudTier
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.root.ownership import writer_name
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, timeout
from walstore.errors import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    StorageUnavailableError,
    UnsupportedStoreError,
    WalClosedError,
)

ID = bytes.fromhex(LOG_ID)
WRITER = writer_name(ID)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def opened(store: FaultyStore):
    """Make tiers over the store."""
    tiers: list[CloudTier] = []

    def make(inner=None) -> CloudTier:
        tiers.append(tier(inner or store))
        return tiers[-1]

    yield make
    for one in tiers:
        await one.aclose()


async def write(store: FaultyStore, manifest: Manifest) -> None:
    await store.inner.put_if_absent(layout.MANIFEST, manifest.serialise())


async def test_nothing_is_asked_before_it_opens(store, opened) -> None:
    found = opened()
    assert (found.head, found.limit, found.log_id, found.url) == (1, 1, None, store.url)
    assert store.requests == 0


@pytest.mark.parametrize("log_id", [None, ID])
async def test_an_empty_place(store, opened, log_id) -> None:
    """Opening leaves nothing behind."""
    found = opened()
    await found.open(log_id)
    assert (found.head, found.limit, found.log_id) == (1, 1, None)
    assert await snapshot(store.inner) == {}


async def test_a_log_is_there(store, opened) -> None:
    entries = [
        await put_fragment(store.inner, 1, 1, values(10)),
        await put_fragment(store.inner, 2, 11, values(5, start=11)),
    ]
    await write(store, Manifest.initial(WRITER).apply_fragments(entries, WRITER))
    found = opened()
    await found.open(ID)
    assert (found.head, found.limit, found.log_id) == (1, 16, ID)
    (batch,) = await found.read(4, 8, 1 << 20)
    assert (batch.start, batch.limit, list(batch.values)) == (4, 8, values(4, start=4))
    (batch,) = await found.read(14, 99, 1 << 20)
    assert (batch.start, batch.limit) == (14, 16)
    assert await found.offset_at(0) == 1
    assert await found.offset_at(1) is None


async def test_the_log_of_another(store, opened) -> None:
    await write(store, Manifest.initial(WRITER))
    before = await snapshot(store.inner)
    with pytest.raises(ContentionError, match="belongs to another log"):
        await opened().open(bytes(16))
    assert await snapshot(store.inner) == before


async def test_the_log_of_another_program(store, opened) -> None:
    await write(store, manifest_of(3, 4))
    with pytest.raises(ContentionError, match="belongs to another log"):
        await opened().open(ID)
    found = opened()
    await found.open(None)
    assert found.limit == 8
    assert found.log_id is not None
    again = opened()
    await again.open(found.log_id)  # the new directory, opened again before it shipped anything


async def test_orphans_are_not_published_before_they_are_proven(store, opened) -> None:
    """A second opener of the same directory must not disturb the first, who has the lock."""
    await write(store, Manifest.initial(WRITER))
    await put_fragment(store.inner, 1, 1, values(10))
    before = await snapshot(store.inner)
    found = opened()
    await found.open(ID)
    assert found.limit == 1
    assert await snapshot(store.inner) == before
    source = MemorySource()
    source.append(values(12))
    source.drain()
    await found.run(source)
    assert await cloud_values(store.inner) == values(12)
    assert (found.uploader.adopted_fragments, found.uploader.uploaded_fragments) == (1, 1)


async def test_a_new_directory_begins_behind_orphans(store, opened) -> None:
    await write(store, Manifest.initial(WRITER))
    await put_fragment(store.inner, 1, 1, values(10))
    found = opened()
    await found.open(None)
    assert (found.limit, found.log_id) == (11, ID)
    assert await cloud_values(store.inner) == values(10)


async def test_a_new_directory_behind_a_hole(store, opened) -> None:
    await write(store, Manifest.initial(WRITER))
    await put_fragment(store.inner, 2, 11, values(10, start=11))
    before = await snapshot(store.inner)
    with pytest.raises(ContentionError, match="restore the log's old directory"):
        await opened().open(None)
    assert await snapshot(store.inner) == before


@pytest.mark.parametrize("log_id", [None, ID])
async def test_fragments_without_a_manifest(store, opened, log_id) -> None:
    """Somebody lost the root: a new one would hide what is there."""
    await put_fragment(store.inner, 1, 1, values(10))
    with pytest.raises(CorruptionError, match="the manifest is missing") as told:
        await opened().open(log_id)
    assert told.value.path == layout.MANIFEST
    assert await fragment_keys(store.inner) == [layout.fragment_path(1)]


async def test_a_log_that_another_machine_begins_at_the_same_time(store, opened) -> None:
    """Its manifest and first fragment come after the look for a manifest: nothing is missing."""

    async def and_begin(request):
        try:
            return await request()
        finally:
            entry = await put_fragment(store.inner, 1, 1, values(10))
            await write(store, Manifest.initial(WRITER).apply_fragments([entry], WRITER))

    store.on("get", and_begin, key_prefix=layout.MANIFEST)
    one = opened()
    await one.open(None)
    assert (one.log_id, one.head, one.limit) == (ID, 1, 11)


@pytest.mark.parametrize("damaged", [layout.MANIFEST, layout.fragment_path(1)])
async def test_damage_is_named(store, opened, damaged) -> None:
    if damaged != layout.MANIFEST:
        await write(store, Manifest.initial(WRITER))
    await store.inner.put_if_absent(damaged, b"?")
    with pytest.raises(CorruptionError) as told:
        await opened().open(ID)
    assert told.value.path == damaged


class Careless(MemoryStore):
    """Accepts conditions and ignores them."""

    async def put_if_absent(self, key: str, data: bytes) -> str:
        await self.delete([key])
        return await super().put_if_absent(key, data)


async def test_a_store_that_ignores_conditions(opened) -> None:
    with pytest.raises(UnsupportedStoreError):
        await opened(Careless()).open(None)


@pytest.mark.parametrize("kind", ["put_if_absent", "get", "list", "put_if_match"])
async def test_a_store_that_is_away(store, opened, kind) -> None:
    await write(store, Manifest.initial(WRITER))
    store.on(kind, fail(timeout("not_written")), times=99)
    with pytest.raises(StorageUnavailableError) as told:
        await opened().open(ID)
    assert told.value.retriable


async def test_a_passing_fault_of_the_first_request(store, opened) -> None:
    store.on("put_if_absent", fail(timeout()))
    await opened().open(None)


async def test_closed_twice_and_read_afterwards(store, opened) -> None:
    entry = await put_fragment(store.inner, 1, 1, values(10))
    await write(store, Manifest.initial(WRITER).apply_fragments([entry], WRITER))
    found = opened()
    await found.open(ID)
    await found.aclose()
    await found.aclose()
    with pytest.raises(WalClosedError):
        await found.read(1, 2, 1)


@pytest.mark.parametrize("url", ["", "ftp://host/x", "s3:bucket", "file://relative", "memory://"])
def test_urls_that_name_nothing(url: str) -> None:
    with pytest.raises(InvalidSettingsError):
        CloudTier(url)
