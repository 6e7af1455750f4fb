"""Lanes: order within one, turns between many, cancellation, closing."""

from __future__ import annotations

import asyncio
import gc
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import programs
from tests.local import turns
from tests.waiting import until
from walstore.core.runtime.threads import Lane, Pool, Worker, _resolve
from walstore.errors import StorageUnavailableError, WalClosedError


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool("test", threads=3)
    yield pool
    pool.close()


class Gate:
    """A call that runs until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.opened.wait(20)
        return "through"


async def test_runs_on_a_thread_and_returns_the_result(pool: Pool) -> None:
    lane = pool.lane()
    assert await lane.run(divmod, 7, 2) == (3, 1)
    assert await lane.run(threading.get_ident) != threading.get_ident()


async def test_raises_what_the_call_raises(pool: Pool) -> None:
    lane = pool.lane()
    with pytest.raises(ZeroDivisionError):
        await lane.run(divmod, 1, 0)
    assert await lane.run(divmod, 1, 1) == (1, 0)


async def test_calls_of_a_lane_run_in_order_one_at_a_time(pool: Pool) -> None:
    lanes = [pool.lane() for _ in range(5)]
    seen: list[list[int]] = [[] for _ in lanes]
    running = [0] * len(lanes)

    def call(at: int, number: int) -> None:
        running[at] += 1
        assert running[at] == 1
        seen[at].append(number)
        running[at] -= 1

    await asyncio.gather(
        *(lane.run(call, at, number) for number in range(200) for at, lane in enumerate(lanes))
    )
    assert seen == [list(range(200))] * len(lanes)


async def test_a_wide_lane_runs_as_many_calls_as_it_is_wide(pool: Pool) -> None:
    lane = pool.lane(width=2)
    gates = [Gate() for _ in range(3)]
    async with asyncio.TaskGroup() as group:
        for gate in gates:
            group.create_task(lane.run(gate))
        await until(lambda: gates[0].entered.is_set() and gates[1].entered.is_set())
        assert not gates[2].entered.is_set()
        assert await pool.lane().run(divmod, 1, 1) == (1, 0)  # a thread is free
        assert not gates[2].entered.is_set()
        gates[0].opened.set()
        await until(gates[2].entered.is_set)
        for gate in gates:
            gate.opened.set()


async def test_a_flooded_lane_lets_the_others_have_their_turn() -> None:
    pool = Pool("test", threads=1)
    gate = Gate()
    order: list[str] = []
    async with asyncio.TaskGroup() as group:
        flood, other = pool.lane(), pool.lane()
        group.create_task(flood.run(gate))
        await until(gate.entered.is_set)
        for number in range(100):
            group.create_task(flood.run(order.append, f"flood {number}"))
        group.create_task(other.run(order.append, "other"))
        await asyncio.sleep(0)
        gate.opened.set()
    assert order.index("other") <= 1
    assert [name for name in order if name != "other"] == [f"flood {n}" for n in range(100)]
    pool.close()


async def test_a_cancelled_caller_does_not_let_the_next_call_start_early(pool: Pool) -> None:
    lane, gate = pool.lane(), Gate()
    first = asyncio.create_task(lane.run(gate))
    await until(gate.entered.is_set)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    after = asyncio.create_task(lane.run(lambda: gate.opened.is_set()))
    assert await pool.lane().run(divmod, 1, 1) == (1, 0)
    assert not after.done()
    gate.opened.set()
    assert await after


async def test_a_call_cancelled_before_its_turn_is_left_out(pool: Pool) -> None:
    lane, gate = pool.lane(), Gate()
    ran: list[str] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run(gate))
        await until(gate.entered.is_set)
        waiting = group.create_task(lane.run(ran.append, "cancelled"))
        await asyncio.sleep(0)
        waiting.cancel()
        gate.opened.set()
    await lane.run(ran.append, "next")
    assert ran == ["next"]


async def test_an_owned_result_is_discarded_if_its_caller_is_cancelled(pool: Pool) -> None:
    lane, gate = pool.lane(), Gate()
    discarded: list[str] = []
    caller = asyncio.create_task(lane.run_owned(gate, discarded.append))
    await until(gate.entered.is_set)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert discarded == ["through"]


async def test_an_owned_call_that_fails_is_not_discarded(pool: Pool) -> None:
    discarded: list[object] = []
    with pytest.raises(ZeroDivisionError):
        await pool.lane().run_owned(lambda: 1 // 0, discarded.append)
    assert discarded == []


async def test_a_closed_lane_refuses_calls_and_finishes_those_it_has(pool: Pool) -> None:
    lane, gate = pool.lane(), Gate()
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run(gate))
        second = group.create_task(lane.run(divmod, 1, 1))
        await until(gate.entered.is_set)
        lane.close()
        lane.close()
        with pytest.raises(WalClosedError):
            await lane.run(divmod, 1, 1)
        gate.opened.set()
    assert second.result() == (1, 0)


async def test_a_closed_pool_finishes_what_its_lanes_have() -> None:
    pool = Pool("test", threads=1)
    lane, gate = pool.lane(), Gate()
    async with asyncio.TaskGroup() as group:
        group.create_task(lane.run(gate))
        waiting = [group.create_task(lane.run(divmod, n, 1)) for n in range(3)]
        await until(gate.entered.is_set)
        pool.close()
        with pytest.raises(WalClosedError):
            await pool.lane().run(divmod, 1, 1)
        gate.opened.set()
    assert [task.result()[0] for task in waiting] == [0, 1, 2]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_that_is_run_through_ends_whoever_cancels(pool: Pool, fails: bool) -> None:
    lane, gate, cancelled = pool.lane(), Gate(), list[str]()

    def call() -> str:
        gate()
        if fails:
            raise OSError("it failed")
        return "done"

    async def owner() -> str:
        return await lane.run_through(call, on_cancel=lambda: cancelled.append("now"))

    task = asyncio.ensure_future(owner())
    await asyncio.to_thread(gate.entered.wait)
    for _ in range(3):
        task.cancel()
        await turns()
        assert not task.done()
    gate.opened.set()
    if fails:
        with pytest.raises(OSError, match="it failed"):
            await task
    else:
        assert await task == "done"
    assert cancelled == ["now"]


@pytest.mark.parametrize("fails", [False, True])
async def test_who_leaves_out_the_errors_of_a_call_is_cancelled_yet(
    pool: Pool, fails: bool
) -> None:
    lane, gate = pool.lane(), Gate()

    def call() -> None:
        gate()
        if fails:
            raise OSError("it failed")

    async def owner() -> None:
        while True:
            with suppress(OSError):
                await lane.run_through(call)

    task = asyncio.ensure_future(owner())
    await asyncio.to_thread(gate.entered.wait)
    task.cancel()
    await turns()
    assert not task.done()
    gate.opened.set()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("threads", [0, 1, 3])
async def test_a_pool_ends_with_a_last_call(threads: int) -> None:
    pool, seen = Pool("test", threads=3), list[str]()
    gates = [Gate() for _ in range(threads)]
    calls = [asyncio.ensure_future(pool.lane().run(gate)) for gate in gates]
    for gate in gates:
        await asyncio.to_thread(gate.entered.wait)
    ended = pool.close_with(lambda: seen.append("last"))
    for gate, call in zip(gates, calls, strict=True):
        assert seen == []
        gate.opened.set()
        await call
    await ended
    assert seen == ["last"]
    await asyncio.to_thread(pool.join)


async def test_a_pool_whose_last_call_fails() -> None:
    pool = Pool("test", threads=1)
    with pytest.raises(ZeroDivisionError):
        await pool.close_with(lambda: divmod(1, 0))


async def test_a_worker_is_a_lane_with_threads_of_its_own() -> None:
    worker = Worker("test")
    assert isinstance(worker, Lane)
    assert await worker.run(divmod, 7, 2) == (3, 1)
    worker.close()
    with pytest.raises(WalClosedError):
        await worker.run(divmod, 7, 2)


async def test_a_call_that_ends_after_its_loop_was_closed_disturbs_nobody(pool: Pool) -> None:
    gate = Gate()

    def leave_a_call_behind() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(pool.lane().run(gate))
        while not gate.entered.is_set():
            loop.run_until_complete(asyncio.sleep(0))
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()

    await asyncio.to_thread(leave_a_call_behind)
    gate.opened.set()
    lanes = [pool.lane() for _ in range(3)]
    assert await asyncio.gather(*(lane.run(divmod, 1, 1) for lane in lanes)) == [(1, 0)] * 3


async def test_what_follows_a_call_happens_before_its_caller_goes_on(pool: Pool) -> None:
    lane = pool.lane()
    seen: list[object] = []

    def then(result: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        asyncio.get_running_loop().call_soon(seen.append, "a turn later")
        seen.append(result)

    assert await lane.run_through(lambda: 7, then=then) == 7
    assert seen[0] == 7


async def test_what_follows_a_call_happens_though_its_caller_was_cancelled(pool: Pool) -> None:
    lane, gate = pool.lane(), Gate()
    seen: list[str] = []
    caller = asyncio.create_task(lane.run_through(gate, then=seen.append))
    await until(gate.entered.is_set)
    caller.cancel()
    await turns()
    assert not caller.done()
    gate.opened.set()
    await asyncio.wait([caller])
    assert (caller.cancelled(), seen) == (True, ["through"])


async def test_a_call_that_has_a_sequel_runs_though_it_was_cancelled_in_the_queue(
    pool: Pool,
) -> None:
    lane, gate = pool.lane(), Gate()
    seen: list[int] = []
    first = asyncio.create_task(lane.run(gate))
    await until(gate.entered.is_set)
    second = asyncio.create_task(lane.run_through(lambda: 1, then=seen.append))
    third = asyncio.create_task(lane.run(seen.append, 2))
    last = asyncio.create_task(lane.run(lambda: None))
    await asyncio.sleep(0)
    second.cancel()
    third.cancel()
    gate.opened.set()
    await asyncio.wait((first, second, third, last))
    assert seen == [1]


async def test_a_caller_cancelled_as_its_call_fails_leaves_nothing_to_complain_about() -> None:
    """The error is there, and the caller, who had not run yet, never looks."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    _resolve(future, None, None, ZeroDivisionError())
    del future  # asyncio would log it as an error that nobody saw
    gc.collect()


async def test_raises_what_follows_a_call_and_fails(pool: Pool) -> None:
    lane = pool.lane()
    with pytest.raises(ZeroDivisionError):
        await lane.run_through(lambda: 0, then=lambda found: 1 // found)
    with pytest.raises(ZeroDivisionError):
        await lane.run_through(lambda: 1 // 0, then=lambda _: pytest.fail("there is no result"))
    assert await lane.run(divmod, 1, 1) == (1, 0)


def test_a_forgotten_pool_ends_its_threads() -> None:
    pool = Pool("forgotten", threads=2)
    for _ in range(2):
        pool.submit(lambda job: job(), lambda: None)
    threads = [t for t in threading.enumerate() if t.name.startswith("walstore-forgotten")]
    assert len(threads) == 2
    del pool
    gc.collect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_the_interpreter_exits_once_the_calls_made_are_finished(tmp_path: Path) -> None:
    """Also if nobody closed the pool."""
    program = textwrap.dedent(
        """
        import pathlib, sys, threading
        from walstore.core.runtime.threads import Pool
        may_write = threading.Event()
        def write():
            may_write.wait()
            pathlib.Path(sys.argv[1]).write_text("done")
        pool = Pool("left", threads=1)
        pool.submit(lambda job: job(), write)
        pool.submit(lambda job: job(), lambda: None)
        threading.Thread(target=may_write.set).start()
        """
    )
    left = tmp_path / "left"
    assert programs.run(program, left).returncode == 0
    assert left.read_text() == "done"


async def test_an_owned_call_that_fails_under_a_caller_cancelled_twice(pool: Pool) -> None:
    """The caller waits for its end, and nobody complains of an error that nobody was left to be told."""
    gate = Gate()

    def fail() -> str:
        gate()
        raise OSError("too late")

    calling = asyncio.create_task(pool.lane().run_owned(fail, lambda _: None))
    await until(gate.entered.is_set)
    for _ in range(3):
        calling.cancel()
        await turns()
    assert not calling.done()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    del calling
    gc.collect()


async def test_a_system_without_threads_is_told_and_asked_again(monkeypatch) -> None:
    pool = Pool("test", threads=2)
    lane, calls = pool.lane(), []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StorageUnavailableError, match="no thread can be started"):
            await lane.run(calls.append, "refused")
        with pytest.raises(StorageUnavailableError):
            await lane.run(calls.append, "refused")
    await lane.run(calls.append, "done")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        await asyncio.gather(*(lane.run(calls.append, "by one thread") for _ in range(3)))
    assert calls == ["done", *["by one thread"] * 3]
    await pool.close_with(lambda: None)


async def test_a_pool_without_threads_ends_with_its_last_call_all_the_same(monkeypatch) -> None:
    pool, calls = Pool("test", threads=1), []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    await pool.close_with(lambda: calls.append("last"))
    assert calls == ["last"]
