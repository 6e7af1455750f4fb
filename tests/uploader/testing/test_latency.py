"""Delays pass on the clock that is given, half before and half after, and by kind."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from uploader.stores import MemoryStore, ObjectNotFoundError
from uploader.testing import LatencyStore
from uploader.testing.latency import fixed, lognormal
from walstore.errors import InvalidSettingsError


async def listed(store) -> list[str]:
    return [each.key async for each in store.list("")]


async def test_half_passes_on_either_way(clock):
    """What is put is there before its writer knows."""
    memory = MemoryStore()
    store = LatencyStore(memory, fixed(0.1), clock=clock)
    async with asyncio.TaskGroup() as group:
        putting = group.create_task(store.put_if_absent("a", b"1"))
        await clock.wait_for_sleepers()
        clock.advance(0.049)
        assert await memory.head("a") is None
        clock.advance(0.001)
        await clock.wait_for_sleepers()
        assert await memory.head("a") is not None
        clock.advance(0.049)
        assert clock.sleepers == 1
        clock.advance(0.001)
    assert putting.result()
    assert clock.monotonic() == pytest.approx(0.1)


async def test_errors_take_as_long(instant_clock):
    store = LatencyStore(MemoryStore(), fixed(0.1), clock=instant_clock)
    with pytest.raises(ObjectNotFoundError):
        await store.get("a")
    assert instant_clock.waits == [0.05, 0.05]


async def test_kinds_that_are_not_named_take_no_time(instant_clock):
    store = LatencyStore(MemoryStore(), {"head": fixed(4), "list": fixed(3)}, clock=instant_clock)
    await store.put_if_absent("a", b"1")
    assert instant_clock.waits == []
    await store.head("a")
    assert await listed(store) == ["a"]
    await store.delete(["a"])
    assert await listed(store) == []
    assert instant_clock.waits == [2, 2, 3, 3]


async def test_content_takes_time(instant_clock):
    store = LatencyStore(MemoryStore(), fixed(1), bytes_per_second=10, clock=instant_clock)
    await store.put_if_absent("a", b"1234567890")
    await store.get("a")
    await store.get_range("a", 0, 5)
    assert instant_clock.waits == [1.5, 0.5, 0.5, 1.5, 0.5, 1.0]


async def test_a_long_listing_takes_more(instant_clock):
    memory = MemoryStore()
    for number in range(1001):
        await memory.put_if_absent(f"{number:04}", b"")
    store = LatencyStore(memory, fixed(1), clock=instant_clock)
    assert len(await listed(store)) == 1001
    assert instant_clock.waits == [1, 1]


def test_lognormal_latencies():
    """Half below the median, and the tail where it belongs."""
    chances = itertools.cycle([0.0, 0.5, 0.99])
    latency = lognormal(0.03, 0.5, chance=lambda: next(chances))
    lowest, median, high = latency(), latency(), latency()
    assert 0 < lowest < median
    assert median == pytest.approx(0.03)
    assert high == pytest.approx(0.03 * 3.2, rel=0.01)
    assert lognormal(0.03, 0, chance=lambda: 0.9)() == pytest.approx(0.03)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fixed(-1),
        lambda: fixed(float("inf")),
        lambda: lognormal(0, 1, chance=lambda: 0.5),
        lambda: lognormal(1, -1, chance=lambda: 0.5),
    ],
)
def test_ranges_are_checked(make):
    with pytest.raises(InvalidSettingsError):
        make()
