"""Fragments fetched before their reader asks for them."""

from __future__ import annotations

import asyncio
import dataclasses
import os

import pytest

from tests.cloud import cloud_log, copy_objects, put_fragment
from tests.local import turns
from tests.uploader.cloud_streams import put_log
from tests.waiting import until
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.read.fragment_reader import FragmentReader
from uploader.read.read_ahead import MOST_FRAGMENTS, ReadAhead, ReadersAhead
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import fail, timeout
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, StorageUnavailableError, WalClosedError

VALUE = bytes(1000)
COUNT = 40


@pytest.fixture(scope="module")
def made() -> tuple[MemoryStore, Manifest]:
    """Forty fragments of ten records of 1000 bytes, made once: tests have copies."""
    store = MemoryStore()
    return store, asyncio.run(put_log(store, COUNT, lambda _: None, value=lambda _: VALUE))


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def fragments(store: FaultyStore):
    """A reader without a cache, so that each request shows."""
    worker = Worker("test", threads=2)
    reader = FragmentReader(store=store, worker=worker, cache_bytes=0)
    yield reader
    await reader.aclose()
    worker.close()


@pytest.fixture
async def manifest(made: tuple[MemoryStore, Manifest], store: FaultyStore) -> Manifest:
    """Those fragments in the store."""
    await copy_objects(made[0], store.inner)
    return made[1]


def fetched(store: FaultyStore) -> int:
    return store.count("get_range").requests


async def settled(store: FaultyStore, count: int) -> None:
    """Wait for so many fetches, and see that no more follow."""
    await until(lambda: fetched(store) >= count)
    await turns(200)
    assert fetched(store) == count


async def test_every_fragment_is_fetched_once_in_order(store, fragments, manifest) -> None:
    ahead = ReadAhead(fragments, max_bytes=1 << 20)
    position = 1
    while position < manifest.next_offset:
        batch = await ahead.read(manifest, position, manifest.next_offset)
        assert (batch.start, batch.limit) == (position, position + 10)
        position = ahead.position
    assert fetched(store) == COUNT


async def test_the_next_ones_come_while_one_is_read(store, fragments, manifest) -> None:
    ahead = ReadAhead(fragments, max_bytes=1 << 30)
    await ahead.read(manifest, 1, manifest.next_offset)
    await settled(store, 1 + MOST_FRAGMENTS)
    await ahead.read(manifest, 11, manifest.next_offset)
    await settled(store, 2 + MOST_FRAGMENTS)


async def test_nothing_is_fetched_behind_the_limit(store, fragments, manifest) -> None:
    ahead = ReadAhead(fragments, max_bytes=1 << 30)
    await ahead.read(manifest, 1, 35)
    await settled(store, 4)


async def test_without_memory_nothing_is_fetched_ahead(store, fragments, manifest) -> None:
    ahead = ReadAhead(fragments, max_bytes=0)
    for position in (1, 11, 21):
        await ahead.read(manifest, position, manifest.next_offset)
    await settled(store, 3)


@pytest.mark.parametrize("room", [1, 3, 7])
async def test_memory_is_bounded(store, fragments, manifest, room: int) -> None:
    """By what fragments take decoded, once one was seen."""
    size = (await fragments.read(manifest.fragments[0])).nbytes
    before = fetched(store)
    entry = manifest.fragments[1]
    estimate = int(entry.num_bytes * (1 + fragments.expansion))
    ahead = ReadAhead(fragments, max_bytes=(room - 1) * size + estimate)
    for position in range(1, 300, 10):
        await ahead.read(manifest, position, manifest.next_offset)
        await turns(3)
        assert ahead.waiting_bytes <= (room - 1) * size + estimate
    await until(lambda: not ahead._filling)
    assert fetched(store) - before >= 30 + 1


async def test_a_large_fragment_is_not_fetched_ahead(store, fragments) -> None:
    entries = [
        await put_fragment(store.inner, 1, 1, [VALUE]),
        await put_fragment(store.inner, 2, 2, [bytes([at % 251]) * 5000 for at in range(200)]),
    ]
    manifest = Manifest.initial("w").apply_fragments(entries, "w")
    ahead = ReadAhead(fragments, max_bytes=2000)
    await ahead.read(manifest, 1, 202)
    await settled(store, 1)
    assert len(await ahead.read(manifest, 2, 202)) == 200


@pytest.mark.parametrize("to", [1, 55, 301])
async def test_jumps(store, fragments, manifest, to: int) -> None:
    ahead = ReadAhead(fragments, max_bytes=60_000)
    for position in (11, 21, 31):
        await ahead.read(manifest, position, manifest.next_offset)
    batch = await ahead.read(manifest, to, manifest.next_offset)
    assert batch.start <= to < batch.limit
    batch = await ahead.read(manifest, batch.limit, manifest.next_offset)
    assert batch.start <= to + 10 < batch.limit


async def test_a_fault_ahead_waits_for_its_reader(store, fragments, manifest) -> None:
    path = manifest.fragments[3].path
    store.on("get_range", fail(timeout("not_written")), key_prefix=path)
    ahead = ReadAhead(fragments, max_bytes=1 << 20)
    for position in (1, 11, 21):
        assert (await ahead.read(manifest, position, 401)).start == position
    with pytest.raises(StorageUnavailableError):
        await ahead.read(manifest, 31, 401)
    assert (await ahead.read(manifest, 31, 401)).start == 31
    assert (await ahead.read(manifest, 41, 401)).start == 41


async def test_a_cancelled_read_loses_nothing(store, fragments, manifest) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("get_range", faults.hang(release, reached), key_prefix=manifest.fragments[0].path)
    ahead = ReadAhead(fragments, max_bytes=1 << 20)
    reading = asyncio.create_task(ahead.read(manifest, 1, 401))
    await reached.wait()
    reading.cancel()
    await asyncio.wait((reading,))
    assert reading.cancelled()
    release.set()
    assert (await ahead.read(manifest, 1, 401)).start == 1
    assert store.count("get_range").requests <= 1 + MOST_FRAGMENTS


async def test_closing_ends_what_is_under_way(store, fragments, manifest) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("get_range", faults.hang(release, reached), times=10**6)
    ahead = ReadAhead(fragments, max_bytes=1 << 20)
    reading = asyncio.create_task(ahead.read(manifest, 1, 401))
    await reached.wait()
    await fragments.aclose()
    with pytest.raises(WalClosedError):
        await reading
    await fragments.aclose()


async def test_only_fragments_of_the_stream_are_fetched_ahead(store, fragments) -> None:
    manifest = await put_log(
        store.inner, 30, lambda at: "a" if at > 250 else "b", value=lambda _: os.urandom(4000)
    )
    ahead = ReadAhead(fragments, max_bytes=1 << 20, stream="a")
    assert (await ahead.read(manifest, 1, 301)).start == 1
    await until(lambda: len(ahead._ahead) == 5)
    assert [each.entry.start for each in ahead._ahead] == [251, 261, 271, 281, 291]
    ahead.pass_over(11, 251)
    await ahead.read(manifest, 251, 301)
    await until(lambda: fetched(store) == 1 + 29 + 5)


# -- readers of a log ------------------------------------------------------------------------


async def test_a_reader_of_a_log(store, manifest) -> None:
    async with cloud_log(store) as log:
        async with log.reader() as reader:
            assert (await anext(reader)).offset == 1
            await until(lambda: fetched(store) > 5)
            assert [record.offset async for record in reader] == list(range(2, 401))
        assert fetched(store) == COUNT
        found = [record.offset async for record in log.reader(385, prefetch_bytes=0)]
    assert found == list(range(385, 401))


async def test_a_negative_prefetch(store, manifest) -> None:
    async with cloud_log(store) as log:
        with pytest.raises(ValueError, match="prefetch"):
            log.reader(prefetch_bytes=-1)


async def test_a_reader_that_verifies(store, manifest) -> None:
    """A manifest with another setsum: only hashing every record tells."""
    entry = manifest.fragments[1]
    wrong = dataclasses.replace(entry, setsum=Setsum.of_items([b"other"]))
    entries = (manifest.fragments[0], wrong, *manifest.fragments[2:])
    total = Setsum.total(each.setsum for each in entries)
    lying = dataclasses.replace(manifest, fragments=entries, setsum=total)
    await store.inner.delete([layout.MANIFEST])
    await store.inner.put_if_absent(layout.MANIFEST, lying.serialise())
    async with cloud_log(store) as log:
        assert len([record async for record in log.reader()]) == 400
        reader = log.reader(verify=True)
        with pytest.raises(CorruptionError, match="setsum") as told:
            async for _ in reader:
                pass
        assert (told.value.path, reader.position) == (entry.path, 11)
        with pytest.raises(CorruptionError):
            await log.read_fragment(wrong, verify=True)


async def test_closing_a_log_under_a_reader(store, manifest) -> None:
    log = await cloud_log(store)
    reader = log.reader()
    await anext(reader)
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("get_range", faults.hang(release, reached), times=10**6)
    await log.aclose()
    with pytest.raises(WalClosedError):
        while True:
            await anext(reader)


# -- readers that do not say who they are ----------------------------------------------------


async def test_who_goes_on_is_recognised(store, fragments, manifest) -> None:
    readers = ReadersAhead(fragments, max_bytes=1 << 20)
    await readers.read(manifest, 1, 401)
    await settled(store, 1)  # one read may be the only one
    await readers.read(manifest, 201, 401)
    await settled(store, 2)
    await readers.read(manifest, 11, 401)
    await settled(store, 3 + MOST_FRAGMENTS)
    await readers.read(manifest, 211, 401)
    await until(lambda: fetched(store) > 3 + MOST_FRAGMENTS + 5)


@pytest.mark.slow
async def test_many_readers_are_served(store, fragments, manifest) -> None:
    """Ahead of four at most, in turn."""
    readers = ReadersAhead(fragments, max_bytes=1 << 20, most=4)

    async def read_all() -> int:
        position = 1
        while position < 401:
            position = (await readers.read(manifest, position, 401)).limit
        return position

    assert set(await asyncio.gather(*(read_all() for _ in range(10)))) == {401}
    assert readers._busy == 0
    assert len(readers._idle) <= 4
