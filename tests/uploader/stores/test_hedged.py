"""Second requests: when they are sent, how many, which answer counts, and whose put a refusal is about."""

from __future__ import annotations

import asyncio
import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.root import cas
from uploader.stores import (
    HedgedStore,
    HedgeSettings,
    MemoryStore,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoredObject,
)
from uploader.stores.hedged import Latencies
from uploader.testing import FaultyStore, LatencyStore, StoreKilled, faults
from uploader.testing.latency import fixed
from walstore.errors import InvalidSettingsError, StorageUnavailableError
from walstore.testing import ManualClock

SAMPLES = 5
SETTINGS = HedgeSettings(
    least_samples=SAMPLES,
    window=10,
    least_wait_seconds=0.1,
    hedges_per_second=0.5,
    settle_seconds=3,
)


@pytest.fixture
def inner() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def store(inner: FaultyStore, clock: ManualClock) -> HedgedStore:
    """A store that knows its latencies: a request is late after 0.1 s."""
    return await trained(HedgedStore(inner, SETTINGS, clock=clock))


async def trained(store: HedgedStore) -> HedgedStore:
    """Make enough requests of each kind; objects of one byte."""
    await store.inner.put_if_absent("known", b"1")
    for number in range(SAMPLES):
        await store.put_if_absent(f"sample/{number}", b"1")
        await store.get("known")
        await store.get_range("known", 0, 1)
        await store.head("known")
    return store


class Hang:
    """Lets calls of one kind hang in turn, with an event for each that is under way."""

    def __init__(self, inner: FaultyStore, kind, count: int, fault=faults.hang) -> None:
        self.release = [asyncio.Event() for _ in range(count)]
        self.reached = [asyncio.Event() for _ in range(count)]
        for release, reached in zip(self.release, self.reached, strict=True):
            inner.on(kind, fault(release, reached))


async def late(clock: ManualClock, seconds: float = 0.1) -> None:
    """Let the time pass after which a request is late."""
    await clock.wait_for_sleepers()
    clock.advance(seconds)


READS = {
    "get": lambda store: store.get("known"),
    "get_range": lambda store: store.get_range("known", 0, 1),
    "head": lambda store: store.head("known"),
}


@pytest.mark.parametrize("kind", READS)
async def test_a_late_read_is_overtaken(store, inner, clock, kind):
    """The second request answers; the first is cancelled."""
    before = inner.count(kind).requests
    hang = Hang(inner, kind, 1)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(READS[kind](store))
        await hang.reached[0].wait()
        await late(clock)
    assert reading.result() == await READS[kind](inner)
    assert inner.count(kind).requests - before == 3
    assert store.statistics().hedges == store.statistics().wins == 1


async def test_the_first_may_still_win(store, inner, clock):
    hang = Hang(inner, "get", 2)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(store.get("known"))
        await late(clock)
        await hang.reached[1].wait()
        hang.release[0].set()
    assert reading.result().data == b"1"
    assert (store.statistics().hedges, store.statistics().wins) == (1, 0)


async def test_nothing_is_hedged_before_it_is_late(store, inner, clock):
    hang = Hang(inner, "get", 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(store.get("known"))
        await late(clock, 0.09)
        hang.release[0].set()
    assert store.statistics().late == 0


async def test_nothing_is_hedged_before_latencies_are_known(inner, clock):
    store = HedgedStore(inner, SETTINGS, clock=clock)
    assert store.late_after_seconds("get") is None
    await inner.put_if_absent("known", b"1")
    hang = Hang(inner, "get", 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(store.get("known"))
        await hang.reached[0].wait()
        clock.advance(1000)
        assert clock.sleepers == 0
        hang.release[0].set()
    assert inner.count("get").requests == 1


async def test_swaps_deletes_and_listings_are_never_sent_twice(store, inner, clock):
    etag = (await store.get("known")).etag
    calls = {
        "put_if_match": lambda: store.put_if_match("known", b"2", etag),
        "delete": lambda: store.delete(["known"]),
        "list": lambda: anext(store.list(""), None),
    }
    for kind, make in calls.items():
        hang = Hang(inner, kind, 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(make())
            await hang.reached[0].wait()
            clock.advance(1000)
            assert clock.sleepers == 0
            hang.release[0].set()
        assert inner.count(kind).requests == 1


async def test_puts_can_be_left_alone(inner, clock):
    settings = HedgeSettings(least_samples=1, hedges_puts=False)
    store = await trained(HedgedStore(inner, settings, clock=clock))
    assert store.late_after_seconds("put_if_absent", 1) is None


# -- the budget ------------------------------------------------------------------------------


async def test_the_budget_bounds_second_requests(store, inner, clock):
    """Half a hedge per second: of ten late requests one is hedged at once, the next after 2 s."""
    before = inner.count("get").requests
    hang = Hang(inner, "get", 30)
    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(store.get("known"))
        for passed, hedges in ((0.1, 1), (1.9, 1), (0.1, 2), (2, 3)):
            await clock.wait_for_sleepers(10 - store.statistics().hedges)
            clock.advance(passed)
            if store.statistics().hedges < hedges:
                await hang.reached[10 + hedges - 1].wait()
            assert store.statistics().hedges == hedges
        assert inner.count("get").requests - before == 13
        for release in hang.release:
            release.set()
    assert store.statistics().late == 10


async def test_no_more_are_under_way_than_allowed(inner, clock):
    settings = HedgeSettings(
        least_samples=SAMPLES, least_wait_seconds=0.1, hedges_per_second=1000, max_under_way=2
    )
    store = await trained(HedgedStore(inner, settings, clock=clock))
    hang = Hang(inner, "get", 30)
    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(store.get("known"))
        for number, sleepers in enumerate((10, 9, *[8] * 20)):
            await clock.wait_for_sleepers(sleepers)
            clock.advance(1)
            await hang.reached[min(10 + number, 11)].wait()
        assert store.statistics().hedges == 2
        for release in hang.release:
            release.set()


# -- the threshold ---------------------------------------------------------------------------


async def test_the_threshold_is_a_quantile_of_the_last_latencies(clock):
    inner = MemoryStore()
    await inner.put_if_absent("a", b"1")
    delays = iter([1.0, *[0.2] * 8, 5.0, *[0.3] * 9, 7.0])
    slow = LatencyStore(inner, lambda: next(delays), clock=clock)
    settings = HedgeSettings(least_samples=10, window=10, quantile=0.9)
    store = HedgedStore(slow, settings, clock=clock)

    async def ask(seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(store.get("a"))
            for _ in range(2):
                await clock.wait_for_sleepers()
                clock.advance(seconds / 2)

    for delay in [1.0, *[0.2] * 8]:
        await ask(delay)
    assert store.late_after_seconds("get") is None
    await ask(5.0)
    assert store.late_after_seconds("get") == pytest.approx(1.0)


async def test_sizes_and_kinds_have_thresholds_of_their_own(store, inner):
    assert store.late_after_seconds("put_if_absent", 1) == 0.1
    assert store.late_after_seconds("put_if_absent", 1 << 20) is None
    assert store.late_after_seconds("put_if_match", 1) is None


async def test_a_loser_counts_with_the_time_it_took_at_least(store, inner, clock):
    """Otherwise each win would lower the threshold, and soon every request would be late."""
    for _ in range(10):
        hang = Hang(inner, "get", 1)
        threshold = store.late_after_seconds("get")
        async with asyncio.TaskGroup() as group:
            group.create_task(store.get("known"))
            await hang.reached[0].wait()
            await late(clock, threshold)
            clock.advance(2)  # for the budget, if it is needed
        assert store.late_after_seconds("get") >= threshold


async def test_faults_teach_nothing(inner, clock):
    store = HedgedStore(inner, HedgeSettings(least_samples=1), clock=clock)
    inner.on("get", faults.fail(faults.timeout("not_written")))
    with pytest.raises(StorageUnavailableError):
        await store.get("known")
    assert store.late_after_seconds("get") is None
    with pytest.raises(ObjectNotFoundError):
        await store.get("known")
    assert store.late_after_seconds("get") is not None


# -- whose answer counts ---------------------------------------------------------------------


class Race:
    """A call whose two requests are both under way before either ends."""

    def __init__(self, store: HedgedStore, inner: FaultyStore, clock: ManualClock) -> None:
        self.store = store
        self.inner = inner
        self.clock = clock

    async def run(self, make, faults_in_turn, order=(0, 1), then=None):
        """Make the call, let its requests go on in this order, await ``then()``, and return its answer."""
        release = [asyncio.Event(), asyncio.Event()]
        reached = [asyncio.Event(), asyncio.Event()]

        def staged(number: int):
            async def stage(request):
                reached[number].set()
                await release[number].wait()
                return await faults_in_turn[number](request)

            return stage

        for number in (0, 1):
            self.inner.on("any", staged(number))
        async with asyncio.TaskGroup() as group:
            calling = group.create_task(caught(make()))
            await reached[0].wait()
            await late(self.clock)
            await reached[1].wait()
            for number in order:
                release[number].set()
            if then is not None:
                await then()
        return calling.result()

    async def get(self, key, faults_in_turn, order=(0, 1)):
        return await self.run(lambda: self.store.get(key), faults_in_turn, order)

    async def put(self, first, second, order=(0, 1), then=None):
        """Put an ``x`` as ``new``."""
        make = partial(self.store.put_if_absent, "new", b"x")
        return await self.run(make, (first, second), order, then)

    async def stored(self) -> StoredObject:
        return await self.inner.inner.get("new")

    async def somebody_puts(self, data: bytes) -> None:
        await self.inner.inner.put_if_absent("new", data)


async def caught(awaitable):
    try:
        return await awaitable
    except (StorageUnavailableError, PreconditionFailedError, ObjectNotFoundError) as error:
        return error


@pytest.fixture
def race(store, inner, clock) -> Race:
    return Race(store, inner, clock)


def happen():
    return faults.report("ok", happens=True)


def lose(says="timeout", *, happens: bool):
    return faults.report(says, happens=happens)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_passing_fault_waits_for_the_other_answer(race, order):
    pair = [happen(), happen()]
    pair[order[0]] = lose(happens=False)
    assert (await race.get("known", pair, order)).data == b"1"


async def test_two_faults_are_one_fault(race):
    first, second = faults.timeout("not_written"), faults.conflict()
    pair = faults.fail(first), faults.fail(second)
    assert await race.get("known", pair, (1, 0)) is first


async def test_a_missing_object_is_an_answer(race):
    answer = await race.get("gone", (happen(), happen()), order=(1,))
    assert isinstance(answer, ObjectNotFoundError)


async def test_a_defect_of_the_store_is_no_group(race):
    with pytest.raises(ExceptionGroup) as of_the_test:
        await race.get("known", (_defect, happen()), order=(0,))
    assert [type(error) for error in of_the_test.value.exceptions] == [ZeroDivisionError]


async def _defect(_request):
    raise ZeroDivisionError


ORDERS = pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (1,)])


@ORDERS
async def test_of_two_puts_one_is_made_and_that_is_a_success(race, order):
    """Whichever comes first, and whether or not the other one is ever answered."""
    assert await race.put(happen(), happen(), order) == (await race.stored()).etag


@pytest.mark.parametrize("slow", [0, 1])
async def test_a_refusal_because_of_ones_own_twin_waits_for_its_answer(race, slow):
    """One put happened and is slow to say so; the other one is refused, and the object looks like ours."""
    answered = asyncio.Event()
    pair = [happen(), happen()]
    pair[slow] = faults.happen_then_hang(answered)

    async def then() -> None:
        await (
            race.clock.wait_for_sleepers()
        )  # it has looked, and gives the other one some more time
        answered.set()

    answer = await race.put(*pair, order=(slow, 1 - slow), then=then)
    assert answer == (await race.stored()).etag


@pytest.mark.parametrize("silent", [0, 1])
async def test_a_twin_that_never_answers_makes_the_outcome_unknown(race, silent):
    """After some time; and ``cas`` then sees that the object is ours."""
    pair = [happen(), happen()]
    pair[silent] = faults.happen_then_hang(asyncio.Event())

    async def then() -> None:
        await late(race.clock, 3)

    answer = await race.put(*pair, order=(silent, 1 - silent), then=then)
    assert isinstance(answer, StorageUnavailableError)
    assert answer.outcome == "unknown"
    result = await cas.create(race.store, "new", b"x")
    assert result.outcome is cas.PutOutcome.COMMITTED


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_refusal_and_a_lost_answer_are_unknown(race, lost):
    pair = [happen(), happen()]
    pair[lost] = lose("500", happens=True)
    answer = await race.put(*pair, order=(lost, 1 - lost))
    assert isinstance(answer, StorageUnavailableError)
    assert answer.outcome == "unknown"


@ORDERS
async def test_somebody_elses_object_is_a_refusal(race, order):
    """The other request need not be waited for: the bytes are not ours."""
    await race.somebody_puts(b"theirs")
    answer = await race.put(happen(), happen(), order)
    assert isinstance(answer, PreconditionFailedError)
    assert (await race.stored()).data == b"theirs"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_same_bytes_put_by_somebody_else_are_no_success_of_ours(race, order):
    await race.somebody_puts(b"x")
    assert isinstance(await race.put(happen(), happen(), order), PreconditionFailedError)


@pytest.mark.parametrize("slow", [0, 1])
async def test_the_same_bytes_and_a_slow_refusal(race, slow):
    """Neither put it, although it looks as if one had."""
    await race.somebody_puts(b"x")
    answered = asyncio.Event()

    async def refuse_late(request):
        await answered.wait()
        return await request()

    async def then() -> None:
        await race.clock.wait_for_sleepers()
        answered.set()

    pair = [happen(), happen()]
    pair[slow] = refuse_late
    answer = await race.put(*pair, order=(slow, 1 - slow), then=then)
    assert isinstance(answer, PreconditionFailedError)


async def test_an_object_that_cannot_be_looked_at_waits_for_the_other_answer(race):
    await race.somebody_puts(b"theirs")
    answered = asyncio.Event()

    async def refuse_late(request):
        await answered.wait()
        return await request()

    async def refuse_and_go_blind(request):
        race.inner.on("get", faults.fail(faults.timeout("not_written")))
        return await request()

    async def then() -> None:
        await race.clock.wait_for_sleepers()
        answered.set()

    answer = await race.put(refuse_and_go_blind, refuse_late, then=then)
    assert isinstance(answer, PreconditionFailedError)


async def test_both_lost_is_unknown(race):
    answer = await race.put(lose(happens=True), faults.fail(faults.conflict()))
    assert isinstance(answer, StorageUnavailableError)
    assert answer.outcome == "unknown"


async def test_neither_happened(race):
    answer = await race.put(faults.fail(faults.conflict()), faults.fail(faults.conflict()))
    assert isinstance(answer, StorageUnavailableError)
    assert answer.outcome == "not_written"


async def test_a_busy_answer_and_a_refusal_are_a_refusal(race):
    await race.somebody_puts(b"theirs")
    answer = await race.put(faults.fail(faults.conflict()), happen())
    assert isinstance(answer, PreconditionFailedError)


# -- the end of things -----------------------------------------------------------------------


async def test_a_cancelled_caller_cancels_both(store, inner, clock):
    hang = Hang(inner, "get", 2)
    reading = asyncio.create_task(store.get("known"))
    await hang.reached[0].wait()
    await late(clock)
    await hang.reached[1].wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len(asyncio.all_tasks()) == 1
    assert clock.sleepers == 0


async def test_a_loser_is_gone_before_the_call_returns(store, inner, clock):
    hang = Hang(inner, "get", 1)
    reading = asyncio.create_task(store.get("known"))
    await hang.reached[0].wait()
    await late(clock)
    await reading
    assert len(asyncio.all_tasks()) == 1


async def test_what_is_no_error_of_a_store_comes_through_as_it_is(store, inner):
    inner.on("get", faults.fail(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        await store.get("known")
    inner.on("get", faults.kill())
    with pytest.raises(StoreKilled):
        await store.get("known")


@pytest.mark.parametrize(
    "options",
    [
        {"hedges_per_second": 0},
        {"least_wait_seconds": 0},
        {"quantile": 1},
        {"quantile": 0},
        {"least_samples": 101},
        {"least_samples": 0},
        {"max_under_way": 0},
        {"settle_seconds": -1},
    ],
)
def test_ranges_are_checked(options):
    with pytest.raises(InvalidSettingsError):
        HedgeSettings(**options)


async def test_the_tail_of_a_slow_store_gets_shorter(clock):
    """One read in fifty takes a hundred times as long; hedged, hardly any caller notices."""
    memory = MemoryStore()
    await memory.put_if_absent("a", b"1")
    delays = [0.01] * 49 + [1.0]
    count = 0

    def latency() -> float:
        nonlocal count
        count += 1
        return delays[count % 50]

    slow = LatencyStore(memory, latency, clock=clock)
    store = HedgedStore(slow, HedgeSettings(hedges_per_second=100), clock=clock)
    taken = []
    for _ in range(500):
        began = clock.monotonic()
        reading = asyncio.create_task(store.get("a"))
        while not reading.done():
            await asyncio.sleep(0)
            clock.advance(0.001)
        taken.append(clock.monotonic() - began)
    assert sorted(taken)[-5] < 0.1
    assert store.statistics().hedges <= 500 / 50 + 25


async def test_fixed_latency_is_never_late(clock):
    """All take the same time: the threshold is that time, and the answer is there when it is over."""
    memory = MemoryStore()
    await memory.put_if_absent("a", b"1")
    store = HedgedStore(LatencyStore(memory, fixed(0.01), clock=clock), clock=clock)
    for _ in range(50):
        reading = asyncio.create_task(store.get("a"))
        while not reading.done():
            await asyncio.sleep(0)
            clock.advance(0.001)
    assert store.statistics().requests == 50


@given(
    st.lists(st.floats(0, 100), min_size=1),
    st.integers(1, 20),
    st.floats(0.01, 0.99),
)
def test_a_quantile_is_a_sample_that_so_many_do_not_exceed(samples, window, fraction):
    latencies = Latencies(window)
    for sample in samples:
        latencies.add(sample)
    last = samples[-window:]
    found = latencies.quantile(fraction)
    assert len(latencies) == len(last)
    assert found == sorted(last)[math.ceil(fraction * len(last)) - 1]
