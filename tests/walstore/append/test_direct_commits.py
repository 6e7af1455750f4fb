"""A lone record behind a lone record: committed without waking the writer's task first, and no less safe."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.local import SMALL, contents, read_values, turns
from walstore import Settings, Wal, WalClosedError, WalError
from walstore.settings import KIB
from walstore.testing import FaultyFileSystem, Hold

ACTIVE = "next.tmp"
MOST_CALLS = 140
"""Python calls of a lone append in all threads, those of asyncio among them: 129, and 184 before."""


@pytest.fixture
async def wal(log_directory: Path, faulty: FaultyFileSystem) -> AsyncIterator[Wal]:
    """A log whose last commit had one record."""
    opened = await Wal.open(log_directory, settings=SMALL, fs=faulty)
    await opened.append(b"first")
    yield opened
    faulty.heal()
    with suppress(WalError):
        await opened.aclose()


@pytest.fixture
async def hold(wal: Wal, faulty: FaultyFileSystem) -> AsyncIterator[Hold]:
    """The sync of the next commit does not begin before it is released."""
    with faulty.hold("datasync", name=ACTIVE, times=1) as made:
        yield made


async def lone(wal: Wal, hold: Hold) -> asyncio.Task[int]:
    """Return an append whose commit is held."""
    appending = asyncio.create_task(wal.append(b"lone"))
    await hold.wait_entered()
    return appending


async def test_what_comes_meanwhile_is_the_next_commit(wal: Wal, hold: Hold) -> None:
    appending = await lone(wal, hold)
    later = [asyncio.create_task(wal.append(b"%d" % n)) for n in range(20)]
    await turns()
    hold.release()
    assert [await appending, *[await one for one in later]] == list(range(2, 23))
    assert wal.statistics().commits == 3


async def test_callers_that_append_in_one_turn_share_their_commits_as_before(wal: Wal) -> None:
    """The first of them goes alone once, as those that came before it did."""
    for _ in range(10):
        await asyncio.gather(*(wal.append(b"one of many") for _ in range(50)))
    assert wal.statistics().commits == 1 + 1 + 10


async def test_a_request_is_served_behind_it(wal: Wal, hold: Hold) -> None:
    appending = await lone(wal, hold)
    rotating = asyncio.create_task(wal.rotate())
    flushing = asyncio.create_task(wal.flush())
    await turns()
    assert not rotating.done()
    assert not flushing.done()
    hold.release()
    await asyncio.gather(appending, rotating, flushing)
    assert wal.statistics().rotations == 1
    assert await wal.append(b"in the next segment") == 3


async def test_closing_waits_for_it(wal: Wal, hold: Hold, log_directory: Path) -> None:
    appending = await lone(wal, hold)
    closing = asyncio.create_task(wal.aclose())
    await turns()
    assert not closing.done()
    hold.release()
    await closing
    assert await appending == 2
    assert [record.value for record in await contents(log_directory)] == [b"first", b"lone"]


@pytest.mark.parametrize("times", [1, 3])
async def test_whoever_is_cancelled_it_ends(
    wal: Wal, hold: Hold, log_directory: Path, times: int
) -> None:
    """All tasks are, as at the end of ``asyncio.run``; the lock is free once it has ended, not before."""
    appending = await lone(wal, hold)
    for _ in range(times):
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await turns()
    assert appending.cancelled()
    with pytest.raises(WalError):
        await Wal.open(log_directory)
    hold.release()
    await wal.aclose()
    assert [record.value for record in await contents(log_directory)] == [b"first", b"lone"]


@pytest.mark.parametrize(("kind", "outcome"), [("pwrite", "not_written"), ("datasync", "unknown")])
async def test_if_it_fails_each_caller_gets_the_outcome_of_its_record(
    wal: Wal, faulty: FaultyFileSystem, log_directory: Path, kind: str, outcome: str
) -> None:
    faulty.fail(kind, name=ACTIVE)
    with faulty.hold(kind, name=ACTIVE, times=1) as hold:
        appending = await lone(wal, hold)
        later = asyncio.create_task(wal.append(b"accepted behind it"))
        await turns()
    with pytest.raises(WalError) as failed:
        await appending
    with pytest.raises(WalError) as refused:
        await later
    assert (failed.value.outcome, refused.value.outcome) == (outcome, "not_written")
    with pytest.raises(WalClosedError):
        await wal.append(b"too late")
    with pytest.raises(WalClosedError):
        await wal.aclose()
    faulty.heal()
    assert [record.value for record in await contents(log_directory)][:1] == [b"first"]


async def test_segments_are_sealed_and_checkpoints_are_written_between_them(
    wal: Wal, faulty: FaultyFileSystem
) -> None:
    for _ in range(20):
        await wal.append(b"x" * 20 * KIB)
    assert wal.statistics().rotations >= 5
    await wal.flush()
    assert faulty.count("replace", name="CHECKPOINT") >= 5
    assert len(await read_values(wal)) == 21


@pytest.mark.parametrize(
    "settings", [Settings(linger_seconds=0.001), Settings(sync="os"), Settings(sync=0.01)]
)
async def test_other_ways_to_sync_are_as_they_were(log_directory: Path, settings: Settings) -> None:
    async with Wal.open(log_directory, settings=settings) as wal:
        assert [await wal.append(b"%d" % n) for n in range(20)] == list(range(1, 21))
        assert wal.durable_limit == 21


async def test_a_lone_append_takes_few_calls(log_directory: Path) -> None:
    """Counted, not timed; on the writer's thread, too."""
    async with Wal.open(log_directory) as wal:
        for _ in range(3):
            await wal.append(b"x" * KIB)
        counted = await calls(wal, lambda: wal.append(b"x" * KIB), times=20)
    assert counted <= MOST_CALLS


async def calls(wal: Wal, action: Callable[[], Awaitable[Any]], *, times: int) -> float:
    """Return how many Python functions an action calls, in the mean, in this thread and the writer's."""
    found = Counter[int]()

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            found[threading.get_ident()] += 1

    worker = wal._engine.worker
    await worker.run(sys.setprofile, count)
    sys.setprofile(count)
    try:
        for _ in range(times):
            await action()
    finally:
        sys.setprofile(None)
        await worker.run(sys.setprofile, None)
    assert len(found) == 2
    return found.total() / times
