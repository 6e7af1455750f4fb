"""A manifest from nothing but a listing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.chain.chains import InlineWorker, run
from uploader.chain import ChainRoot, ChainSettings, rebuild
from uploader.chain.shards import assemble
from uploader.format.entries import Fragment
from uploader.format.layout import MANIFEST_PREFIX, FragmentName
from uploader.format.manifest import Manifest
from uploader.stores import MemoryStore, RetryPolicy
from uploader.stores.port import ListedObject
from uploader.testing import FaultyStore
from uploader.testing.faults import call, fail, happen_then_fail, timeout
from walstore.errors import (
    ContentionError,
    CorruptionError,
    LogNotFoundError,
    OutcomeUnknownError,
)


def listed(items: list[Fragment]) -> list[tuple[FragmentName, ListedObject]]:
    return [
        (FragmentName.parse(item.path), ListedObject(item.path, item.num_bytes)) for item in items
    ]


async def put(store: MemoryStore, items: list[Fragment]) -> None:
    for item in items:
        await store.put_if_absent(item.path, bytes(item.num_bytes))


def opened(store: MemoryStore, alpha: int = 4) -> ChainRoot:
    settings = ChainSettings(alpha=alpha, shards=3)
    return ChainRoot(store, RetryPolicy(), InlineWorker(), settings=settings)


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    st.integers(1, 12),
    st.randoms(use_true_random=False),
)
def test_the_manifest_of_a_log_that_lost_nothing(sizes, shards, random) -> None:
    items = run(*sizes, shards=shards)
    shuffled = listed(items)
    random.shuffle(shuffled)
    found = assemble(shuffled, "w")
    assert found.left_out == ()
    assert found.manifest == Manifest.initial("").apply_fragments(items, "w")


def test_a_log_whose_beginning_was_collected() -> None:
    items = run(3, 4, 5)[1:]
    manifest = assemble(listed(items), "w").manifest
    assert (manifest.initial_offset, manifest.initial_seq_no) == (4, 2)
    assert (manifest.oldest_offset, manifest.next_offset, manifest.next_seq_no) == (4, 13, 4)


def test_what_does_not_belong_is_left_out() -> None:
    """An orphan behind a hole, one that somebody else cut, and what a collector did not come to delete."""
    items = run(3, 4, 5, 6, 7, 8)
    other = run(9, seq_no=2, start=4, salt="x")
    found = assemble(listed([items[0], *items[2:], *other]), "w")
    assert list(found.manifest.fragments) == items[2:]
    assert set(found.left_out) == {items[0].path, other[0].path}


def test_two_that_could_both_belong_there() -> None:
    items, other = run(3, 4), run(4, seq_no=2, start=4, salt="x")
    with pytest.raises(CorruptionError, match="exclude"):
        assemble(listed([*items, *other]), "w")
    found = assemble(listed([*items, *other]), "w", exclude={other[0].path})
    assert list(found.manifest.fragments) == items


def test_nothing_at_all() -> None:
    with pytest.raises(LogNotFoundError):
        assemble([], "w")


async def test_a_log_goes_on_from_what_was_rebuilt() -> None:
    """Also when old manifests are still there, and when it is done twice."""
    store = MemoryStore()
    log = opened(store)
    await log.load_or_create("w")
    items = run(*[2] * 9, shards=3)
    await put(store, items)
    await log.publish(items, "w")
    before = log.manifest
    for _ in range(2):
        found = await rebuild(store, "rebuilt", write=True)
        assert found.manifest.fragments == before.fragments
        assert found.manifest.setsum == before.setsum
    again = opened(store)
    await again.load()
    assert again.manifest == found.manifest
    assert again.head.slot == 2 << 32
    await again.publish(run(2, seq_no=10, start=19), "w")
    await again.settle()
    reader = opened(store)
    await reader.load()
    assert reader.manifest.next_seq_no == 11
    # Who knew the old chain finds the new one.
    await log.load()
    assert log.manifest == reader.manifest
    assert len([item async for item in store.list(MANIFEST_PREFIX)]) == 3


async def test_every_manifest_is_lost() -> None:
    store = MemoryStore()
    await put(store, run(3, 4, 5))
    found = await rebuild(store, "w")
    assert found.manifest.next_offset == 13
    assert not await opened(store).load()
    await rebuild(store, "w", write=True)
    log = opened(store)
    assert await log.load()
    assert log.manifest == found.manifest
    assert log.head.slot == 0


async def test_two_rebuild_at_once() -> None:
    store = FaultyStore(MemoryStore())
    await put(store, run(3))

    async def other() -> None:
        await rebuild(store.inner, "other", write=True)

    store.on("put_if_absent", call(other))
    with pytest.raises(ContentionError):
        await rebuild(store, "w", write=True)


@pytest.mark.parametrize("fault", [fail, happen_then_fail])
async def test_nothing_tells_whether_it_was_written(fault, impatient) -> None:
    store = FaultyStore(MemoryStore())
    await put(store.inner, run(3))
    store.on("put_if_absent", fault(timeout()), times=5)
    store.on("get", fail(timeout("not_written")), times=5, key_prefix="manifest/")
    with pytest.raises(OutcomeUnknownError):
        await rebuild(store, "w", write=True, retry=impatient)
    await rebuild(store, "w", write=True)
    log = opened(store)
    await log.load()
    assert log.manifest.next_offset == 4
