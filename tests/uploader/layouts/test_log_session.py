"""Sessions: which layout a log has, who hears of fragments first, and what is closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.cloud import put_fragment
from tests.uploader.chain.chains import InlineWorker, run
from uploader.chain import ChainRoot, ChainSettings
from uploader.layouts.log_session import LogSession, find_root
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.root import Root
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore
from walstore.errors import (
    InvalidSettingsError,
    LogNotFoundError,
    StorageUnavailableError,
    WalClosedError,
)

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


@pytest.mark.parametrize("layout", ["swap", "chain"])
async def test_a_note_comes_before_the_fragments_are_published(store, find, layout: str) -> None:
    seen: list[tuple[int, int]] = []

    async def note(fragments) -> None:
        seen.append((fragments[0].start, root.manifest.next_offset))

    root = await find(layout=layout, note=note)
    assert root.max_publishing == 1
    await root.load_or_create("w")
    fragments = await _fragments(store, layout)
    await root.publish(fragments, "w")
    assert seen == [(1, 1)]
    assert root.manifest.next_offset == fragments[-1].limit


@pytest.mark.parametrize("layout", ["swap", "chain"])
async def test_fragments_whose_note_failed_are_not_published(store, find, layout: str) -> None:
    async def note(_fragments) -> None:
        raise StorageUnavailableError("away")

    root = await find(layout=layout, note=note)
    await root.load_or_create("w")
    fragments = await _fragments(store, layout)
    before = root.manifest
    with pytest.raises(StorageUnavailableError):
        await root.publish(fragments, "w")
    assert root.manifest == before
    assert await root.change(lambda manifest: manifest.seal())  # needs no note


async def _fragments(store, layout: str):
    return run(1) if layout == "chain" else [await put_fragment(store, 1, 1, [b"v"])]


class ClosableStore(MemoryStore):
    """Counts how often it was closed."""

    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("fails", [False, True])
async def test_a_session_closes_all_that_it_opened_even_if_the_root_fails(fails: bool) -> None:
    store = ClosableStore()
    session = LogSession("memory://x", store=store)
    root = await session.find_root()
    order: list[int] = []

    async def close_root() -> None:
        order.append(store.closed)
        if fails:
            raise StorageUnavailableError("away")

    root.aclose = close_root
    if fails:
        with pytest.raises(StorageUnavailableError):
            await session.aclose()
    else:
        await session.aclose()
    assert order == [0]
    assert store.closed == 1
    with pytest.raises(WalClosedError):
        await session.worker.run(int)


async def test_a_given_store_stays_open_if_asked_for() -> None:
    store = ClosableStore()
    async with LogSession("memory://x", store=store, leaves_store_open=True) as session:
        await session.find_root()
        with pytest.raises(LogNotFoundError):
            session.check_found()
    assert store.closed == 0


async def test_an_opening_that_fails_closes_and_one_that_succeeds_does_not() -> None:
    store = ClosableStore()
    async with LogSession("memory://x", store=store).closed_on_error():
        pass
    assert store.closed == 0
    with pytest.raises(LogNotFoundError):
        async with LogSession("memory://x", store=store).closed_on_error() as session:
            await session.find_root()
            session.check_found()
    assert store.closed == 1
