"""The cursors of a log: making, listing, deleting; waiting for the lock; never below a moving head."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cursors import FS, StillLog, cursors_of, locked, on_disk, pinned
from tests.local import turns
from walstore import (
    CorruptionError,
    OffsetTrimmedError,
    StorageUnavailableError,
    WalLockedError,
)
from walstore.positions.cursors.directory import hold_cursors, lowest_pin, pins
from walstore.positions.cursors.queue import PATIENCE_SECONDS, patiently
from walstore.testing import FaultyFileSystem, ManualClock


@pytest.fixture
def log(tmp_path: Path) -> StillLog:
    """A log of the offsets 50 to 1000."""
    return StillLog(tmp_path / "log", head=50)


async def test_a_damaged_one_is_listed_refused_and_deleted(log: StillLog) -> None:
    async with cursors_of(log) as store:
        await store.open("c")
        (log.path / "cursors" / "c").write_bytes(b"")
        (info,) = await store.list()
        assert isinstance(info.problem, CorruptionError)
        with pytest.raises(CorruptionError):
            await store.open("c")
        assert await store.delete("c")
        assert (await store.open("c")).position == 50


async def test_a_listing_that_fails(log: StillLog, faulty: FaultyFileSystem) -> None:
    async with cursors_of(log, fs=faulty) as store:
        faulty.fail("list")
        with pytest.raises(StorageUnavailableError):
            await store.list()


async def test_a_directory_that_cannot_be_made(log: StillLog, faulty: FaultyFileSystem) -> None:
    async with cursors_of(log, fs=faulty) as store:
        for kind in ("make_directory", "lock"):
            faulty.fail(kind)
            with pytest.raises(StorageUnavailableError) as found:
                await store.open("c")
            assert found.value.outcome == "not_written"
        await store.open("c")


async def test_it_does_nothing_while_there_is_nothing_to_do(log: StillLog) -> None:
    async with cursors_of(log) as store:
        await store.open("c")
        await turns()
        assert not [task for task in asyncio.all_tasks() if "cursors" in task.get_name()]


async def test_a_defect_reaches_the_caller(log: StillLog, caplog) -> None:
    def make_tag(size: int) -> bytes:
        return "no bytes"  # type: ignore[return-value]

    async with cursors_of(log, make_tag=make_tag) as store:
        with pytest.raises(Exception, match="bytes"):
            await store.open("c")
    assert "defect" in caplog.text


# -- the lock --------------------------------------------------------------------------------


async def test_waiting_for_the_lock(log: StillLog, clock: ManualClock) -> None:
    async with cursors_of(log, clock=clock) as store:
        async with locked(log.path):
            opening = asyncio.create_task(store.open("c"))
            await clock.wait_for_sleepers()
            clock.advance(1)
            await clock.wait_for_sleepers()
        clock.advance(1)
        assert (await opening).position == 50


async def test_patience_ends(log: StillLog, clock: ManualClock) -> None:
    async with cursors_of(log, clock=clock) as store:
        async with locked(log.path, "a stopped process"):
            opening = asyncio.create_task(store.open("c"))
            await clock.wait_for_sleepers()
            clock.advance(PATIENCE_SECONDS)
            with pytest.raises(WalLockedError, match="a stopped process") as found:
                await opening
        assert found.value.retriable
        await store.open("c")


async def test_giving_up_on_the_lock_is_safe(log: StillLog, clock: ManualClock) -> None:
    async with cursors_of(log, clock=clock) as store:
        cursor = await store.open("c")
        async with locked(log.path):
            commit = asyncio.create_task(cursor.commit(60))
            await clock.wait_for_sleepers()
            commit.cancel()
            await asyncio.wait([commit])
        clock.advance(1)
        await cursor.commit(70)
        assert on_disk(log.path).position == 70


async def test_patiently_passes_other_errors_on(clock: ManualClock) -> None:
    async def attempt() -> int:
        raise KeyError

    with pytest.raises(KeyError):
        await patiently(clock, attempt)


# -- against retention -----------------------------------------------------------------------


async def test_no_cursor_is_made_below_a_head_that_moves(log: StillLog, clock: ManualClock) -> None:
    async with cursors_of(log, clock=clock) as store:
        async with locked(log.path):
            assert await pinned(log.path, clock) is None
            opening = [asyncio.create_task(store.open("a"))]
            opening.append(asyncio.create_task(store.open("b", start=60)))
            await clock.wait_for_sleepers()
            log.move_head(200)
        clock.advance(1)
        assert (await opening[0]).position == 200
        with pytest.raises(OffsetTrimmedError):
            await opening[1]
        assert [info.name for info in await store.list()] == ["a"]


async def test_creation_races_retention(tmp_path: Path) -> None:
    """Retention moves the head as far as pins allow, all the time; no cursor is ever below it."""
    log = StillLog(tmp_path / "log", visible_limit=10**6)
    ended = threading.Event()
    broken: list[tuple[int, int]] = []

    def retain() -> None:
        head = 1
        while not ended.is_set():
            try:
                with hold_cursors(FS, log.path):
                    pin = lowest_pin(pins(FS, log.path, 0))
                    if pin is not None and pin < head:
                        broken.append((pin, head))
                    head = max(head, min(head + 7, pin or 10**6))
                    log.move_head(head)
            except WalLockedError:
                continue

    thread = threading.Thread(target=retain)
    thread.start()
    try:
        async with cursors_of(log, clock=_RealClock()) as store:
            for turn in range(20):
                cursor = await store.open(f"c{turn}")
                assert cursor.position >= 1
                await cursor.commit(cursor.position + 3)
                await cursor.delete()
    finally:
        ended.set()
        await asyncio.to_thread(thread.join)
    assert not broken


class _RealClock(ManualClock):
    """Its pauses pass at once."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.cursors import StillLog, cursors_of
from walstore import CursorMovedError
from walstore.core.runtime.clock import SystemClock


class Log(StillLog):
    def move_head(self, head):
        self.head = head


async def main():
    done = 0
    async with cursors_of(Log(Path(sys.argv[1]), head=50), clock=SystemClock()) as store:
        cursor = await store.open("counter")
        while done < 25:
            try:
                await cursor.commit(cursor.position + 1)
                done += 1
            except CursorMovedError:
                await cursor.refresh()


asyncio.run(main())
"""


@pytest.mark.slow
async def test_two_processes_lose_no_commit(log: StillLog) -> None:
    """Each adds 25 to the position by compare-and-swap."""
    root = Path(__file__).parents[4]
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, str(log.path), cwd=root, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for child in children:
        _, complaints = await child.communicate()
        assert child.returncode == 0, complaints.decode()
    state = on_disk(log.path, "counter")
    assert (state.position, state.revision) == (100, 51)
