"""What the tests of chains share: how logs are opened, and what lies in the store."""

from __future__ import annotations

from collections.abc import Callable

from tests.uploader.chain.chains import InlineWorker, stored_links, true_head
from uploader.chain import ChainRoot
from uploader.format.link import Link
from uploader.stores import RetryPolicy
from uploader.testing import FaultyStore

Opened = Callable[..., ChainRoot]


async def head_of(store: FaultyStore) -> Link:
    """Return the head, found by brute force, which must be sound; recovery must find it too."""
    links = await stored_links(store.inner)
    head = true_head(links)
    head.manifest.scrub()
    fresh = ChainRoot(store.inner, RetryPolicy(), InlineWorker())
    assert await fresh.load()
    assert fresh.head == head
    return head


async def keys(store: FaultyStore):
    async for listed in store.inner.list("manifest/"):
        yield listed.key
