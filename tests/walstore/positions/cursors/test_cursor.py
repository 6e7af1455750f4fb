"""Cursors: commits that compare and swap, survive faults and power loss, and pin unless expired."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from itertools import count
from pathlib import Path

import pytest

from tests import cursors
from tests.cursors import StillLog, cursors_of
from tests.local import UnsyncedFileSystem, gather_outcomes, turns
from tests.waiting import until
from walstore import (
    CorruptionError,
    CursorMovedError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalError,
)
from walstore.positions.cursors.directory import list_cursors
from walstore.testing import FaultyFileSystem, ManualClock, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL


@pytest.fixture
def log(tmp_path: Path) -> StillLog:
    """A log of the offsets 1 to 1000."""
    return StillLog(tmp_path / "log")


def on_disk(log: StillLog) -> int:
    """Return the position that another process would find."""
    return cursors.on_disk(log.path).position


def rewrite(log: StillLog, name: str, data: bytes) -> None:
    (log.path / "cursors" / name).write_bytes(data)


async def test_commit_moves_it_durably(log: StillLog) -> None:
    async with cursors_of(log) as store:
        cursor = await store.open("c")
        assert (cursor.name, cursor.position, cursor.lease_seconds) == ("c", 1, None)
        await cursor.commit(500)
        assert cursor.position == on_disk(log) == 500
        await cursor.commit(1001)
        assert repr(cursor) == "<Cursor 'c' at 1001>"
    async with cursors_of(log) as store:
        assert (await store.open("c")).position == 1001


async def test_the_file_counts_commits(log: StillLog, clock: ManualClock) -> None:
    async with cursors_of(log, clock=clock, owner="process 7") as store:
        cursor = await store.open("c")
        clock.advance(5)
        await cursor.commit(2)
    state = cursors.on_disk(log.path)
    assert (state.revision, state.updated_us, state.owner) == (2, clock.now_us(), "process 7")


async def test_a_tier_keeps_what_the_disk_gave_up(log: StillLog) -> None:
    log.move_head(100)
    log.tier_head = 50
    async with cursors_of(log) as store:
        cursor = await store.open("c")
        assert cursor.position == 50
        await cursor.commit(200)
        await cursor.rewind(60)
        with pytest.raises(OffsetTrimmedError):
            await cursor.rewind(49)


async def test_to_where_it_is_writes_nothing(log: StillLog, faulty: FaultyFileSystem) -> None:
    async with cursors_of(log, fs=faulty) as store:
        cursor = await store.open("c")
        await cursor.renew()
        await cursor.commit(1)
        assert faulty.count("replace") == 1, "when it was made"
        await (await store.open("c")).commit(2)
        with pytest.raises(CursorMovedError):
            await cursor.commit(1)


# -- compare and swap ------------------------------------------------------------------------


async def test_handles_that_commit_in_the_same_round(
    log: StillLog, faulty: FaultyFileSystem
) -> None:
    async with cursors_of(log, fs=faulty) as store:
        handles = [await store.open("c") for _ in range(5)]
        others = [await store.open(f"other-{at}") for at in range(5)]
        before = faulty.count("sync_directory")
        outcomes = await gather_outcomes(
            handle.commit(10 + at) for at, handle in enumerate([*handles, *others])
        )
        assert outcomes[0] is None
        assert all(isinstance(found, CursorMovedError) for found in outcomes[1:5])
        assert outcomes[5:] == [None] * 5
        assert on_disk(log) == 10
        assert faulty.count("sync_directory") == before + 1


async def test_a_damaged_file(log: StillLog) -> None:
    async with cursors_of(log) as store:
        cursor = await store.open("c")
        rewrite(log, "c", b"damaged")
        for call in (lambda: cursor.commit(2), cursor.refresh, cursor.delete):
            with pytest.raises(CorruptionError) as found:
                await call()
            assert found.value.path == str(log.path / "cursors" / "c")


# -- many at once ----------------------------------------------------------------------------


async def test_commits_under_way_become_one_write(log: StillLog, faulty: FaultyFileSystem) -> None:
    async with cursors_of(log, fs=faulty) as store:
        cursor = await store.open("c")
        with faulty.hold("replace") as hold:
            first = asyncio.create_task(cursor.commit(2))
            await hold.wait_entered()
            rest = [asyncio.create_task(cursor.commit(at)) for at in range(3, 100)]
            await turns()
            assert cursor.target == 99
            with pytest.raises(ValueError, match="back from 99"):
                await cursor.commit(98)
        await asyncio.gather(first, *rest)
        assert cursor.position == on_disk(log) == 99
        assert faulty.count("replace", name="c") == 3  # made, the first, all the others


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_cancellation_at_every_await_of_a_commit(log: StillLog, steps: int) -> None:
    async with cursors_of(log) as store:
        cursor = await store.open("c")
        for position in range(2, 12):
            commit = asyncio.create_task(cursor.commit(position))
            await turns(steps)
            commit.cancel()
            await asyncio.wait([commit])
            if not commit.cancelled():
                assert cursor.position == on_disk(log) == position
        await cursor.commit(100)
        assert cursor.position == on_disk(log) == 100


async def test_closing_waits_for_what_was_begun(log: StillLog, faulty: FaultyFileSystem) -> None:
    async with cursors_of(log, fs=faulty) as store:
        cursor = await store.open("c")
        with faulty.hold("replace") as hold:
            commit = asyncio.create_task(cursor.commit(2))
            await hold.wait_entered()
            closing = asyncio.create_task(store.aclose())
            await turns()
            assert not closing.done()
            with pytest.raises(WalClosedError):
                await cursor.commit(3)
        await closing
        assert on_disk(log) == 2
        await commit
        with pytest.raises(WalClosedError):
            await cursor.refresh()


async def test_the_loop_stops_while_a_cursor_moves(log: StillLog, faulty: FaultyFileSystem) -> None:
    async with cursors_of(log, fs=faulty) as store:
        cursor = await store.open("c")
        with faulty.hold("replace") as hold:
            commits = [asyncio.create_task(cursor.commit(at)) for at in (2,)]
            await hold.wait_entered()
            commits.append(asyncio.create_task(cursor.commit(3)))
            await turns()
            (draining,) = [task for task in asyncio.all_tasks() if "cursors" in task.get_name()]
            draining.cancel()
            first, second = await gather_outcomes(commits)
        assert isinstance(first, OutcomeUnknownError)
        assert isinstance(second, WalClosedError)
        await until(lambda: on_disk(log) == 2)
        await cursor.commit(4)
        assert cursor.position == on_disk(log) == 4


# -- faults ----------------------------------------------------------------------------------

FAULTS = {
    "one-error": {"error": errno.EIO},
    "done-and-reported-failed": {"happened": True},
    "half-written": {"error": errno.ENOSPC, "written_bytes": 20},
    "full-for-good": {"error": errno.ENOSPC, "times": None},
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_any_call_of_a_commit_may_fail(tmp_path: Path, fault: str) -> None:
    """Then the cursor is where it was or where it should be, and the same handle goes on."""
    for nth in count(1):
        log = StillLog(tmp_path / str(nth))
        fs = FaultyFileSystem(UnsyncedFileSystem())
        async with cursors_of(log, fs=fs) as store:
            cursor = await store.open("c")
            calls = len(fs.calls)
            fs.fail("*", nth=nth, **FAULTS[fault])
            (error,) = await gather_outcomes([cursor.commit(10)])
            if error is None:
                assert cursor.position == on_disk(log) == 10
            else:
                assert isinstance(error, WalError)
                assert error.retriable
                assert cursor.position == 1
                assert error.outcome == "unknown" or on_disk(log) == 1
            reached = len(fs.calls) >= calls + nth
            fs.heal()
            assert on_disk(log) in (1, 10)
            await cursor.commit(10)
            assert cursor.position == on_disk(log) == 10
            await cursor.commit(11)
        if not reached:
            break
    assert nth > 8


async def test_after_an_unknown_outcome_a_lower_commit_is_no_rewind(
    log: StillLog, faulty: FaultyFileSystem
) -> None:
    async with cursors_of(log, fs=faulty) as store:
        cursor = await store.open("c")
        faulty.fail("sync_directory")
        with pytest.raises(OutcomeUnknownError):
            await cursor.commit(50)
        assert (cursor.position, cursor.target) == (1, 1)
        await cursor.commit(1)  # not written, as far as the handle knows; but it must not be at 50
        assert cursor.position == on_disk(log) == 1


async def test_after_an_unknown_outcome_a_lower_commit_asks_for_what_was_removed(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """Retention may have believed the one whose outcome is unknown."""
    async with Wal.open(log_directory, fs=faulty) as wal:
        await wal.append_many([b"x"] * 10)
        cursor = await wal.cursor("c")
        faulty.fail("sync_directory", name="cursors")
        with pytest.raises(OutcomeUnknownError):
            await cursor.commit(8)
        assert await wal.trim(11) == 8
        with pytest.raises(OffsetTrimmedError):
            await cursor.commit(3)
        await cursor.commit(8)
        assert (await wal.cursor("c")).position == 8


async def test_after_an_unknown_outcome_others_still_count(
    log: StillLog, faulty: FaultyFileSystem
) -> None:
    async with cursors_of(log, fs=faulty) as store, cursors_of(log) as others:
        cursor = await store.open("c")
        faulty.fail("sync_directory")
        with pytest.raises(OutcomeUnknownError):
            await cursor.commit(50)
        other = await others.open("c")
        assert other.position == 50
        await other.commit(60)
        with pytest.raises(CursorMovedError):
            await cursor.commit(70)
        assert await cursor.refresh() == 60


async def test_a_failed_read_of_the_head_refuses(log: StillLog, faulty: FaultyFileSystem) -> None:
    async with cursors_of(log, fs=faulty) as store:
        cursor = await store.open("c", start=10)
        faulty.fail("read", name="DURABLE")
        with pytest.raises(StorageUnavailableError):
            await cursor.rewind(5)
        await cursor.rewind(5)


STRIDES = [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]


async def live(log: StillLog, power: FaultyFileSystem) -> tuple[int, int]:
    """Make a cursor and move it until the power goes; return the bounds of where it may be."""
    durable = attempted = 0
    async with cursors_of(log, fs=power) as store:
        try:
            cursor = await store.open("c", lease_seconds=60)
            durable = attempted = 1
            for position in (10, 20, 30):
                attempted = position
                await cursor.commit(position)
                durable = position
                await cursor.renew()
        except WalError:
            pass
    return durable, attempted


@pytest.mark.parametrize("stride", STRIDES)
async def test_the_power_may_go_before_any_call(tmp_path: Path, stride: int) -> None:
    """Then the cursor is where a commit that returned left it, or where the last one was going."""
    for nth in count(1, stride):
        root = tmp_path / str(nth)
        root.mkdir()
        log = StillLog(root / "log")
        power = PowerLossFileSystem(root, UnsyncedFileSystem())
        fs = FaultyFileSystem(power)
        fs.before_each(lambda _, fs=fs, power=power, nth=nth: len(fs.calls) >= nth and power.cut())
        durable, attempted = await live(log, fs)
        for seed in (LOSE_ALL, KEEP_ALL, 2 * nth, 2 * nth + 1):
            target = tmp_path / f"{nth}-{seed}"
            await asyncio.to_thread(power.crash, seed, target)
            found = await asyncio.to_thread(list_cursors, cursors.FS, target / "log", 0)
            if durable == 0 and not found:
                continue  # it was never made
            assert [info.problem for info in found] == [None]
            assert found[0].position in (durable or 1, attempted or 1)
        if len(fs.calls) < nth:
            break
    assert nth > 40


@pytest.mark.parametrize("use", ["open", "commit", "refresh"])
async def test_what_a_process_that_died_left_unsynced_is_durable_before_it_is_believed(
    tmp_path: Path, use: str
) -> None:
    (tmp_path / "root").mkdir()
    log = StillLog(tmp_path / "root" / "log")
    power = PowerLossFileSystem(tmp_path / "root", UnsyncedFileSystem())
    dying = FaultyFileSystem(power)
    async with cursors_of(log, fs=dying) as other, cursors_of(log, fs=power) as store:
        theirs = await other.open("c")
        ours = await store.open("c")
        dying.fail("sync_directory", times=None)
        with pytest.raises(OutcomeUnknownError):
            await theirs.commit(30)
        if use == "refresh":
            await ours.refresh()
        else:
            ours = await store.open("c")
        if use == "commit":
            await ours.commit(30)
        assert ours.position == 30
    await asyncio.to_thread(power.crash, LOSE_ALL, tmp_path / "crashed")
    found = await asyncio.to_thread(list_cursors, cursors.FS, tmp_path / "crashed" / "log", 0)
    assert [info.position for info in found] == [30]


async def test_looking_syncs_what_is_new_only(log: StillLog, faulty: FaultyFileSystem) -> None:
    async with cursors_of(log) as store:
        await (await store.open("c")).commit(10)
    async with cursors_of(log, fs=faulty) as store:
        cursor = await store.open("c")
        assert faulty.count("sync_directory") == 1, "another process wrote it"
        for _ in range(3):
            await cursor.commit(10)
            await (await store.open("c")).refresh()
        assert faulty.count("sync_directory") == 1
        await cursor.commit(20)
        await cursor.commit(20)
        assert faulty.count("sync_directory") == 2


async def test_what_cannot_be_synced_is_not_believed(
    log: StillLog, faulty: FaultyFileSystem
) -> None:
    async with cursors_of(log) as store:
        await (await store.open("c")).commit(10)
    async with cursors_of(log, fs=faulty) as store:
        faulty.fail("sync_directory", times=2)
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError):
                await store.open("c")
        assert (await store.open("c")).position == 10


# -- leases ----------------------------------------------------------------------------------


async def pinned(log: StillLog, clock: ManualClock) -> int | None:
    return await cursors.pinned(log.path, clock)


async def test_a_lease_ends(log: StillLog, clock: ManualClock) -> None:
    async with cursors_of(log, clock=clock) as store:
        cursor = await store.open("c", start=10, lease_seconds=60)
        assert cursor.lease_seconds == 60
        clock.advance(59.999)
        assert await pinned(log, clock) == 10
        clock.advance(0.001)
        assert await pinned(log, clock) is None


@pytest.mark.parametrize("how", ["renew", "commit", "commit-same", "rewind", "open"])
async def test_what_extends_a_lease(log: StillLog, clock: ManualClock, how: str) -> None:
    async with cursors_of(log, clock=clock) as store:
        cursor = await store.open("c", start=10, lease_seconds=60)
        clock.advance(50)
        if how == "renew":
            await cursor.renew()
        elif how == "commit":
            await cursor.commit(20)
        elif how == "commit-same":
            await cursor.commit(10)
        elif how == "rewind":
            await cursor.rewind(5)
        else:
            await store.open("c")
        clock.advance(59)
        assert await pinned(log, clock) == await cursor.refresh()
        clock.advance(1)
        assert await pinned(log, clock) is None


async def test_a_holder_that_comes_back_in_time(log: StillLog, clock: ManualClock) -> None:
    async with cursors_of(log, clock=clock) as store:
        cursor = await store.open("c", start=10, lease_seconds=60)
        clock.advance(1000)
        log.move_head(10)
        await cursor.renew()
        assert await pinned(log, clock) == 10
        clock.advance(1000)
        await cursor.commit(11)
        assert await pinned(log, clock) == 11


async def test_a_holder_that_comes_back_too_late(log: StillLog, clock: ManualClock) -> None:
    async with cursors_of(log, clock=clock) as store:
        cursor = await store.open("c", start=10, lease_seconds=60)
        clock.advance(1000)
        log.move_head(100)
        for call in (lambda: cursor.commit(99), cursor.renew, lambda: store.open("c")):
            with pytest.raises(OffsetTrimmedError) as found:
                await call()
            assert found.value.head == 100
        assert await pinned(log, clock) is None
        await cursor.commit(
            100
        )  # what was read before it was removed, or what is skipped knowingly
        assert await pinned(log, clock) == 100


async def test_a_lease_is_changed_by_opening(log: StillLog, clock: ManualClock) -> None:
    async with cursors_of(log, clock=clock) as store:
        await store.open("c")
        assert (await store.open("c", lease_seconds=10)).lease_seconds == 10
        assert (await store.open("c")).lease_seconds == 10
        cursor = await store.open("c", lease_seconds=0.5)
        state = cursors.on_disk(log.path)
        assert state == dataclasses.replace(
            state, lease_us=500_000, deadline_us=clock.now_us() + 500_000
        )
        assert cursor.lease_seconds == 0.5
