"""Fences: who was taken over from writes no more, however late its appends come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.local import SMALL
from walstore import FencedError, Wal
from walstore.testing import FaultyFileSystem


@pytest.fixture
async def wal(log_directory: Path, faulty: FaultyFileSystem):
    """An open log on a file system that can be held."""
    async with Wal.open(log_directory, settings=SMALL, fs=faulty) as opened:
        yield opened


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


async def test_it_holds_across_reopening(wal, log_directory) -> None:
    old = await wal.fence("old")
    await wal.aclose()
    async with Wal.open(log_directory) as again:
        assert again.registers == {"fence": old.token}
        new = await again.fence("new")
        assert int(new.token.split()[0]) == int(old.token.split()[0]) + 1
