"""How long a store that fails or does not answer is put up with, and how many fragments are sent at once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.cloud import MemorySource
from tests.local import turns
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, hang, timeout
from uploader.write.stall_guard import PutWindow, StallGuard, WindowedStore
from walstore.errors import (
    ContentionError,
    DiskFullError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from walstore.testing import ManualClock

URL = "s3://bucket/log"


@pytest.fixture
def stall_guard(clock: ManualClock) -> StallGuard:
    retry = RetryPolicy(clock=clock, jitter=lambda: 0.0, longest_wait_seconds=1.0)
    return StallGuard(url=URL, retry=retry, clock=clock, silent_seconds=10)


class Answers:
    """A request that fails a number of times."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def sleep_through(clock: ManualClock, task: asyncio.Task[object]) -> list[float]:
    """Move the clock on whenever a task sleeps, until it ends; return when it woke."""
    woke = []
    while not task.done():
        if clock.sleepers:
            clock.advance(0.05)
            woke.append(clock.monotonic())
        await asyncio.sleep(0)
    return woke


async def test_an_answer_is_passed_on(stall_guard: StallGuard) -> None:
    request = Answers()
    assert await stall_guard.call(request) == "done"
    assert request.asked == 1


@pytest.mark.parametrize("error", [timeout(), timeout("not_written"), OutcomeUnknownError("?")])
async def test_what_may_pass_is_waited_out(
    stall_guard: StallGuard, clock: ManualClock, error: Exception
) -> None:
    """With growing pauses, for as long as it takes; an outcome that is unknown is asked for again."""
    request = Answers(*[error] * 30)
    task = asyncio.create_task(stall_guard.call(request))
    await sleep_through(clock, task)
    assert task.result() == "done"
    assert clock.monotonic() == pytest.approx(0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 25)


@pytest.mark.parametrize(
    "error",
    [StorageUnavailableError("forbidden", retriable=False), ContentionError("!"), ValueError("!")],
)
async def test_what_does_not_pass_is_raised_at_once(
    stall_guard: StallGuard, error: Exception
) -> None:
    request = Answers(error)
    with pytest.raises(type(error)):
        await stall_guard.call(request)
    assert request.asked == 1


async def test_what_somebody_has_to_end_is_asked_for_with_long_pauses(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """If somebody is there to be told; each time."""
    retry = RetryPolicy(clock=clock, longest_wait_seconds=2.0)
    told: list[Exception] = []
    stall_guard = StallGuard(
        url=URL, retry=retry, clock=clock, silent_seconds=10, on_refusal=told.append
    )
    errors = [
        StorageUnavailableError("forbidden", retriable=False),
        DiskFullError("no space"),
        *[StorageUnavailableError("forbidden", retriable=False)] * 6,
    ]
    task = asyncio.create_task(stall_guard.call(Answers(*errors)))
    await sleep_through(clock, task)
    assert task.result() == "done"
    assert told == errors
    assert clock.monotonic() == pytest.approx(2 + 4 + 8 + 16 + 32 + 60 + 60 + 60)
    assert "forbidden; trying again (attempt 1)" in caplog.messages


async def test_work_is_guarded_against_silence(stall_guard: StallGuard, clock: ManualClock) -> None:
    """It ends as it ends, with its own error; if the store does nothing it is cancelled."""
    assert await stall_guard.guard(Answers()) == "done"
    with pytest.raises(ContentionError):
        await stall_guard.guard(Answers(ContentionError("!")))
    assert clock.sleepers == 0

    async def hang() -> None:
        await stall_guard.call(asyncio.Event().wait)

    task = asyncio.create_task(stall_guard.guard(hang))
    await turns()
    await sleep_through(clock, task)
    assert isinstance(task.exception(), StorageUnavailableError)


async def test_a_long_outage_is_not_told_at_every_attempt(
    stall_guard: StallGuard, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "walstore"):
        task = asyncio.create_task(stall_guard.call(Answers(*[timeout()] * 100)))
        await sleep_through(clock, task)
    attempts = [message.rpartition(" ")[2] for message in caplog.messages]
    assert attempts == ["1)", "2)", "4)", "8)", "16)", "32)", "64)"]


class Draining:
    """A patience with its watcher running over a source."""

    def __init__(self, stall_guard: StallGuard, clock: ManualClock) -> None:
        self.stall_guard = stall_guard
        self.clock = clock
        self.source = MemorySource()
        self.watcher = asyncio.create_task(stall_guard.run_out(self.source))

    async def silence(self, *, until: float) -> None:
        """Let the clock run in small steps."""
        while self.clock.monotonic() < until and not self.watcher.done():
            self.clock.advance(0.25)
            await turns()


@pytest.fixture
async def draining(stall_guard: StallGuard, clock: ManualClock):
    found = Draining(stall_guard, clock)
    yield found
    found.watcher.cancel()
    await asyncio.wait((found.watcher,))


async def test_an_open_log_never_gives_up(draining: Draining, stall_guard: StallGuard) -> None:
    hanging = asyncio.create_task(stall_guard.call(asyncio.Event().wait))
    await draining.silence(until=1000)
    assert not draining.watcher.done()
    hanging.cancel()


@pytest.mark.parametrize("fails", [False, True], ids=["hangs", "fails"])
async def test_a_closing_log_gives_up_on_a_store_that_does_nothing(
    draining: Draining, stall_guard: StallGuard, fails: bool
) -> None:
    """A request that hangs is as bad as one that fails, and time before the closing does not count."""
    request = Answers(*[timeout()] * 1000) if fails else asyncio.Event().wait
    hanging = asyncio.create_task(stall_guard.call(request))
    await draining.silence(until=100)
    draining.source.drain()
    await turns()
    await draining.silence(until=109.75)
    assert not draining.watcher.done()
    await draining.silence(until=110.25)
    error = draining.watcher.exception()
    assert isinstance(error, StorageUnavailableError)
    assert error.retriable
    assert str(error).startswith(f"{URL} fulfilled no request for 10 s while the log was closing")
    assert (error.__cause__ is not None) == fails
    hanging.cancel()


async def test_a_closing_log_waits_as_long_as_there_is_progress(
    draining: Draining, stall_guard: StallGuard, clock: ManualClock
) -> None:
    """Any answer counts, also if other requests wait all the time; so does a pause without requests."""
    draining.source.drain()
    hanging = asyncio.create_task(stall_guard.call(asyncio.Event().wait))
    for _ in range(5):
        await draining.silence(until=clock.monotonic() + 8)
        await stall_guard.call(Answers())
    assert not draining.watcher.done()
    hanging.cancel()
    await draining.silence(until=clock.monotonic() + 60)
    assert not draining.watcher.done()
    hanging = asyncio.create_task(stall_guard.call(asyncio.Event().wait))
    await turns()
    began = clock.monotonic()
    await draining.silence(until=began + 60)
    assert draining.watcher.done()
    assert clock.monotonic() == pytest.approx(began + 10, abs=0.5)
    hanging.cancel()


async def test_no_patience_at_all(clock: ManualClock) -> None:
    stall_guard = StallGuard(url=URL, retry=RetryPolicy(clock=clock), clock=clock, silent_seconds=0)
    draining = Draining(stall_guard, clock)
    draining.source.drain()
    hanging = asyncio.create_task(stall_guard.call(asyncio.Event().wait))
    with pytest.raises(StorageUnavailableError):
        await draining.watcher
    hanging.cancel()


async def test_a_cancelled_call_leaves_nothing_behind(
    draining: Draining, stall_guard: StallGuard
) -> None:
    hanging = asyncio.create_task(stall_guard.call(asyncio.Event().wait))
    await turns()
    hanging.cancel()
    await asyncio.wait((hanging,))
    draining.source.drain()
    await draining.silence(until=1000)
    assert not draining.watcher.done()


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
