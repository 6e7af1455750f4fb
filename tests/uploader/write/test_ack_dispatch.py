"""Acknowledging many appends: in order, some in each turn of the loop, until nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.cloud import MemorySource
from uploader.write.ack_dispatch import AT_ONCE, AckDispatch, AppendAcks, UploadAcks
from uploader.write.pending_fragment import PendingFragment
from walstore.core.batches.append_request import make_group


class Work:
    """So many steps, and how many of them were taken."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.taken = 0
        self.during: Callable[[], None] = lambda: None
        self.dispatch = AckDispatch(asyncio.get_running_loop(), self.step)

    def step(self) -> bool:
        self.during()
        self.taken += 1
        self.left -= 1
        return self.left > 0


async def turn() -> None:
    """Let the loop turn once."""
    await asyncio.sleep(0)


async def test_nothing_happens_before_the_next_turn() -> None:
    work = Work(1)
    await turn()
    assert work.taken == 0
    work.dispatch.begin()
    assert work.taken == 0
    await turn()
    assert work.taken == 1


async def test_one_step_in_each_turn_until_done() -> None:
    work = Work(3)
    work.dispatch.begin()
    for taken in (1, 2, 3, 3, 3):
        await turn()
        assert work.taken == taken


async def test_others_have_their_turns_in_between() -> None:
    seen: list[str] = []
    work = Work(3)
    work.during = lambda: seen.append("step")
    work.dispatch.begin()

    def other() -> None:
        seen.append("other")
        if len(seen) < 6:
            asyncio.get_running_loop().call_soon(other)

    asyncio.get_running_loop().call_soon(other)
    for _ in range(4):
        await turn()
    assert seen == ["step", "other"] * 3


async def test_to_begin_while_it_runs_starts_no_second_one() -> None:
    work = Work(4)
    work.dispatch.begin()
    work.dispatch.begin()
    for taken in (1, 2, 3, 4, 4):
        await turn()
        assert work.taken == taken
        if work.left:
            work.dispatch.begin()


async def test_to_begin_within_a_step_starts_no_second_one() -> None:
    work = Work(3)
    work.during = work.dispatch.begin
    work.dispatch.begin()
    for taken in (1, 2, 3, 3):
        await turn()
        assert work.taken == taken


async def test_it_begins_again_after_its_end() -> None:
    work = Work(2)
    for taken in (2, 4):
        work.left = 2
        work.dispatch.begin()
        for _ in range(5):
            await turn()
        assert work.taken == taken


async def test_it_can_begin_again_after_a_step_that_failed() -> None:
    work, told = Work(2), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def fail() -> None:
        work.during = lambda: None
        raise RuntimeError("no")

    work.during = fail
    work.dispatch.begin()
    await turn()
    assert len(told) == 1
    work.dispatch.begin()
    await turn()
    await turn()
    assert work.taken == 2


# -- appends of a cloud writer -----------------------------------------------------------------


def fragment(start: int, count: int) -> tuple[PendingFragment, list[asyncio.Future[int]]]:
    found, waiters = PendingFragment(), []
    for _ in range(count):
        waiters.append(asyncio.get_running_loop().create_future())
        found.add(make_group([b"1", b"2"], None, None, None, None), waiters[-1], None)
    found.place(1, start)
    return found, waiters


async def test_appends_in_order_some_at_a_time() -> None:
    """Each append learns its own offset; a caller that has gone is passed over."""
    loop = asyncio.get_running_loop()
    acks = AppendAcks(loop)
    first, waiters = fragment(1, AT_ONCE + 5)
    second, others = fragment(1000, 1)
    waiters[3].cancel()
    acks.send(first)
    acks.send(second)
    decided = first.wait_decided(loop), second.wait_decided(loop)
    await asyncio.sleep(0)
    assert [waiter.done() for waiter in waiters] == [True] * AT_ONCE + [False] * 5
    await asyncio.wait(decided)
    assert [waiter.result() for waiter in waiters if not waiter.cancelled()] == [
        1 + 2 * at for at in range(AT_ONCE + 5) if at != 3
    ]
    assert others[0].result() == 1000


# -- the uploaded limit of a local log ---------------------------------------------------------


async def test_at_once_if_nobody_waits() -> None:
    source = MemorySource()
    acks = UploadAcks(source, asyncio.get_running_loop())
    acks.send(10_000)
    await asyncio.sleep(0)
    assert source.uploaded_limit == 10_000
    await acks.wait_delivered()


async def test_bit_by_bit_if_appends_wait() -> None:
    """The loop does other things in between; a later announcement goes on where this one is."""
    source = MemorySource()
    source.hurry()
    acks = UploadAcks(source, asyncio.get_running_loop())
    acks.send(1 + 3 * AT_ONCE)
    await asyncio.sleep(0)
    assert source.uploaded_limit == 1 + AT_ONCE
    acks.send(1 + 4 * AT_ONCE)
    acks.send(1)
    await acks.wait_delivered()
    assert source.uploaded_limit == 1 + 4 * AT_ONCE
