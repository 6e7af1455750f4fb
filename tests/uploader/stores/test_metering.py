"""Every request and byte is counted once, answers are timed, and prices are applied."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from uploader.stores import (
    MemoryStore,
    MeteredStore,
    ObjectNotFoundError,
    PreconditionFailedError,
    Prices,
    RetryingStore,
    Usage,
)
from uploader.stores.metering import LATENCY_BOUNDS_SECONDS, LISTED_BYTES, KindUsage
from uploader.testing import FaultyStore, LatencyStore, faults
from uploader.testing.latency import fixed
from walstore.errors import InvalidSettingsError, StorageUnavailableError


@pytest.fixture
def inner() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def store(inner) -> MeteredStore:
    return MeteredStore(inner)


async def listed(store) -> int:
    return len([each async for each in store.list("")])


async def test_requests_and_bytes_by_kind(store):
    assert store.usage() == Usage({})
    etag = await store.put_if_absent("a", b"12345")
    await store.put_if_match("a", b"1234567", etag)
    await store.get("a")
    await store.get_range("a", 5, 100)
    await store.head("a")
    await listed(store)
    await store.delete(["a", "b", "c"])
    used = store.usage()
    found = {
        kind: (of.requests, of.sent_bytes, of.received_bytes) for kind, of in used.kinds.items()
    }
    assert found == {
        "put_if_absent": (1, 5, 0),
        "put_if_match": (1, 7, 0),
        "get": (1, 0, 7),
        "get_range": (1, 0, 2),
        "head": (1, 0, 0),
        "list": (1, 0, LISTED_BYTES + 1),
        "delete": (3, 0, 0),
    }
    assert (used.requests, used.sent_bytes) == (9, 12)
    assert used.received_bytes == 9 + LISTED_BYTES + 1
    assert all(sum(of.latency_counts) == 1 for of in used.kinds.values())


async def test_a_snapshot_stays_as_it_is(store):
    await store.put_if_absent("a", b"1")
    before = store.usage()
    await store.put_if_absent("b", b"1")
    assert before.of("put_if_absent").requests == 1
    assert store.usage().of("put_if_absent").requests == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.of("get").requests = 7  # type: ignore[misc]


async def test_answers_are_no_failures(store):
    await store.put_if_absent("a", b"1")
    with pytest.raises(PreconditionFailedError):
        await store.put_if_absent("a", b"1")
    with pytest.raises(ObjectNotFoundError):
        await store.get("b")
    assert (store.usage().of("put_if_absent").requests, store.usage().of("get").requests) == (2, 1)
    assert sum(of.failures for of in store.usage().kinds.values()) == 0


async def test_failures_count_as_requests(store, inner):
    inner.on("any", faults.fail(faults.timeout()), times=3)
    for call in (store.get("a"), store.delete(["a"]), listed(store)):
        with pytest.raises(StorageUnavailableError):
            await call
    assert store.usage().requests == 3
    assert sum(of.failures for of in store.usage().kinds.values()) == 3


async def test_what_is_above_is_seen_and_what_is_below_is_not(inner, impatient):
    below = MeteredStore(inner)
    above = MeteredStore(RetryingStore(below, impatient))
    inner.on("get", faults.fail(faults.timeout()), times=2)
    await inner.put_if_absent("a", b"1")
    await above.get("a")
    assert (below.usage().requests, above.usage().requests) == (3, 1)


async def test_a_call_that_is_given_up(store, inner):
    reached = asyncio.Event()
    inner.on("get", faults.hang(asyncio.Event(), reached))
    reading = asyncio.create_task(store.get("a"))
    await reached.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    used = store.usage().of("get")
    assert (used.requests, used.cancelled, used.failures) == (1, 1, 0)
    assert sum(used.latency_counts) == 0


@pytest.mark.parametrize(
    ("objects", "requests"), [(0, 1), (100, 1), (101, 2), (1100, 2), (1101, 3)]
)
async def test_a_listing_is_a_request_for_each_page(store, inner, objects, requests):
    for number in range(objects):
        await inner.inner.put_if_absent(f"{number:05}", b"")
    assert await listed(store) == objects
    assert store.usage().of("list").requests == requests


async def test_a_listing_that_is_left_early_is_counted_so_far(store, inner):
    for number in range(200):
        await inner.inner.put_if_absent(f"{number:05}", b"")
    async for each in store.list(""):
        if each.key == "00009":
            break
    used = store.usage().of("list")
    assert (used.requests, used.received_bytes) == (1, 10 * (LISTED_BYTES + 5))


async def test_latencies(instant_clock):
    memory = MemoryStore()
    await memory.put_if_absent("a", b"1")
    delays = iter([0.002, 0.002, 0.02, 3.0])
    store = MeteredStore(
        LatencyStore(memory, lambda: next(delays), clock=instant_clock), clock=instant_clock
    )
    for _ in range(4):
        await store.get("a")
    used = store.usage().of("get")
    assert used.total_seconds == pytest.approx(3.024)
    assert used.longest_seconds == pytest.approx(3.0)
    assert used.latency_seconds(0.5) == 0.0025
    assert used.latency_seconds(0.75) == 0.025
    assert used.latency_seconds(1.0) == pytest.approx(3.0)
    assert KindUsage().latency_seconds(0.5) == 0.0


async def test_beyond_the_last_bound(instant_clock):
    store = MeteredStore(
        LatencyStore(MemoryStore(), fixed(100), clock=instant_clock), clock=instant_clock
    )
    await store.head("a")
    assert store.usage().of("head").latency_counts[-1] == 1
    assert store.usage().of("head").latency_seconds(0.5) == 100
    assert len(LATENCY_BOUNDS_SECONDS) + 1 == len(KindUsage().latency_counts)


def test_what_it_would_cost():
    used = Usage(
        {
            "put_if_absent": KindUsage(requests=1000, sent_bytes=3 * 10**9),
            "put_if_match": KindUsage(requests=2000),
            "get": KindUsage(requests=10_000, received_bytes=10**9),
            "get_range": KindUsage(requests=10_000, received_bytes=10**9),
            "head": KindUsage(requests=10_000),
            "list": KindUsage(requests=1000),
            "delete": KindUsage(requests=1000),
        }
    )
    assert used.cost() == pytest.approx(3 * 0.005 + 30 * 0.0004 + 0.005)
    dear = Prices(
        per_1000_puts=1,
        per_1000_gets=0,
        per_1000_lists=10,
        per_1000_deletes=100,
        per_gb_received=1000,
        per_gb_sent=10_000,
    )
    assert used.cost(dear) == pytest.approx(3 + 10 + 100 + 2000 + 30_000)
    assert Usage({}).cost() == 0


def test_prices_are_not_negative():
    with pytest.raises(InvalidSettingsError, match="per_1000_puts"):
        Prices(per_1000_puts=-1)
