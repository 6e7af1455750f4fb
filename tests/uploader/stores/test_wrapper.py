"""A wrapper is a store: it passes everything on, and closes what it wraps."""

from __future__ import annotations

import pytest

from uploader.stores import HedgedStore, LocalStore, MeteredStore, RetryingStore, StoreWrapper
from uploader.testing import FaultyStore, LatencyStore
from uploader.testing.latency import fixed
from walstore.errors import WalClosedError

WRAPPERS = {
    "plain": StoreWrapper,
    "hedged": HedgedStore,
    "retrying": RetryingStore,
    "metered": MeteredStore,
    "faulty": FaultyStore,
    "latency": lambda inner: LatencyStore(inner, fixed(0)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
async def test_the_url_is_that_of_the_inner_store_and_closing_closes_it(wrap, tmp_path):
    inner = LocalStore(tmp_path)
    store = wrap(inner)
    assert store.url == inner.url
    assert repr(inner) in repr(store)
    await store.aclose()
    with pytest.raises(WalClosedError):
        await inner.get("a")
    await store.aclose()
