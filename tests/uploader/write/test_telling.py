"""Steps of telling: one in each turn of the loop, until nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uploader.write.telling import Telling


class Work:
    """So many steps, and how many of them were taken."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.taken = 0
        self.during: Callable[[], None] = lambda: None
        self.telling = Telling(asyncio.get_running_loop(), self.step)

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
    work.telling.begin()
    assert work.taken == 0
    await turn()
    assert work.taken == 1


async def test_one_step_in_each_turn_until_done() -> None:
    work = Work(3)
    work.telling.begin()
    for taken in (1, 2, 3, 3, 3):
        await turn()
        assert work.taken == taken


async def test_others_have_their_turns_in_between() -> None:
    seen: list[str] = []
    work = Work(3)
    work.during = lambda: seen.append("step")
    work.telling.begin()

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
    work.telling.begin()
    work.telling.begin()
    for taken in (1, 2, 3, 4, 4):
        await turn()
        assert work.taken == taken
        if work.left:
            work.telling.begin()


async def test_to_begin_within_a_step_starts_no_second_one() -> None:
    work = Work(3)
    work.during = work.telling.begin
    work.telling.begin()
    for taken in (1, 2, 3, 3):
        await turn()
        assert work.taken == taken


async def test_it_begins_again_after_its_end() -> None:
    work = Work(2)
    for taken in (2, 4):
        work.left = 2
        work.telling.begin()
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
    work.telling.begin()
    await turn()
    assert len(told) == 1
    work.telling.begin()
    await turn()
    await turn()
    assert work.taken == 2
