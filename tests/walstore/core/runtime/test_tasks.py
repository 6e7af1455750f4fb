"""run_to_end: work ends, whatever is cancelled. shield: no report. wake: tasks run at once."""

from __future__ import annotations

import asyncio
import contextvars
import gc

import pytest

from tests.local import turns
from walstore.core.runtime.tasks import run_to_end, shield, wake


@pytest.mark.parametrize("fails", [False, True])
async def test_no_step_is_left_out_and_the_caller_is_cancelled(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is logged, as the caller cannot get it."""
    steps, gates = list[int](), [asyncio.Event(), asyncio.Event()]

    async def close() -> None:
        for number, gate in enumerate(gates):
            await gate.wait()
            steps.append(number)
        if fails:
            raise OSError("it failed")

    caller = asyncio.create_task(run_to_end(close()))
    for gate in gates:
        await turns()
        caller.cancel()
        await turns()
        gate.set()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert steps == [0, 1]
    await turns()
    told = ["closing failed, and nobody waited for it: it failed"]
    assert caplog.messages == (told if fails else [])


async def test_without_a_cancellation_the_caller_gets_what_comes_of_it() -> None:
    async def divide(by: int) -> int:
        return 6 // by

    assert await run_to_end(divide(2)) == 3
    with pytest.raises(ZeroDivisionError):
        await run_to_end(divide(0))


# -- shield ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_done", [False, True])
async def test_what_is_shielded_has_the_outcome_of_the_work(is_done: bool) -> None:
    loop = asyncio.get_running_loop()
    works = [loop.create_future() for _ in range(3)]
    shields = [] if is_done else [shield(work) for work in works]
    works[0].set_result(3)
    works[1].set_exception(KeyError("x"))
    works[2].cancel()
    shields = shields or [shield(work) for work in works]
    assert await shields[0] == 3
    with pytest.raises(KeyError):
        await shields[1]
    with pytest.raises(asyncio.CancelledError):
        await shields[2]


async def test_a_failure_behind_a_cancelled_caller_is_told_to_nobody() -> None:
    """From Python 3.14 on asyncio's own calls the event loop's exception handler."""
    loop, told = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, found: told.append(found))
    work = loop.create_future()

    async def wait(work: asyncio.Future[object]) -> None:
        await shield(work)

    task = asyncio.create_task(wait(work))
    await turns()
    task.cancel()
    await turns()
    assert task.cancelled()
    assert not work.done()
    work.set_exception(OSError("too late"))
    await turns()
    del work
    gc.collect()
    await turns()
    loop.set_exception_handler(None)
    assert told == []


# -- wake ------------------------------------------------------------------------------------------


def woken_in_a_callback(futures: list[asyncio.Future[int]], seen: list[object]) -> None:
    """Wake them in a callback of the event loop, and note when it ends."""

    def callback() -> None:
        try:
            wake(futures, 7)
        finally:
            seen.append("end")

    asyncio.get_running_loop().call_soon(callback)


async def waiting(future: asyncio.Future[int], seen: list[object], name: str) -> None:
    try:
        seen.append((name, await future))
    except asyncio.CancelledError:
        seen.append((name, "cancelled"))


async def test_what_is_woken_runs_in_order_before_the_callback_ends() -> None:
    loop, seen = asyncio.get_running_loop(), list[object]()
    futures = [loop.create_future() for _ in range(3)]
    tasks = [asyncio.create_task(waiting(f, seen, n)) for f, n in zip(futures, "abc", strict=True)]
    await turns()
    woken_in_a_callback(futures, seen)
    await asyncio.gather(*tasks)
    assert seen == [("a", 7), ("b", 7), ("c", 7), "end"]


async def test_one_that_is_cancelled_keeps_nobody_else() -> None:
    loop, seen = asyncio.get_running_loop(), list[object]()
    futures = [loop.create_future() for _ in range(2)]
    tasks = [asyncio.create_task(waiting(f, seen, n)) for f, n in zip(futures, "ab", strict=True)]
    await turns()
    tasks[0].cancel()
    woken_in_a_callback(futures, seen)
    await asyncio.gather(*tasks)
    assert seen == [("a", "cancelled"), ("b", 7), "end"]


async def test_a_task_cancelled_by_one_that_was_woken_before_it_is_cancelled() -> None:
    loop, seen = asyncio.get_running_loop(), list[object]()
    first, second = loop.create_future(), loop.create_future()
    other = asyncio.create_task(waiting(second, seen, "b"))

    async def cancel_other() -> None:
        seen.append(await first)
        other.cancel()

    task = asyncio.create_task(cancel_other())
    await turns()
    woken_in_a_callback([first, second], seen)
    await asyncio.gather(task, other)
    assert seen == [7, "end", ("b", "cancelled")]


async def test_a_woken_task_has_its_own_context() -> None:
    number = contextvars.ContextVar("number", default=0)
    future = asyncio.get_running_loop().create_future()

    async def read() -> int:
        number.set(3)
        await future
        return number.get()

    task = asyncio.create_task(read())
    await turns()
    woken_in_a_callback([future], [])
    assert await task == 3
    assert number.get() == 0


async def test_a_future_that_nobody_waits_for_is_resolved() -> None:
    future = asyncio.get_running_loop().create_future()
    wake([future], 7)
    assert await future == 7


def test_a_task_that_ends_the_program_leaves_nobody_waiting() -> None:
    seen: list[object] = []
    ended: list[asyncio.Task[None]] = []

    async def end(future: asyncio.Future[int]) -> None:
        await future
        raise SystemExit(3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(2)]
        tasks = [
            asyncio.create_task(end(futures[0])),
            asyncio.create_task(waiting(futures[1], seen, "b")),
        ]
        ended.append(tasks[0])
        await turns()
        woken_in_a_callback(futures, seen)
        await asyncio.wait(tasks)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert seen == ["end", ("b", "cancelled")]  # by asyncio.run
    assert isinstance(ended[0].exception(), SystemExit)


async def test_a_callback_that_fails_keeps_nobody_else() -> None:
    """As in the event loop: its handler is told, and the others are woken."""
    loop, seen = asyncio.get_running_loop(), list[object]()
    told = list[object]()
    loop.set_exception_handler(lambda _, found: told.append(found["exception"]))
    first, second = loop.create_future(), loop.create_future()
    first.add_done_callback(lambda _: 1 / 0)
    tasks = [asyncio.create_task(waiting(f, seen, n)) for f, n in ((first, "a"), (second, "b"))]
    await turns()
    woken_in_a_callback([first, second], seen)
    await asyncio.gather(*tasks)
    loop.set_exception_handler(None)
    assert seen == [("a", 7), ("b", 7), "end"]
    assert [type(one) for one in told] == [ZeroDivisionError]


async def test_callbacks_of_one_future_run_in_order() -> None:
    future, seen = asyncio.get_running_loop().create_future(), list[object]()
    for name in "abc":
        future.add_done_callback(lambda _, name=name: seen.append(name))
    woken_in_a_callback([future], seen)
    await turns()
    assert seen == ["a", "b", "c", "end"]


async def test_futures_in_python_are_woken_too() -> None:
    """Of these asyncio gives its own list of callbacks away, not a copy."""
    loop, seen = asyncio.get_running_loop(), list[object]()
    futures = [asyncio.futures._PyFuture(loop=loop) for _ in range(2)]
    tasks = [asyncio.create_task(waiting(f, seen, n)) for f, n in zip(futures, "ab", strict=True)]
    await turns()
    woken_in_a_callback(futures, seen)
    await asyncio.gather(*tasks)
    assert seen == [("a", 7), ("b", 7), "end"]


def test_a_callback_that_ends_the_program_drops_no_other_one() -> None:
    seen: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(2)]

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        futures[0].add_done_callback(interrupt)
        futures[0].add_done_callback(lambda _: seen.append("b"))
        futures[1].add_done_callback(lambda _: seen.append("c"))
        woken_in_a_callback(futures, seen)
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(main())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
    finally:
        loop.close()
    assert seen == ["end", "b", "c"]
