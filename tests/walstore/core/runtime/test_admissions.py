"""Callers that wait for room: their order, what is refused, and what a cancellation leaves."""

from __future__ import annotations

import asyncio

import pytest

from walstore.core.runtime.admissions import Admissions
from walstore.errors import WalClosedError, WouldBlock


class Room:
    """Room for some units."""

    def __init__(self, free: int = 0) -> None:
        self.free = free
        self.accepted: list[int] = []
        self.settled = 0
        self.admissions: Admissions[int, str] = Admissions(
            asyncio.get_running_loop(),
            has_room=lambda units: units <= self.free,
            accept=self.accept,
            settled=self.settle,
        )

    def accept(self, units: int) -> str:
        if units == 13:
            raise WouldBlock("unlucky")
        self.free -= units
        self.accepted.append(units)
        return f"{units} units"

    def settle(self) -> None:
        self.settled += 1

    async def waiting(self, *requests: int) -> list[asyncio.Task[str]]:
        tasks = [asyncio.ensure_future(self.admissions.wait(units)) for units in requests]
        await asyncio.sleep(0)
        return tasks

    def give(self, units: int) -> None:
        self.free += units
        self.admissions.admit()


async def test_a_smaller_request_does_not_overtake():
    room = Room()
    large, small = await room.waiting(5, 1)
    room.give(4)
    await asyncio.sleep(0)
    assert room.accepted == []
    room.give(1)
    assert await large == "5 units"
    assert not small.done()
    room.give(1)
    assert await small == "1 units"


async def test_a_cancelled_caller_makes_way():
    room = Room(free=2)
    large, small = await room.waiting(5, 1)
    large.cancel()
    assert await small == "1 units"
    assert (room.accepted, len(room.admissions.waiting)) == ([1], 0)


async def test_a_caller_cancelled_as_it_is_admitted_counts():
    room = Room()
    (only,) = await room.waiting(2)
    room.give(2)
    only.cancel()
    with pytest.raises(asyncio.CancelledError):
        await only
    assert (room.accepted, len(room.admissions.waiting)) == ([2], 0)


async def test_a_caller_cancelled_before_it_is_admitted_does_not():
    room = Room()
    only, behind = await room.waiting(2, 1)
    only.cancel()
    room.give(2)  # before the cancelled task has run
    with pytest.raises(asyncio.CancelledError):
        await only
    await asyncio.wait([behind])
    assert room.accepted == [1]
    assert not room.admissions.waiting


async def test_an_error_is_that_of_its_caller():
    room = Room()
    bad, good = await room.waiting(13, 1)
    room.give(20)
    with pytest.raises(WouldBlock, match="unlucky"):
        await bad
    assert await good == "1 units"


async def test_all_are_refused_with_errors_of_their_own():
    room = Room()
    tasks = await room.waiting(1, 2)
    tasks[0].cancel()
    before = room.settled
    room.admissions.fail(WalClosedError("closed"))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert isinstance(found[1], WalClosedError)
    assert (room.accepted, len(room.admissions.waiting)) == ([], 0)
    assert room.settled > before
