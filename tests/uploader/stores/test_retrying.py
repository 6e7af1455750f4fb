"""Reads, listings and deletes are repeated; conditional puts are made exactly once."""

from __future__ import annotations

import pytest

from tests.cloud import copy_store
from uploader.stores import MemoryStore, ObjectNotFoundError, RetryingStore
from uploader.testing import FaultyStore, faults
from walstore.errors import StorageUnavailableError


@pytest.fixture
async def inner() -> FaultyStore:
    memory = MemoryStore()
    for number in range(5):
        await memory.put_if_absent(f"a/{number}", b"%d" % number)
    return FaultyStore(memory)


@pytest.fixture
def store(inner, impatient) -> RetryingStore:
    return RetryingStore(inner, impatient)


async def listed(store, after=None) -> list[str]:
    return [each.key async for each in store.list("a/", after=after)]


REPEATED = {
    "get": lambda store: store.get("a/1"),
    "get_range": lambda store: store.get_range("a/1", 0, 1),
    "head": lambda store: store.head("a/1"),
    "list": listed,
    "delete": lambda store: store.delete(iter(["a/1", "a/2"])),
}


@pytest.mark.parametrize("kind", REPEATED)
@pytest.mark.parametrize("fault", [faults.fail, faults.happen_then_fail])
async def test_passing_faults_are_waited_out(store, inner, instant_clock, kind, fault):
    expected = await REPEATED[kind](await copy_store(inner.inner))
    inner.on(kind, fault(faults.timeout()), times=4)
    assert await REPEATED[kind](store) == expected
    assert inner.count(kind).requests == 5
    assert len(instant_clock.waits) == 4


@pytest.mark.parametrize("kind", REPEATED)
async def test_attempts_are_bounded(store, inner, kind):
    error = faults.timeout()
    inner.on(kind, faults.fail(error), times=5)
    with pytest.raises(StorageUnavailableError) as caught:
        await REPEATED[kind](store)
    assert caught.value is error
    assert inner.count(kind).requests == 5


@pytest.mark.parametrize("kind", REPEATED)
async def test_faults_for_good_are_not_repeated(store, inner, kind):
    inner.on(kind, faults.fail(StorageUnavailableError("no right to", retriable=False)))
    with pytest.raises(StorageUnavailableError):
        await REPEATED[kind](store)
    assert inner.count(kind).requests == 1


async def test_answers_are_not_repeated(store, inner):
    with pytest.raises(ObjectNotFoundError):
        await store.get("gone")
    assert inner.count("get").requests == 1


async def test_conditional_puts_are_made_once(store, inner):
    etag = (await store.get("a/0")).etag
    for kind, put in {
        "put_if_absent": lambda: store.put_if_absent("b", b"1"),
        "put_if_match": lambda: store.put_if_match("a/0", b"1", etag),
    }.items():
        inner.on(kind, faults.fail(faults.timeout()))
        with pytest.raises(StorageUnavailableError):
            await put()
        assert inner.count(kind).requests == 1


class Breaking(MemoryStore):
    """Listings break after two objects each, ``breaks`` times."""

    breaks = 0

    async def list(self, prefix, *, after=None):
        count = 0
        async for each in super().list(prefix, after=after):
            if count == 2 and self.breaks:
                self.breaks -= 1
                raise StorageUnavailableError("cut off")
            count += 1
            yield each


async def test_a_listing_goes_on_where_it_was_cut_off(impatient):
    """Nothing is left out and nothing comes twice, however often; each part has all attempts."""
    inner = Breaking()
    for number in range(20):
        await inner.put_if_absent(f"a/{number:02}", b"")
    inner.breaks = 8
    expected = [f"a/{number:02}" for number in range(20)]
    assert await listed(RetryingStore(inner, impatient)) == expected
    assert inner.breaks == 0
    assert await listed(RetryingStore(inner, impatient), "a/03") == expected[4:]
