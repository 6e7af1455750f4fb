"""Which layout a log has is seen from what lies in the store, with few requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.uploader.chain.chains import InlineWorker, run
from uploader.chain import ChainRoot, ChainSettings
from uploader.layouts.log_session import find_root
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.root import Root
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore
from walstore.errors import InvalidSettingsError

Find = Callable[..., Awaitable[Root]]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def find(store: FaultyStore) -> Find:
    async def found(**options) -> Root:
        return await find_root(store, retry=RetryPolicy(), worker=InlineWorker(), **options)

    return found


async def test_a_new_log_gets_the_default_layout(find) -> None:
    root = await find()
    assert isinstance(root, SwappedRoot)
    assert not root.is_known
    await root.load_or_create("w")
    assert isinstance(await find(), SwappedRoot)
    assert isinstance(await find(layout="swap"), SwappedRoot)


async def test_a_new_log_gets_the_layout_asked_for(find) -> None:
    root = await find(layout="chain", chain=ChainSettings(alpha=3, shards=2))
    assert isinstance(root, ChainRoot)
    assert not root.is_known
    assert root.max_publishing == 3
    await root.load_or_create("w")
    await root.publish(run(3, shards=2), "w")
    for layout in (None, "chain"):
        again = await find(layout=layout)
        assert isinstance(again, ChainRoot)
        assert again.manifest == root.manifest


@pytest.mark.parametrize(("there", "asked"), [("swap", "chain"), ("chain", "swap")])
async def test_a_log_of_the_other_layout_is_refused(find, there: str, asked: str) -> None:
    await (await find(layout=there)).load_or_create("w")
    with pytest.raises(InvalidSettingsError, match=there):
        await find(layout=asked)


async def test_the_requests_it_takes(store, find) -> None:
    async def requests(**options) -> int:
        before = store.requests
        await find(**options)
        return store.requests - before

    assert await requests() == 2
    assert await requests(layout="chain") == 2
    await (await find()).load_or_create("w")
    assert await requests() == await requests(layout="swap") == 2  # one looks for a tombstone


async def test_the_requests_it_takes_for_a_chain(store, find) -> None:
    root = await find(layout="chain")
    await root.load_or_create("w")
    before = store.requests
    await find()
    assert store.requests == before + 3


@pytest.mark.parametrize("later", ["swap", "chain"])
async def test_both_layouts_created_at_the_same_time(store, find, later: str) -> None:
    """Neither had seen the other when it looked. Whoever is second says so, and nothing is ever shipped."""
    roots = {layout: await find(layout=layout) for layout in ("swap", "chain")}
    second = roots.pop(later)
    (first,) = roots.values()
    await first.load_or_create("w")
    with pytest.raises(InvalidSettingsError, match="other layout"):
        await second.load_or_create("w")
