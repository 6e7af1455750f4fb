"""Fragments made next to each other, published in order, and cut in time for the change that takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tests.waiting import until
from uploader.format.entries import Fragment
from uploader.format.setsum import Setsum
from uploader.stores import RetryPolicy
from uploader.stores.memory import MemoryStore
from uploader.write.publish_pipeline import CutSchedule, PublishPipeline
from uploader.write.stall_guard import StallGuard, WriteContext
from walstore.core.runtime.clock import SystemClock
from walstore.errors import ContentionError, CorruptionError, OutcomeUnknownError


def entry(number: int) -> Fragment:
    return Fragment.numbered(number, start=number, limit=number + 1, num_bytes=1, setsum=Setsum())


@dataclass
class FakeRoot:
    """A root whose answers a test gives."""

    max_publishing: int = 1
    calls: list[list[int]] = field(default_factory=list)
    answers: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    async def publish(self, fragments: Sequence[Fragment], writer: str) -> None:
        self.calls.append([fragment.seq_no for fragment in fragments])
        answer = self.answers[len(self.calls)] = asyncio.get_running_loop().create_future()
        await answer


class Bench:
    def __init__(self, retry: RetryPolicy, *, most: int = 1, in_flight: int = 3) -> None:
        self.root = FakeRoot(most)
        self.retry = retry
        self.in_flight = in_flight
        self.published: list[int] = []
        self.changes = 0

    def on(self, tasks: asyncio.TaskGroup, **options) -> PublishPipeline:
        def tell(run: Sequence[Fragment]) -> None:
            self.published += [fragment.seq_no for fragment in run]

        def note() -> None:
            self.changes += 1

        stall_guard = StallGuard(
            url="x", retry=self.retry, clock=self.retry.clock, silent_seconds=10
        )
        context = WriteContext(
            store=MemoryStore(),
            root=self.root,
            stall_guard=stall_guard,
            retry=self.retry,
            clock=SystemClock(),
            worker=None,
        )
        return PublishPipeline(
            tasks,
            context,
            writer="w",
            schedule=CutSchedule(interval_seconds=0, max_publishing=self.root.max_publishing),
            max_in_flight=self.in_flight,
            on_published=tell,
            on_change=note,
            **options,
        )

    async def answer(self, call: int, error: Exception | None = None) -> None:
        """Answer a call of the root as soon as it was made."""
        await until(lambda: call in self.root.answers)
        if error is None:
            self.root.answers[call].set_result(None)
        else:
            self.root.answers[call].set_exception(error)


def maker(number: int, when: asyncio.Event | None = None, result: bool = True):
    async def make() -> Fragment | None:
        if when is not None:
            await when.wait()
        return entry(number) if result else None

    return make


async def test_V1_in_order_and_in_runs(impatient: RetryPolicy) -> None:
    bench = Bench(impatient)
    first = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        pipeline = bench.on(tasks)
        assert pipeline.is_empty
        pipeline.start(maker(1, first))
        pipeline.start(maker(2))
        pipeline.start(maker(3))
        await until(lambda: pipeline._running == 1)
        assert not bench.root.calls
        assert not pipeline.has_room
        first.set()
        await bench.answer(1)
        await pipeline.wait_until(lambda: pipeline.is_empty)
    assert bench.root.calls == [[1, 2, 3]]
    assert bench.published == [1, 2, 3]
    assert bench.changes > 0


async def test_V2_what_is_made_and_not_published_is_bounded(impatient: RetryPolicy) -> None:
    bench = Bench(impatient, in_flight=2)
    async with asyncio.TaskGroup() as tasks:
        pipeline = bench.on(tasks)
        pipeline.start(maker(1))
        await until(lambda: bench.root.calls == [[1]])
        for number in (2, 3):
            assert pipeline.has_room
            pipeline.start(maker(number))
        await until(lambda: pipeline._running == 0)
        assert not pipeline.has_room
        await bench.answer(1)
        await bench.answer(2)
        await pipeline.wait_until(lambda: pipeline.is_empty)
    assert bench.root.calls == [[1], [2, 3]]


async def test_as_many_at_once_as_the_root_takes(impatient: RetryPolicy) -> None:
    bench = Bench(impatient, most=2)
    async with asyncio.TaskGroup() as tasks:
        pipeline = bench.on(tasks)
        for number in (1, 2, 3):
            pipeline.start(maker(number))
            await until(lambda: pipeline._running == 0)
        assert bench.root.calls == [[1], [2]]
        await bench.answer(2)  # not heard of before the first
        await bench.answer(1)
        await bench.answer(3)
        await pipeline.wait_until(lambda: pipeline.is_empty)
    assert bench.published == [1, 2, 3]


async def test_further_attempts_are_made_in_order(impatient: RetryPolicy) -> None:
    """A root takes calls in the order of their fragments, also the second time."""
    bench = Bench(impatient, most=2)
    async with asyncio.TaskGroup() as tasks:
        pipeline = bench.on(tasks)
        pipeline.start(maker(1))
        await until(lambda: len(bench.root.calls) == 1)
        pipeline.start(maker(2))
        await bench.answer(2, OutcomeUnknownError("?"))
        await bench.answer(1, OutcomeUnknownError("?"))
        await bench.answer(3)
        await bench.answer(4)
        await pipeline.wait_until(lambda: pipeline.is_empty)
    assert bench.root.calls == [[1], [2], [1], [2]]
    assert bench.published == [1, 2]


async def test_contention_does_not_count_while_the_one_before_is_tried_again(
    impatient: RetryPolicy,
) -> None:
    """It failed, and was not begun again yet: no other writer is to blame for what is missing."""
    bench = Bench(impatient, most=2)
    async with asyncio.TaskGroup() as tasks:
        pipeline = bench.on(tasks)
        pipeline.start(maker(1))
        await until(lambda: len(bench.root.calls) == 1)
        pipeline.start(maker(2))
        await bench.answer(2, ContentionError("another writer published"))
        await bench.answer(1, OutcomeUnknownError("?"))
        await bench.answer(3)
        await bench.answer(4)
        await pipeline.wait_until(lambda: pipeline.is_empty)
    assert bench.root.calls == [[1], [2], [1], [2]]
    assert bench.published == [1, 2]


async def test_V3_nothing_is_published_behind_one_that_was_not_made(impatient: RetryPolicy) -> None:
    bench = Bench(impatient)
    async with asyncio.TaskGroup() as tasks:
        pipeline = bench.on(tasks)
        pipeline.start(maker(1, result=False))
        pipeline.start(maker(2))
        await pipeline.wait_until(lambda: pipeline.is_quiet)
        assert pipeline.is_halted
        assert not pipeline.is_empty
    assert not bench.root.calls


async def test_V3_contention_halts_if_the_driver_wants_that(impatient: RetryPolicy) -> None:
    """What is being made goes on; those whose turn is later are not tried again."""
    bench = Bench(impatient, most=2)
    async with asyncio.TaskGroup() as tasks:
        pipeline = bench.on(tasks, halts_on=(ContentionError,))
        pipeline.start(maker(1))
        await until(lambda: len(bench.root.calls) == 1)
        pipeline.start(maker(2))
        await until(lambda: len(bench.root.calls) == 2)
        pipeline.start(maker(3))
        await bench.answer(2, OutcomeUnknownError("?"))
        await bench.answer(1, ContentionError("lost"))
        await pipeline.wait_until(lambda: pipeline.is_quiet)
        assert pipeline.is_halted
    assert bench.root.calls == [[1], [2]]
    assert bench.published == []


async def test_else_errors_end_the_group(impatient: RetryPolicy) -> None:
    bench = Bench(impatient)
    with pytest.raises(ExceptionGroup) as told:
        async with asyncio.TaskGroup() as tasks:
            pipeline = bench.on(tasks, halts_on=(ContentionError,))
            pipeline.start(maker(1))
            await bench.answer(1, CorruptionError("bad", path="x"))
            await pipeline.wait_until(lambda: pipeline.is_empty)
    assert told.value.subgroup(CorruptionError)


def schedule(
    put: float = 100, publish: float = 100, *, interval: float = 20, most: int = 1
) -> CutSchedule:
    """Return a pace that has seen requests of these times."""
    found = CutSchedule(interval_seconds=interval, max_publishing=most)
    for _ in range(3):
        found.note_put(put)
        found.note_publish(publish)
    return found


def test_the_first_is_cut_at_once() -> None:
    assert CutSchedule(interval_seconds=20, max_publishing=1).due(1000, [], []) <= 1000
    assert schedule().due(1000, [], []) <= 1000


def test_before_anything_is_known_only_the_interval_counts() -> None:
    assert CutSchedule(interval_seconds=20, max_publishing=1).due(1000, [1000], []) == 1020


@pytest.mark.parametrize(
    ("now", "cuts", "publishing", "due"),
    [
        (1001, [1000], [], 1100),  # put at 1100, swapped until 1200: the next one is put by then
        (1150, [1100], [1100], 1200),  # the one from 1000 is being swapped until 1200
        (1101, [1000], [1000], 1101),  # the swap that begins now lasts as long as the put
        (1050, [], [1000], 1000),  # nothing will be there when the swap ends: at once
        (1030, [1000], [950], 1100),
    ],
)
def test_with_one_swap_at_a_time(now, cuts, publishing, due) -> None:
    assert schedule().due(now, cuts, publishing) == pytest.approx(due, abs=1.5)


def test_a_little_too_late_is_not_a_swap_later() -> None:
    """The timer never rings too early, so it always rings a little too late."""
    assert schedule().due(1100, [1000], [1095]) == 1095
    assert schedule().due(1120, [1000], [1095]) == 1195


def test_quick_puts_wait_for_slow_swaps() -> None:
    assert schedule(put=10).due(1050, [1020], [1000]) == 1090


def test_quick_swaps_need_no_waiting() -> None:
    """A fragment for each swap, as fast as they come, but no more than the interval allows."""
    assert schedule(publish=5).due(1001, [1000], []) == pytest.approx(1020, abs=5)


def test_with_changes_at_once_the_interval_counts() -> None:
    chain = schedule(most=8)
    assert chain.due(1001, [1000], [990, 970, 950]) == pytest.approx(1020, abs=12.5)


def test_one_outlier_changes_nothing() -> None:
    found = schedule()
    found.note_put(60_000)
    found.note_publish(60_000)
    assert (found.put_seconds, found.publish_seconds) == (100, 100)


def test_what_is_worth_a_little_waiting() -> None:
    assert schedule().hold_seconds(1000, cut=905, publishing=0) == 10
    assert schedule().hold_seconds(1000, cut=895, publishing=0) == 10
    assert schedule().hold_seconds(1000, cut=950, publishing=0) == 0
    assert schedule(most=8).hold_seconds(1000, cut=900, publishing=3) == 0


# -- head starts -------------------------------------------------------------------------------


def test_a_head_start_before_any_was_seen() -> None:
    """Neither puts nor changes of the root say anything of it."""
    fresh = CutSchedule(interval_seconds=20, max_publishing=1).head_start_seconds
    assert fresh == schedule().head_start_seconds == 0.02


def test_a_head_start_is_ample() -> None:
    """Half as long again as encoding took, so that it mostly has ended at the cut."""
    found = schedule()
    found.note_head_start(0.01)
    assert found.head_start_seconds == pytest.approx(0.015)


def test_a_head_start_is_learned_from_medians() -> None:
    found = schedule()
    for seconds in (0.01, 0.04, 60):
        found.note_head_start(seconds)
    assert found.head_start_seconds == pytest.approx(0.06)


def test_head_starts_of_long_ago_are_forgotten() -> None:
    found = schedule()
    for seconds in [60] * 20 + [0.01] * 5:
        found.note_head_start(seconds)
    assert found.head_start_seconds == pytest.approx(0.015)


def test_head_starts_change_nothing_else() -> None:
    found, other = schedule(), schedule()
    found.note_head_start(60)
    assert (found.put_seconds, found.publish_seconds) == (other.put_seconds, other.publish_seconds)
    assert found.due(1001, [1000], []) == other.due(1001, [1000], [])


@pytest.mark.parametrize(
    ("records", "size_bytes", "is_worth_it"),
    [
        (0, 0, False),
        (1, 8192, False),
        (1, 384 << 10, True),  # by bytes
        (1, (384 << 10) - 401, False),
        (1, (384 << 10) - 400, True),  # a record is as much work as 400 bytes
        (983, 0, False),
        (984, 0, True),  # by number
        (500, 190_000, False),
        (500, 200_000, True),  # by both together
    ],
)
def test_what_deserves_a_head_start(records: int, size_bytes: int, is_worth_it: bool) -> None:
    assert schedule().deserves_head_start(records, size_bytes) is is_worth_it


@pytest.mark.parametrize("put", [0.4, 1, 7, 130])
def test_a_put_that_hangs_is_not_looked_at_all_the_time(put: float) -> None:
    """What is late may come at any moment; whoever waits looks seldom, and less often the later it is."""
    now, looks, clock = 1000.0, 0, schedule(put, 1.3, interval=0)
    while now < 31_000:
        looks += 1
        due = clock.due(now, [1000], [])
        if due <= now:
            return  # the next one is cut beside it
        now = due
    assert looks < 200
