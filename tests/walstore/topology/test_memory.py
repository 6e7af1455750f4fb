"""MemoryKeyValues: leases that end by its clock, and clients that are cut off."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until
from walstore.errors import OutcomeUnknownError, StorageUnavailableError, WalClosedError
from walstore.testing import ManualClock
from walstore.topology.key_values import Event, Events, LeaseLostError
from walstore.topology.memory import MemoryKeyValues


@pytest.fixture
def store(clock: ManualClock) -> MemoryKeyValues:
    return MemoryKeyValues(clock)


async def test_a_watch_wakes_when_a_lease_ends(store: MemoryKeyValues, clock: ManualClock) -> None:
    client = store.client()
    lease = await client.grant(10)
    await client.swap("k", b"1", expected=0, lease=lease)
    watch = client.watch("", after=store.revision)
    async with asyncio.TaskGroup() as group:
        told = group.create_task(_next(watch))
        await clock.wait_for_sleepers()
        clock.advance(4)
        assert await client.keep_alive(lease) == 10
        clock.advance(6)
        await until(lambda: clock.sleepers == 1)  # it woke, and sleeps again
        assert await client.get("k") is not None
        clock.advance(4)
        assert await told == [Event("k", None, 3)]
    await watch.aclose()
    assert clock.sleepers == 0
    assert store.leases == []


async def test_a_watch_that_waits_learns_of_a_new_lease(
    store: MemoryKeyValues, clock: ManualClock
) -> None:
    client = store.client()
    async with asyncio.TaskGroup() as group:
        told = group.create_task(_next(client.watch("k", after=1)))
        for _ in range(3):
            await asyncio.sleep(0)
        lease = await client.grant(3)
        await client.swap("other", b"1", expected=0, lease=lease)
        shorter = await client.grant(1)
        swap = await client.swap("k", b"1", expected=0, lease=shorter)
        assert await told == [Event("k", swap.found, swap.revision)]
        told = group.create_task(_next(client.watch("", after=swap.revision)))
        await clock.wait_for_sleepers()
        clock.advance(1)
        assert await told == [Event("k", None, 4)]


async def test_leases_end_in_order(store: MemoryKeyValues, clock: ManualClock) -> None:
    client = store.client()
    for name, ttl_seconds in (("c", 3), ("a", 1), ("b", 2)):
        await client.swap(name, b"", expected=0, lease=await client.grant(ttl_seconds))
    clock.advance(0.999_999)
    assert list((await client.list("")).items) == ["a", "b", "c"]
    clock.advance(5)
    watch = client.watch("", after=4)
    assert [(event.key, event.revision) for event in await anext(watch)] == [
        ("a", 5),
        ("b", 6),
        ("c", 7),
    ]
    await watch.aclose()


async def test_a_client_that_is_cut_off(store: MemoryKeyValues) -> None:
    client, other = store.client("m1"), store.client("m2")
    watch = client.watch("", after=1)
    async with asyncio.TaskGroup() as group:
        told = group.create_task(_next(watch))
        client.cut_off = True
        with pytest.raises(StorageUnavailableError, match="m1") as caught:
            await client.get("k")
        assert caught.value.outcome == "not_written"
        with pytest.raises(StorageUnavailableError):
            await client.swap("k", b"no", expected=0)
        swap = await other.swap("k", b"1", expected=0)
        assert swap.happened
        assert not told.done()
        client.cut_off = False
        assert await told == [Event("k", swap.found, swap.revision)]
    assert await client.get("k") == swap.found
    await watch.aclose()


async def test_a_client_that_hangs(store: MemoryKeyValues) -> None:
    client = store.client()
    client.hangs = True
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(client.swap("k", b"1", expected=0))
        stopped = group.create_task(client.get("k"))
        await store.client().swap("other", b"1", expected=0)
        assert not waiting.done()
        stopped.cancel()
        client.hangs = False
        assert (await waiting).happened
    client.hangs = True
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_closed(client.get("k")))
        await asyncio.sleep(0)
        await client.aclose()
    assert waiting.done()


async def test_a_lost_answer(store: MemoryKeyValues) -> None:
    client = store.client()
    client.loses_answers = True
    with pytest.raises(OutcomeUnknownError):
        await client.swap("k", b"1", expected=0)
    with pytest.raises(StorageUnavailableError):
        await client.grant(1)
    client.loses_answers = False
    assert (await client.get("k")) is not None
    assert len(store.leases) == 1


async def test_a_cut_during_a_swap_leaves_it_open(store: MemoryKeyValues) -> None:
    client = store.client()
    async with asyncio.TaskGroup() as group:
        swap = group.create_task(_unknown(client.swap("k", b"1", expected=0)))
        await until(lambda: store.revision == 2)
        client.cut_off = True
    assert swap.done()


async def test_compacting(store: MemoryKeyValues) -> None:
    for revision in (0, 2):
        with pytest.raises(ValueError, match="compacted"):
            store.compact(revision)
    store.compact(1)
    assert store.events("", 0) == []


async def test_a_revoked_lease_is_lost(store: MemoryKeyValues) -> None:
    client = store.client()
    lease = await client.grant(1)
    await client.revoke(lease)
    assert store.revision == 1  # it had no keys
    with pytest.raises(LeaseLostError):
        await client.keep_alive(lease)


async def _next(watch) -> Events:
    return await anext(watch)


async def _closed(call) -> None:
    with pytest.raises(WalClosedError):
        await call


async def _unknown(call) -> None:
    with pytest.raises(OutcomeUnknownError):
        await call
