"""Fences: who was taken over from writes no more, however late its appends come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.local import SMALL, read_values
from walstore import FencedError, RegisterMismatchError, Wal
from walstore.testing import FaultyFileSystem


@pytest.fixture
async def wal(log_directory: Path, faulty: FaultyFileSystem):
    """An open log on a file system that can be held."""
    async with Wal.open(log_directory, settings=SMALL, fs=faulty) as opened:
        yield opened


async def test_the_later_owner_takes_over(wal) -> None:
    old = await wal.fence("old")
    assert await old.append(b"1") == 1
    assert old.holds
    new = await wal.fence("new")
    assert not old.holds
    with pytest.raises(FencedError, match="took over") as caught:
        await old.append(b"late")
    assert caught.value.outcome == "not_written"
    with pytest.raises(FencedError):
        await old.append_many([b"late"])
    with pytest.raises(FencedError):
        async with old.transaction() as transaction:
            await transaction.append(b"late")
    assert await new.append(b"2") == 2
    assert await wal.append(b"not fenced") == 3
    assert await read_values(wal) == [b"1", b"2", b"not fenced"]


async def test_the_same_owner_fences_its_earlier_self(wal) -> None:
    first, second = await wal.fence("me"), await wal.fence("me")
    with pytest.raises(FencedError):
        await first.append(b"x")
    assert await second.append(b"x") == 1
    assert first.token != second.token


async def test_an_append_that_waits_for_room_is_checked_when_it_is_accepted(wal, faulty) -> None:
    fence = await wal.fence("old")
    with faulty.hold("datasync") as hold:
        filling = asyncio.create_task(wal.append(bytes(60_000)))
        await hold.wait_entered()
        others = [asyncio.create_task(wal.append(bytes(60_000))) for _ in range(4)]
        await asyncio.sleep(0)
        late = asyncio.create_task(fence.append(bytes(60_000)))
        taking = asyncio.create_task(wal.fence("new"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not late.done()
    await asyncio.gather(filling, *others)
    outcome = (await asyncio.gather(late, return_exceptions=True))[0]
    await taking
    assert isinstance(outcome, FencedError | int)
    with pytest.raises(FencedError):
        await fence.append(b"x")


async def test_fences_of_other_names_are_independent(wal) -> None:
    a = await wal.fence("me", register="a")
    await wal.fence("you", register="b")
    assert await a.append(b"x") == 1
    assert set(wal.registers) == {"a", "b"}


async def test_it_holds_across_reopening(wal, log_directory) -> None:
    old = await wal.fence("old")
    await wal.aclose()
    async with Wal.open(log_directory) as again:
        assert again.registers == {"fence": old.token}
        new = await again.fence("new")
        assert int(new.token.split()[0]) == int(old.token.split()[0]) + 1


async def test_its_transactions_may_expect_and_update_registers(wal) -> None:
    fence = await wal.fence("me")
    async with fence.transaction(expect={"at": None}, update={"at": "1"}) as transaction:
        await transaction.append(b"x")
    with pytest.raises(RegisterMismatchError):
        async with fence.transaction(expect={"at": None}):
            pass
    assert wal.registers["at"] == "1"


async def test_many_take_it_at_once_and_one_holds(wal) -> None:
    fences = await asyncio.gather(*(wal.fence(f"owner {n}") for n in range(20)))
    assert sum(fence.holds for fence in fences) == 1
    assert len({fence.token for fence in fences}) == 20


async def test_a_register_that_was_no_fence_becomes_one(wal) -> None:
    async with wal.transaction(update={"fence": "written by hand"}):
        pass
    fence = await wal.fence("me")
    assert await fence.append(b"x") == 1


@pytest.mark.parametrize("owner", ["", "x" * 300])
async def test_bad_owners(wal, owner) -> None:
    with pytest.raises(ValueError, match="owner"):
        await wal.fence(owner)
