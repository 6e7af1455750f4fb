"""What it costs to follow a log, and to find a time in a long one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.cloud import cloud_log
from tests.uploader.cloud_streams import put_log
from tests.uploader.documents import snapshot_of
from tests.waiting import until
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, timeout
from walstore.errors import LogNotFoundError, StorageUnavailableError
from walstore.testing import ManualClock


def long_manifest(count: int, records: int = 10) -> Manifest:
    """Return the manifest of a log whose fragments nobody reads: 240 bytes for each."""
    entries = [
        Fragment.numbered(
            at,
            start=1 + (at - 1) * records,
            limit=1 + at * records,
            num_bytes=1000,
            setsum=Setsum.of_items([b"%d" % at]),
        )
        for at in range(1, count + 1)
    ]
    return Manifest.initial("w").apply_fragments(entries, "w")


async def put_manifest(store: MemoryStore, manifest: Manifest) -> None:
    await store.delete([layout.MANIFEST])
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())


def asked(store: FaultyStore) -> tuple[int, int]:
    return store.count("get").requests, store.count("head").requests


async def poll(clock: ManualClock, store: FaultyStore) -> tuple[int, int]:
    """Let the reader that waits ask once; return what it asked for: whole manifests, ETags."""
    gets, heads = asked(store)
    await clock.wait_for_sleepers()
    clock.advance(2)
    await until(lambda: asked(store) != (gets, heads))
    await until(lambda: clock.sleepers == 1)
    return asked(store)[0] - gets, asked(store)[1] - heads


async def test_a_long_manifest_that_does_not_change_is_read_once_more(clock) -> None:
    """From the second look on its ETag is enough, until there is something new."""
    store = FaultyStore(MemoryStore())
    await put_manifest(store.inner, long_manifest(200))
    async with cloud_log(store, clock) as log:
        reading = asyncio.create_task(log.wait_limit(99_999))
        assert await poll(clock, store) == (1, 0)
        for _ in range(5):
            assert await poll(clock, store) == (0, 1)
        await put_manifest(store.inner, long_manifest(201))
        assert await poll(clock, store) == (1, 1)
        assert log.tail == 2011
        # Where things change, asking first would be a request too many.
        await put_manifest(store.inner, long_manifest(202))
        assert await poll(clock, store) == (1, 0)
        assert log.tail == 2021
        assert await poll(clock, store) == (1, 0)
        assert await poll(clock, store) == (0, 1)
        reading.cancel()
        await asyncio.wait((reading,))


async def test_a_short_manifest_is_simply_read(clock) -> None:
    store = FaultyStore(MemoryStore())
    await put_manifest(store.inner, long_manifest(3))
    async with cloud_log(store, clock) as log:
        reading = asyncio.create_task(log.wait_limit(99_999))
        for _ in range(4):
            assert await poll(clock, store) == (1, 0)
        reading.cancel()
        await asyncio.wait((reading,))


async def test_faults_and_deletion_show_as_ever(clock) -> None:
    store = FaultyStore(MemoryStore())
    await put_manifest(store.inner, long_manifest(200))
    async with cloud_log(store, clock) as log:
        await log.refresh()
        store.on("head", fail(timeout("not_written")))
        with pytest.raises(StorageUnavailableError):
            await log.refresh()
        await log.refresh()
        await store.inner.delete([layout.MANIFEST])
        with pytest.raises(LogNotFoundError):
            await log.refresh()


@pytest.mark.slow
async def test_a_time_in_a_deep_tree() -> None:
    """256 fragments under snapshots of four, four levels deep: about log2 of them are looked at."""
    store = FaultyStore(MemoryStore())
    flat = await put_log(store.inner, 257, lambda _: None)
    level = [snapshot_of(flat.fragments[low : low + 4]) for low in range(0, 256, 4)]
    while True:
        for snapshot in level:
            await store.inner.put_if_absent(snapshot.path, snapshot.serialise())
        if len(level) == 1:
            break
        pointers = [snapshot.pointer() for snapshot in level]
        level = [snapshot_of(pointers[low : low + 4]) for low in range(0, len(pointers), 4)]
    tree = Manifest(
        setsum=flat.setsum,
        collected=flat.collected,
        acc_bytes=flat.acc_bytes,
        writer="w",
        snapshots=(level[0].pointer(),),
        fragments=flat.fragments[256:],
    )
    assert level[0].depth == 4
    await put_manifest(store.inner, tree)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for wanted in (1, 777, 1284, 2561, 2570):
        twin = FaultyStore(store.inner)
        async with cloud_log(twin) as log:
            assert await log.offset_at(wanted) == wanted
            assert twin.count("get_range").requests <= 9 + 2
            assert twin.count("get").requests <= 1 + 4 * 4
            reader = log.reader(epoch + timedelta(microseconds=wanted), stop=wanted + 1)
            assert [record.offset async for record in reader] == [wanted]
    async with cloud_log(store) as log:
        assert await log.offset_at(2571) == log.tail == 2571
