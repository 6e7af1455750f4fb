"""How many fragments are sent at once follows how long it takes."""

from __future__ import annotations

import asyncio

import pytest

from tests.local import turns
from uploader.stores.memory import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, hang, timeout
from uploader.write.put_window import PutWindow, WindowedStore
from walstore.errors import StorageUnavailableError
from walstore.testing import ManualClock


class Bench:
    """Puts that end when a test says so."""

    def __init__(self, clock: ManualClock, most: int = 8) -> None:
        self.clock = clock
        self.window = PutWindow(most, clock)
        self.inner = FaultyStore(MemoryStore())
        self.store = WindowedStore(self.inner, self.window)
        self.puts: list[asyncio.Task[str]] = []
        self.gates: list[asyncio.Event] = []
        self.under_way = 0

    async def put(self, count: int = 1) -> None:
        """Begin puts; those that have a turn hang."""
        for _ in range(count):
            gate = asyncio.Event()
            self.gates.append(gate)
            self.inner.on("put_if_absent", hang(gate))
            key = f"k{len(self.puts)}"
            self.puts.append(asyncio.create_task(self.store.put_if_absent(key, b"x")))
        await turns()

    async def end(self, count: int = 1) -> None:
        """Let the oldest puts succeed."""
        for gate in self.gates[:count]:
            gate.set()
        del self.gates[:count]
        await turns()

    @property
    def sent(self) -> int:
        """Puts that the store was asked for so far."""
        return self.inner.count("put_if_absent").requests


@pytest.fixture
def bench(clock: ManualClock) -> Bench:
    return Bench(clock)


async def test_it_begins_small_and_grows_while_puts_are_quick(bench: Bench) -> None:
    await bench.put(20)
    assert bench.sent == 4
    bench.clock.advance(0.1)
    await bench.end(1)
    assert bench.sent == 4 + 2
    await bench.end(3)
    assert bench.sent == 4 + 8
    await bench.end(8)
    assert bench.window.allowed == 8
    await bench.end(8)
    await asyncio.gather(*bench.puts)


async def test_it_falls_once_for_puts_that_were_slow_together(bench: Bench) -> None:
    bench.window.allowed = 8
    await bench.put(12)
    assert bench.sent == 8
    bench.clock.advance(6)
    await bench.end(8)
    assert bench.window.allowed == 4
    assert bench.sent == 12
    bench.clock.advance(4)  # neither quick nor slow
    await bench.end(4)
    assert bench.window.allowed == 4


async def test_one_is_always_sent(bench: Bench) -> None:
    for _ in range(5):
        await bench.put()
        bench.clock.advance(100)
        await bench.end()
    assert bench.window.allowed == 1
    assert bench.sent == 5


async def test_what_is_given_up_begins_small_again(bench: Bench) -> None:
    bench.window.allowed = 8
    await bench.put(8)
    bench.clock.advance(30)
    for put in bench.puts:
        put.cancel()
    await asyncio.wait(bench.puts)
    assert bench.window.allowed == 1


async def test_a_quick_fault_halves_it(bench: Bench) -> None:
    bench.window.allowed = 8
    bench.inner.on("put_if_absent", fail(timeout()))
    with pytest.raises(StorageUnavailableError):
        await bench.store.put_if_absent("k", b"x")
    assert bench.window.allowed == 4


async def test_who_is_cancelled_while_waiting_leaves_its_turn_to_others(bench: Bench) -> None:
    bench.window.allowed = 2
    await bench.put(4)
    bench.puts[2].cancel()
    await bench.end(1)
    bench.puts[3].cancel()  # it has a turn
    await turns()
    await bench.end(3)
    await bench.put(2)
    await bench.end(2)
    ended = await asyncio.gather(*bench.puts, return_exceptions=True)
    assert [isinstance(one, str) for one in ended] == [True, True, False, False, True, True]


async def test_only_puts_take_turns(bench: Bench) -> None:
    await bench.put(5)
    assert await bench.store.head("k0") is None
    assert [listed async for listed in bench.store.list("")] == []
    await bench.end(5)
    await asyncio.gather(*bench.puts)
