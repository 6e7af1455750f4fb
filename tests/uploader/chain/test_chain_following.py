"""What a reader pays to learn whether anything follows the head of a chain."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from tests.uploader.chain.chains import run
from uploader.chain.chain_reader import LISTING_SECONDS
from uploader.format.layout import manifest_key
from uploader.format.manifest import Manifest
from uploader.stores import MemoryStore
from uploader.stores.port import ORDER_PROOF
from uploader.testing import FaultyStore


def asked(store: FaultyStore) -> tuple[int, int, int]:
    return tuple(store.count(kind).requests for kind in ("list", "get", "head"))


async def test_one_look_at_the_slot_behind_the_head(store, opened) -> None:
    """Instead of a listing, once a listing has named nothing new."""
    writer, reader = opened(), opened()
    await writer.load_or_create("w")
    await writer.publish(run(3), "w")
    await reader.load()
    assert await reader.may_have_changed()  # it came from a listing that named something new
    await reader.load()
    before = asked(store)
    for _ in range(4):
        assert not await reader.may_have_changed()
    lists, gets, heads = (now - then for now, then in zip(asked(store), before, strict=True))
    assert (lists, gets, heads) == (0, 0, 4)
    await writer.publish(run(4, seq_no=2, start=4), "w")
    assert await reader.may_have_changed()
    await reader.load()
    assert reader.manifest.next_offset == 8


async def test_another_writer_and_other_changes_are_seen_there_too(store, opened) -> None:
    """Whatever follows lies in that slot: a takeover, a seal, a collection."""
    writer, other, reader = opened(), opened(), opened()
    await writer.load_or_create("w")
    await writer.publish(run(3), "w")
    await reader.load()
    await reader.load()
    await other.load()

    def seal(manifest: Manifest) -> Manifest:
        return dataclasses.replace(manifest, writer="somebody else")

    assert await other.change(seal)
    assert await reader.may_have_changed()


async def test_a_pruned_slot_is_not_believed_for_long(store, opened, clock) -> None:
    writer, reader = opened(), opened()
    await writer.load_or_create("w")
    await writer.publish(run(3), "w")
    await reader.load()
    await reader.load()
    follower = manifest_key(reader.head.next)
    await writer.publish(run(4, seq_no=2, start=4), "w")
    await writer.publish(run(5, seq_no=3, start=8), "w")
    await store.inner.delete([follower])
    assert not await reader.may_have_changed()
    clock.advance(LISTING_SECONDS)
    assert await reader.may_have_changed()


async def test_a_log_that_is_not_known_may_have_changed(store, opened) -> None:
    assert await opened().may_have_changed()


class BusyStore(MemoryStore):
    """A store in which somebody writes whenever an object is read."""

    write: Callable[[], Awaitable[None]] | None = None

    async def get(self, key: str):
        found = await super().get(key)
        if self.write is not None:
            await self.write()
        return found


@pytest.mark.parametrize("writers", [1, 2])
async def test_the_head_is_found_beside_a_writer_that_never_pauses(opened, writers: int) -> None:
    """By as many requests as if it paused, and none that was published before is missed."""
    inner = BusyStore()
    store = FaultyStore(inner)
    logs = [opened(inner) for _ in range(writers)]
    for log in logs:
        await log.load_or_create("w")
    published = 0

    async def write() -> None:
        nonlocal published
        inner.write = None  # what a writer reads makes nobody write
        published += 1
        log = logs[published % writers]
        if writers > 1:
            await log.load()
        await log.publish(run(1, seq_no=published, start=published), f"w{published % writers}")
        inner.write = write

    while published <= ORDER_PROOF:
        await write()
    known, fresh = opened(store), opened(store)
    for _ in range(3):
        for reader in (known, fresh):
            before, requests = published, store.requests
            await reader.load()
            assert reader.manifest.next_seq_no > before
            assert store.requests - requests <= 16
        fresh = opened(store)
