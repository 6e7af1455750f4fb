"""The probe accepts what keeps its promises and names the promise that a store breaks."""

from __future__ import annotations

import asyncio
import logging

import pytest

from uploader.format.inventory import Part, part_of
from uploader.stores import MemoryStore, PreconditionFailedError, StoredObject
from uploader.stores.probe import (
    PROBE_FOLDER,
    probe_conditional_puts,
    require_conditional_puts,
)
from uploader.testing import FaultyStore, faults
from walstore.errors import StorageUnavailableError, UnsupportedStoreError


class IgnoresCreate(MemoryStore):
    """Put-if-absent overwrites."""

    async def put_if_absent(self, key, data):
        await self.delete([key])
        return await super().put_if_absent(key, data)


class IgnoresMatch(MemoryStore):
    """Put-if-match overwrites whatever is there."""

    async def put_if_match(self, key, data, etag):
        return await super().put_if_match(key, data, (await self.get(key)).etag)


class IgnoresOutdatedMatch(MemoryStore):
    """Put-if-match knows a made-up ETag, but not an outdated one."""

    async def put_if_match(self, key, data, etag):
        if etag.strip("0"):
            etag = (await self.get(key)).etag
        return await super().put_if_match(key, data, etag)


class RefusesItsOwnETag(MemoryStore):
    """As a server that wants quotes around it would."""

    async def put_if_match(self, key, data, etag):
        raise PreconditionFailedError("no such ETag", key=key)


class RefusesToCreate(MemoryStore):
    """Sees objects where there are none."""

    async def put_if_absent(self, key, data):
        raise PreconditionFailedError("exists", key=key)


class GivesAnotherETag(MemoryStore):
    """Reads give another ETag than puts, so a reader could never swap."""

    async def get(self, key):
        return StoredObject((await super().get(key)).data, "another")


class ReadsOldContent(MemoryStore):
    """Reads lag behind, as eventually consistent stores do."""

    async def get(self, key):
        return StoredObject(b"1", (await super().get(key)).etag)


async def folder(store) -> list[str]:
    return [listed.key async for listed in store.list("")]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (IgnoresCreate, "If-None-Match: *"),
        (IgnoresMatch, "a wrong ETag was accepted"),
        (IgnoresOutdatedMatch, "an outdated ETag was accepted"),
        (RefusesItsOwnETag, "the ETag it gave itself"),
        (RefusesToCreate, "refuses to create"),
        (GivesAnotherETag, "does not return what was put last"),
        (ReadsOldContent, "does not return what was put last"),
    ],
)
async def test_a_store_that_breaks_a_promise_is_named_with_it(kind, message):
    store = kind(f"test_probe/{kind.__name__}")
    with pytest.raises(UnsupportedStoreError) as caught:
        await probe_conditional_puts(store)
    assert message in str(caught.value)
    assert store.url in str(caught.value)
    assert await folder(store) == []


async def test_it_costs_six_requests_and_a_delete():
    store = FaultyStore(MemoryStore())
    await probe_conditional_puts(store, probe_id="mine")
    assert {kind: count.requests for kind, count in store.counts.items()} == {
        "put_if_absent": 2,
        "put_if_match": 3,
        "get": 1,
        "delete": 1,
    }


async def test_it_leaves_what_belongs_to_a_log_alone():
    store = FaultyStore(MemoryStore())
    store.on("delete", faults.fail(faults.timeout()))
    await probe_conditional_puts(store, probe_id="mine")
    assert await folder(store) == [f"{PROBE_FOLDER}/mine-1"]


async def test_an_object_that_cannot_be_removed_is_logged(caplog):
    store = FaultyStore(MemoryStore())
    store.on("delete", faults.fail(StorageUnavailableError("no right to", retriable=False)))
    with caplog.at_level(logging.WARNING, logger="uploader"):
        await probe_conditional_puts(store, probe_id="mine")
    assert "mine-1" in caplog.text


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("fault", [faults.fail, faults.happen_then_fail])
async def test_a_passing_fault_anywhere_does_not_disturb_it(impatient, nth, fault):
    """A lost answer to an own put must not be taken for a promise kept or broken."""
    store = FaultyStore(MemoryStore())
    store.on("any", fault(faults.timeout()), nth=nth)
    await probe_conditional_puts(store, retry=impatient)


async def test_an_outage_is_reported_as_such(impatient):
    store = FaultyStore(MemoryStore())
    store.on("any", faults.fail(faults.timeout()), times=100)
    with pytest.raises(StorageUnavailableError) as caught:
        await probe_conditional_puts(store, retry=impatient)
    assert caught.value.retriable
    assert store.requests == 5


async def test_a_read_only_place_shows_at_once(impatient):
    store = FaultyStore(MemoryStore())
    refusal = StorageUnavailableError("no right to put", retriable=False)
    store.on("put_if_absent", faults.fail(refusal))
    with pytest.raises(StorageUnavailableError) as caught:
        await probe_conditional_puts(store, retry=impatient)
    assert caught.value is refusal
    assert store.requests == 1


async def test_a_chain_needs_no_swaps():
    """Then swaps are not tried; what is left must hold all the same."""
    store = FaultyStore(MemoryStore())
    await probe_conditional_puts(store, with_swaps=False)
    assert store.requests == 3
    assert store.count("put_if_match").requests == 0
    assert [listed async for listed in store.inner.list("")] == []


@pytest.mark.parametrize("kind", ["put_if_absent", "put_if_match"])
async def test_a_proxy_that_repeats_a_put_does_not_disturb_it(kind):
    """What it passes on is the refusal of the second one, and the first one was obeyed."""
    for nth in (1, 2) if kind == "put_if_absent" else (1, 2, 3):
        store = FaultyStore(MemoryStore())
        store.on(kind, faults.report("412", happens=True), nth=nth)
        await probe_conditional_puts(store)
        assert await folder(store) == []


class Elsewhere(FaultyStore):
    """A store that outlives this process, and whose place no other store shares."""

    def __init__(self, inner, url="s3://bucket/log"):
        super().__init__(inner)
        self.named = url

    @property
    def url(self):
        return self.named


def lasting(url: str = "s3://bucket/log", objects: MemoryStore | None = None) -> Elsewhere:
    """Return the store as another process sees it: it knows nothing but what lies there."""
    memory = objects or MemoryStore()

    class Unknown:
        """A store of somebody else's, of which nothing is known but the port."""

        url = property(lambda self: "")

    for name in ("get", "get_range", "head", "list", "put_if_absent", "put_if_match", "delete"):
        setattr(Unknown, name, staticmethod(getattr(memory, name)))
    return Elsewhere(Unknown(), url)


def asked(store) -> dict[str, int]:
    return {kind: count.requests for kind, count in store.counts.items()}


PROBE = {"put_if_absent": 2, "put_if_match": 3, "get": 1, "delete": 1}


async def test_a_place_is_probed_once():
    """By many at once, too; wrappers do not matter, and what was proven for swaps holds for creating."""
    memory = MemoryStore()
    stores = [FaultyStore(memory) for _ in range(10)]
    await asyncio.gather(*(require_conditional_puts(store) for store in stores))
    assert [asked(store) for store in stores] == [PROBE] + [{}] * 9
    await require_conditional_puts(stores[5], with_swaps=False)
    assert asked(stores[5]) == {}


async def test_what_creates_may_not_swap():
    memory = MemoryStore()
    store = FaultyStore(memory)
    await require_conditional_puts(store, with_swaps=False)
    await require_conditional_puts(store, with_swaps=True)
    assert store.count("put_if_match").requests == 3


async def test_a_place_that_failed_is_probed_again():
    store = IgnoresCreate()
    for _ in range(2):
        with pytest.raises(UnsupportedStoreError):
            await require_conditional_puts(store)


async def test_a_mark_is_left_for_later_processes():
    """It costs them one request. A new log does not look for it."""
    memory = MemoryStore()
    first = lasting(objects=memory)
    await require_conditional_puts(first, is_new=True)
    assert asked(first) == {**PROBE, "put_if_absent": 3}
    later = lasting(objects=memory)
    await require_conditional_puts(later)
    assert asked(later) == {"get": 1}
    (mark,) = await folder(memory)
    assert part_of(mark) is Part.MARK


async def test_a_mark_holds_for_its_own_url_alone():
    """A copy of the log, mark and all, may lie in a store that ignores conditions."""
    memory = MemoryStore()
    await require_conditional_puts(lasting(objects=memory))
    copied = lasting("s3://other/log", memory)
    await require_conditional_puts(copied)
    assert copied.count("put_if_match").requests == 3


@pytest.mark.parametrize("kind", ["get", "put_if_absent"])
async def test_a_mark_that_cannot_be_read_or_put_is_done_without(kind, impatient):
    store = lasting()
    nth = 1 if kind == "get" else 3
    store.on(kind, faults.fail(StorageUnavailableError("no right to", retriable=False)), nth=nth)
    await require_conditional_puts(store, retry=impatient)
    assert store.count("put_if_match").requests == 3


async def test_a_probe_that_is_given_up_leaves_the_next_one_to_probe():
    memory = MemoryStore()
    store, reached = FaultyStore(memory), asyncio.Event()
    store.on("put_if_match", faults.hang(asyncio.Event(), reached))
    probing = asyncio.create_task(require_conditional_puts(store))
    await reached.wait()
    other = FaultyStore(memory)
    waiting = asyncio.create_task(require_conditional_puts(other))
    probing.cancel()
    await waiting
    assert asked(other) == PROBE
    with pytest.raises(asyncio.CancelledError):
        await probing
