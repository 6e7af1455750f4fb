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


class LateClock:
    """Never waits, but its sleeps pass later than they should, by what it is told for each."""

    def __init__(self, *late: float) -> None:
        self.waits: list[float] = []
        self._late = [*late]
        self._now = 1000.0

    def now_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._now += seconds + (self._late.pop(0) if self._late else 0)


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


async def test_what_the_clock_was_late_is_made_up_for_on_the_way_back():
    clock = LateClock(0.004)
    store = LatencyStore(MemoryStore(), fixed(0.1), clock=clock)
    assert await store.put_if_absent("a", b"1")
    assert clock.waits == pytest.approx([0.05, 0.046])
    assert clock.monotonic() == pytest.approx(1000.1)


async def test_errors_take_no_longer_if_the_clock_is_late():
    clock = LateClock(0.004)
    store = LatencyStore(MemoryStore(), fixed(0.1), clock=clock)
    with pytest.raises(ObjectNotFoundError):
        await store.get("a")
    assert clock.waits == pytest.approx([0.05, 0.046])
    assert clock.monotonic() == pytest.approx(1000.1)


async def test_content_takes_its_time_although_the_clock_was_late():
    clock = LateClock(0.25, 0, 0.25)
    store = LatencyStore(MemoryStore(), fixed(1), bytes_per_second=10, clock=clock)
    await store.put_if_absent("a", b"1234567890")
    assert clock.waits == pytest.approx([1.5, 0.25])
    await store.get("a")
    assert clock.waits[2:] == pytest.approx([0.5, 1.25])
    assert clock.monotonic() == pytest.approx(1004)


async def test_a_clock_that_was_later_than_the_whole_request_adds_no_wait():
    clock = LateClock(3, 0, 3)
    store = LatencyStore(MemoryStore(), {"put_if_absent": fixed(0.1)}, clock=clock)
    await store.put_if_absent("a", b"1")
    assert clock.waits == [0.05]
    await store.put_if_absent("b", b"1")
    assert clock.waits == pytest.approx([0.05, 0.05, 0.05])


async def test_what_one_request_was_late_another_does_not_make_up_for():
    """The clock is late on the way back: nobody can know before."""
    clock = LateClock(0, 0.004)
    store = LatencyStore(MemoryStore(), fixed(0.1), clock=clock)
    await store.put_if_absent("a", b"1")
    await store.head("a")
    assert clock.waits == pytest.approx([0.05] * 4)
    assert clock.monotonic() == pytest.approx(1000.204)


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
