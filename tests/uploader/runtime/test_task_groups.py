"""Tasks that run together: none outlives the call that began them, and the error that matters is told."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from uploader.chain.shards import list_behind
from uploader.runtime.task_groups import (
    BackgroundTask,
    LoopTaskGroup,
    check_cancelled,
    first_of,
    gather_all,
    main_error,
    map_all,
    task_group,
)
from uploader.stores import MemoryStore
from walstore.errors import ContentionError, CorruptionError, StorageUnavailableError


async def fail(error: BaseException) -> None:
    raise error


async def after(turns: int) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return turns


async def test_all_end_before_the_block_does() -> None:
    async with task_group() as tasks:
        running = tasks.create_task(asyncio.sleep(0, "done"))
    assert running.result() == "done"


async def test_the_error_of_a_task_is_raised_with_its_cause() -> None:
    error = CorruptionError("x", path="p")
    error.__cause__ = OSError("why")
    with pytest.raises(CorruptionError) as caught:
        async with task_group() as outer:
            async with task_group() as tasks:
                tasks.create_task(fail(error))
                await asyncio.Event().wait()
            outer.create_task(fail(ValueError()))
    assert caught.value is error
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("defect", [ValueError("x"), MemoryError()])
async def test_a_defect_is_not_hidden_by_an_error_that_is_expected(defect: Exception) -> None:
    with pytest.raises(type(defect)):
        async with task_group() as tasks:
            tasks.create_task(fail(ContentionError("x")))
            tasks.create_task(fail(defect))


def test_the_first_of_a_group_however_deep() -> None:
    first, second = ContentionError("1"), CorruptionError("2", path="p")
    group = ExceptionGroup("", [ExceptionGroup("", [first]), second])
    assert first_of(group) is main_error(group) is first


async def test_a_cancellation_stays_one() -> None:
    async def wait() -> None:
        async with task_group() as tasks:
            tasks.create_task(asyncio.Event().wait())

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert waiting.cancelled()


@pytest.mark.parametrize("group", [LoopTaskGroup, task_group])
@pytest.mark.parametrize("is_waiting_inside", [False, True])
async def test_a_failed_group_was_no_cancellation_from_outside(
    group: Callable[[], asyncio.TaskGroup], is_waiting_inside: bool
) -> None:
    """Whether its first task fails in the block or behind it."""

    async def fail_next() -> None:
        await asyncio.sleep(0)
        raise ContentionError("x")

    async def run() -> None:
        try:
            async with group() as tasks:
                tasks.create_task(fail_next())
                if is_waiting_inside:
                    await asyncio.Event().wait()
        except* ContentionError:
            check_cancelled()

    await asyncio.create_task(run())


async def test_a_cancellation_in_the_turn_of_an_error_is_found_again() -> None:
    async def run(failing: asyncio.Event, is_over: list[bool]) -> None:
        async def fail_then() -> None:
            await failing.wait()
            raise ContentionError("x")

        try:
            async with LoopTaskGroup() as tasks:
                tasks.create_task(fail_then())
        except* ContentionError:
            check_cancelled()
        is_over.append(True)

    for turns in range(5):
        failing, is_over = asyncio.Event(), list[bool]()
        running = asyncio.create_task(run(failing, is_over))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        failing.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() != bool(is_over)
        assert running.cancelled() or turns > 1


async def test_results_come_in_order() -> None:
    assert await gather_all(after(turns) for turns in (3, 1, 2)) == [3, 1, 2]
    assert await gather_all([]) == []


async def test_map_all_has_a_few_calls_under_way_and_takes_no_item_before() -> None:
    taken: list[int] = []
    under_way: list[int] = []
    most = 0

    def items() -> Iterator[int]:
        for item in range(20):
            taken.append(item)
            yield item

    async def call(item: int) -> int:
        nonlocal most
        under_way.append(item)
        most = max(most, len(under_way))
        assert len(taken) - item <= 3
        await after(item % 3)
        under_way.remove(item)
        return -item

    assert await map_all(call, items(), at_once=3) == [-item for item in range(20)]
    assert most == 3
    assert await map_all(call, [], at_once=3) == []


async def test_map_all_ends_with_the_first_error() -> None:
    begun: list[int] = []

    async def call(item: int) -> int:
        begun.append(item)
        await after(1)
        raise CorruptionError("damaged", path=f"{item}")

    with pytest.raises(CorruptionError, match="damaged"):
        await map_all(call, range(20), at_once=3)
    assert begun == [0, 1, 2]


class OneShardFails(MemoryStore):
    """Does not answer but for one folder, of which it says that it is away."""

    async def list(self, prefix: str, *, after: str | None = None):
        if prefix != "shard0003/":
            await asyncio.Event().wait()
        raise StorageUnavailableError("away")
        yield


async def test_nothing_goes_on_after_a_failure() -> None:
    """A writer that gave up has no request under way any more when its store is closed."""
    with pytest.raises(StorageUnavailableError, match="away"):
        await list_behind(OneShardFails(), 7)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_group_is_destroyed_with_its_loop(is_inside: bool) -> None:
    """Also one whose block is over, and that waits for its tasks."""

    async def wait() -> None:
        async with task_group() as tasks:
            tasks.create_task(asyncio.Event().wait())
            if is_inside:
                await asyncio.Event().wait()

    async def begin() -> Coroutine[Any, Any, None]:
        waiting = wait()
        waiting.send(None)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return waiting

    asyncio.run(begin()).close()


async def test_a_block_that_is_forgotten_leaves_nothing_to_the_event_loop() -> None:
    """As when a program drops a log with a tier and never closes it."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def wait() -> None:
        async with task_group() as tasks:
            tasks.create_task(asyncio.Event().wait())
            await asyncio.Event().wait()

    forgotten = wait()
    forgotten.send(None)
    forgotten.close()
    del forgotten
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)
    assert told == []


async def test_what_it_returned_is_taken_once() -> None:
    beside = BackgroundTask[int]()
    assert not beside.has_task
    assert beside.take() is None
    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        return 7

    beside.start(work(), "work")
    assert beside.is_busy
    assert beside.take() is None
    gate.set()
    await beside.wait()
    assert (beside.is_busy, beside.has_task) == (False, True)
    done = beside.take()
    assert done is not None
    assert done.result() == 7
    assert not beside.has_task
    await beside.wait()


async def test_closing_gives_up_what_is_under_way() -> None:
    beside = BackgroundTask[None]()
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    beside.start(work(), "work")
    await asyncio.sleep(0)
    await beside.aclose()
    assert ended.is_set()
    await beside.aclose()


async def test_closing_after_a_failure_says_nothing() -> None:
    beside = BackgroundTask[None]()

    async def work() -> None:
        raise ValueError

    beside.start(work(), "work")
    await beside.wait()
    await beside.aclose()
    assert not beside.has_task
