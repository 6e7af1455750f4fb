"""A fence: who was taken over from writes no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.faces import on
from tests.contract.reading import values
from walstore import FencedError, RegisterMismatchError

LOGS = ("opened", "replicated", "served")


@on(*LOGS)
async def test_the_later_owner_takes_over(log: Any) -> None:
    old = await log.fence("old")
    assert await old.append(b"1") == 1
    assert old.holds
    new = await log.fence("new")
    with pytest.raises(FencedError, match="took over") as caught:
        await old.append(b"late")
    assert caught.value.outcome == "not_written"
    assert not old.holds
    with pytest.raises(FencedError):
        await old.append_many([b"late"])
    with pytest.raises(FencedError):
        async with old.transaction() as transaction:
            await transaction.append(b"late")
    assert await new.append(b"2") == 2
    assert await log.append(b"not fenced") == 3
    assert new.holds
    assert await values(log) == [b"1", b"2", b"not fenced"]


@on(*LOGS)
async def test_the_same_owner_fences_its_earlier_self(log: Any) -> None:
    first, second = await log.fence("me"), await log.fence("me")
    with pytest.raises(FencedError):
        await first.append(b"x")
    assert await second.append(b"x") == 1
    assert first.token != second.token


@on(*LOGS)
async def test_fences_of_other_names_are_independent(log: Any) -> None:
    a = await log.fence("me", register="a")
    await log.fence("you", register="b")
    assert await a.append(b"x") == 1
    assert set(log.registers) == {"a", "b"}


@on(*LOGS)
async def test_its_transactions_may_expect_and_update_registers(log: Any) -> None:
    fence = await log.fence("me")
    async with fence.transaction(expect={"at": None}, update={"at": "1"}) as transaction:
        await transaction.append(b"x")
    with pytest.raises(RegisterMismatchError):
        async with fence.transaction(expect={"at": None}):
            pass
    assert log.registers["at"] == "1"
    assert fence.holds


@on(*LOGS)
async def test_many_take_it_at_once_and_one_holds(log: Any) -> None:
    fences = await asyncio.gather(*(log.fence(f"owner {n}") for n in range(20)))
    await log.refresh()
    assert sum(fence.holds for fence in fences) == 1
    assert len({fence.token for fence in fences}) == 20


@on(*LOGS)
async def test_a_register_that_was_no_fence_becomes_one(log: Any) -> None:
    async with log.transaction(update={"fence": "written by hand"}):
        pass
    fence = await log.fence("me")
    assert await fence.append(b"x") == 1


@on(*LOGS)
@pytest.mark.parametrize("owner", ["", "x" * 300])
async def test_bad_owners(log: Any, owner: str) -> None:
    with pytest.raises(ValueError, match="owner"):
        await log.fence(owner)


@on(*LOGS)
async def test_a_condition_on_the_register_of_the_fence_itself_is_refused(log: Any) -> None:
    """It would take the place of the fence's own, or be forgotten for it."""
    fence = await log.fence("me", register="mine")
    with pytest.raises(ValueError, match="'mine'"):
        fence.transaction(expect={"mine": None})
    async with fence.transaction(expect={"other": None}) as transaction:
        await transaction.append(b"1")
    assert await values(log) == [b"1"]
