"""Fragments made side by side and published in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tests.waiting import until
from uploader.format.entries import Fragment
from uploader.format.setsum import Setsum
from uploader.stores import RetryPolicy
from uploader.write.cut_schedule import CutSchedule
from uploader.write.publish_pipeline import PublishPipeline
from uploader.write.stall_guard import StallGuard
from walstore.errors import ContentionError, CorruptionError, OutcomeUnknownError
from walstore.runtime.clock import SystemClock


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
        return PublishPipeline(
            tasks,
            root=self.root,
            writer="w",
            stall_guard=stall_guard,
            clock=SystemClock(),
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
