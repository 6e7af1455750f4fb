"""Who is told of fragments before they are published."""

from __future__ import annotations

import pytest

from tests.cloud import FAST, put_fragment
from tests.uploader.logs import begin
from uploader.format.setsum import Setsum
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.notifying_root import NotifyingRoot, with_note
from uploader.stores import MemoryStore
from walstore.errors import StorageUnavailableError
from walstore.runtime.threads import Worker


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


async def test_it_is_told_first(worker) -> None:
    store = MemoryStore()
    log = await begin(store, worker, 1)
    told: list[tuple[int, int]] = []

    async def note(fragments) -> None:
        told.append((fragments[0].start, log.manifest.next_offset))

    root = with_note(log, note)
    entry = await put_fragment(store, 2, 3, [b"v"])
    await root.publish([entry], "writer")
    assert told == [(3, 3)]
    assert root.manifest.next_offset == 4


async def test_what_could_not_be_told_is_not_published(worker) -> None:
    store = MemoryStore()
    log = await begin(store, worker, 1)

    async def note(_fragments) -> None:
        raise StorageUnavailableError("away")

    entry = await put_fragment(store, 2, 3, [b"v"])
    with pytest.raises(StorageUnavailableError):
        await NotifyingRoot(log, note).publish([entry], "writer")
    assert log.manifest.next_offset == 3


async def test_all_else_is_as_inside(worker) -> None:
    store = MemoryStore()

    async def note(_fragments) -> None:
        pytest.fail("nothing is published")

    inner = SwappedRoot(store, FAST, worker)
    root = NotifyingRoot(inner, note)
    assert not root.is_known
    assert not await root.load()
    await root.load_or_create("writer")
    assert root.is_known
    assert root.max_publishing == 1
    key = root.fragment_key(1, start=1, limit=2, setsum=Setsum())
    assert key == inner.fragment_key(1, start=1, limit=2, setsum=Setsum())
    await put_fragment(store, 1, 1, [b"orphan"])
    assert [listed.key async for listed in root.unpublished()] == [key]
    assert await root.change(lambda manifest: manifest.seal())
    assert inner.manifest.is_sealed
    await root.aclose()


async def test_without_anybody_to_tell_there_is_nothing_between(worker) -> None:
    log = SwappedRoot(MemoryStore(), FAST, worker)
    assert with_note(log, None) is log
