"""Writer: acknowledges only what is synced, groups what gathers meanwhile, and fails for good."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.local import SMALL, gather_outcomes, read_all, read_values, segments, turns
from tests.waiting import until
from walstore import (
    DiskFullError,
    FencedError,
    OutcomeUnknownError,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalError,
)
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem, ManualClock

ACTIVE = "next.tmp"
"""The name under which a new segment was opened; its calls keep it."""


@pytest.fixture
async def wal(log_directory: Path, faulty: FaultyFileSystem, clock: ManualClock):
    """An open log on a file system that can fail."""
    opened = await Wal.open(log_directory, settings=SMALL, fs=faulty, clock=clock)
    yield opened
    faulty.heal()
    try:
        await opened.aclose()
    except WalError:
        assert opened._engine.writer.failure is not None


# -- W1, W2 ----------------------------------------------------------------------------------------


async def test_W1_an_append_returns_only_after_its_sync_has(wal, faulty) -> None:
    with faulty.hold("datasync", name=ACTIVE) as hold:
        disk = asyncio.create_task(wal.append(b"disk"))
        memory = asyncio.create_task(wal.append(b"memory", durability="memory"))
        await hold.wait_entered()
        await turns()
        assert memory.result() == 2
        assert not disk.done()
        assert (wal.durable_limit, wal.tail) == (1, 3)
    assert await disk == 1
    assert wal.durable_limit >= 2


async def test_what_gathers_while_one_commit_syncs_is_committed_together(wal, faulty) -> None:
    await wal.append(b"first")
    with faulty.hold("datasync", name=ACTIVE) as hold:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wal.append(b"held"))
            await hold.wait_entered()
            before = (faulty.count("pwrite"), faulty.count("datasync"))
            for n in range(100):
                tasks.create_task(wal.append(b"%d" % n))
            await turns()
            hold.release()
    assert (faulty.count("pwrite"), faulty.count("datasync")) == (before[0] + 1, before[1] + 1)
    assert wal.statistics().commits == 3


async def test_W2_readers_find_a_commit_in_the_cache(wal) -> None:
    for n in range(10):
        await wal.append(b"%d" % n)
        assert (await read_all(wal, n + 1))[0].value == b"%d" % n
    assert wal.statistics().file_reads == 0


async def test_a_checkpoint_follows_so_many_bytes(wal, faulty) -> None:
    before = faulty.count("replace", name="CHECKPOINT")
    for _ in range(3):
        await wal.append(b"x" * 20 * KIB)
    assert faulty.count("replace", name="CHECKPOINT") == before
    await wal.append(b"x" * 20 * KIB)
    await wal.rotate()
    assert faulty.count("replace", name="CHECKPOINT") > before


# -- rotation --------------------------------------------------------------------------------------


async def test_rotation_is_a_barrier_for_all_that_was_accepted(wal, log_directory) -> None:
    for _ in range(5):
        wal.append_nowait(b"x" * 10 * KIB)
    await wal.rotate()
    assert wal.durable_limit == 6
    assert [path.name for path in segments(log_directory)] == [
        "00000000000000000001.wal",
        "00000000000000000006.wal",
    ]


async def test_rotating_an_empty_segment_does_nothing(wal, log_directory) -> None:
    await wal.rotate()
    await wal.append(b"a")
    await wal.rotate()
    await wal.rotate()
    assert len(segments(log_directory)) == 2
    assert wal.statistics().rotations == 1


async def test_rotations_from_many_tasks_while_others_append(wal, log_directory) -> None:
    async def append(name: bytes) -> list[int]:
        return [await wal.append(name + b"%d" % n) for n in range(50)]

    async with asyncio.TaskGroup() as tasks:
        appending = [tasks.create_task(append(name)) for name in (b"a", b"b", b"c")]
        for _ in range(5):
            tasks.create_task(wal.rotate())
            await turns(50)
    offsets = sorted(offset for task in appending for offset in task.result())
    assert offsets == list(range(1, 151))
    values = await read_values(wal)
    for name in (b"a", b"b", b"c"):
        assert [v for v in values if v[:1] == name] == [name + b"%d" % n for n in range(50)]


async def test_cancelling_a_rotation_does_not_stop_it(wal, faulty, log_directory) -> None:
    await wal.append(b"a")
    with faulty.hold("truncate") as hold:
        rotating = asyncio.create_task(wal.rotate())
        other = asyncio.create_task(wal.append(b"b"))
        await hold.wait_entered()
        rotating.cancel()
        await turns()
        assert rotating.cancelled()
    assert await other == 2
    assert len(segments(log_directory)) == 2
    await wal.rotate()
    assert len(segments(log_directory)) == 3


async def test_a_rotation_asked_for_while_the_log_closes_ends(log_directory) -> None:
    wal = await Wal.open(log_directory)
    await wal.append(b"a")
    outcomes = await gather_outcomes([wal.aclose(), wal.rotate(), wal.rotate()])
    assert outcomes[0] is None
    assert all(found is None or isinstance(found, WalClosedError) for found in outcomes)
    with pytest.raises(WalClosedError, match="the log is closed"):
        await wal.rotate()


@pytest.mark.parametrize(
    ("error", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, OutcomeUnknownError)]
)
@pytest.mark.parametrize("call", ["rotate", "trim"])
async def test_a_call_that_fails_the_log_says_why(wal, faulty, call, error, kind) -> None:
    """Later ones are told that it failed."""
    await wal.append(b"a")
    faulty.fail("datasync", error=error)
    calls = {"rotate": wal.rotate, "trim": lambda: wal.trim(2)}
    with pytest.raises(kind) as caught:
        await calls[call]()
    assert (caught.value.outcome, caught.value.__cause__.errno) == ("unknown", error)
    for later in calls.values():
        with pytest.raises(WalClosedError) as closed:
            await later()
        assert closed.value.reason == "failed"


# -- rotation by age -------------------------------------------------------------------------------


@pytest.fixture
async def aging(log_directory: Path, clock: ManualClock):
    """A log whose segments are sealed after a minute."""
    settings = SMALL.replace(segment_age_seconds=60)
    async with Wal.open(log_directory, settings=settings, clock=clock) as opened:
        yield opened


def sealed_count(wal: Wal) -> int:
    return wal.statistics().rotations


async def test_an_empty_log_is_not_woken(aging, clock) -> None:
    await turns(100)
    assert clock.sleepers == 0


async def test_a_small_segment_is_sealed_at_its_age(aging, clock, log_directory) -> None:
    for round_ in range(3):
        await aging.append(b"a")
        await clock.wait_for_sleepers()
        clock.advance(59)
        await turns(100)
        await aging.append(b"b")
        assert sealed_count(aging) == round_
        clock.advance(1)
        await until(lambda expected=round_ + 1: sealed_count(aging) == expected)
    await turns(100)
    assert clock.sleepers == 0, "the active segment is empty again"
    assert [path.name[-7:] for path in segments(log_directory)] == [
        "001.wal",
        "003.wal",
        "005.wal",
        "007.wal",
    ]


async def test_a_rotation_by_size_begins_the_age_anew(aging, clock) -> None:
    await aging.append(b"x" * 40 * KIB)
    await clock.wait_for_sleepers()
    clock.advance(50)
    await aging.append(b"x" * 40 * KIB)  # seals the first
    assert sealed_count(aging) == 1
    clock.advance(10)
    await clock.wait_for_sleepers()
    assert sealed_count(aging) == 1, "the second segment is only ten seconds old"
    clock.advance(50)
    await until(lambda: sealed_count(aging) == 2)


async def test_an_asked_rotation_begins_the_age_anew(aging, clock) -> None:
    await aging.append(b"a")
    await clock.wait_for_sleepers()
    clock.advance(50)
    await aging.rotate()
    await aging.append(b"b")
    clock.advance(10)
    await clock.wait_for_sleepers()
    assert sealed_count(aging) == 1
    clock.advance(50)
    await until(lambda: sealed_count(aging) == 2)


async def test_records_found_at_open_age_too(log_directory, clock) -> None:
    settings = SMALL.replace(segment_age_seconds=60)
    async with Wal.open(log_directory, settings=settings, clock=clock) as wal:
        await wal.append(b"a")
    async with Wal.open(log_directory, settings=settings, clock=clock) as wal:
        await clock.wait_for_sleepers()
        clock.advance(60)
        await until(lambda: sealed_count(wal) == 1)


async def test_a_failed_log_ages_no_more(log_directory, faulty, clock) -> None:
    settings = SMALL.replace(segment_age_seconds=60)
    wal = await Wal.open(log_directory, settings=settings, fs=faulty, clock=clock)
    await wal.append(b"a")
    await clock.wait_for_sleepers()
    faulty.fail("truncate", errno.EIO)
    clock.advance(60)
    await until(lambda: wal._engine.writer.failure is not None)
    faulty.heal()
    with pytest.raises(WalClosedError):
        await wal.aclose()
    assert clock.sleepers == 0


# -- W3: failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "in_flight", "outcome"),
    [
        ("pwrite", errno.ENOSPC, DiskFullError, "not_written"),
        ("pwrite", errno.EIO, StorageUnavailableError, "not_written"),
        ("datasync", errno.EIO, OutcomeUnknownError, "unknown"),
        ("datasync", errno.ENOSPC, DiskFullError, "unknown"),
    ],
)
async def test_W3_every_waiter_is_told_what_became_of_its_record(
    wal, faulty, kind, code, in_flight, outcome
) -> None:
    await wal.append(b"durable")
    with faulty.hold(kind, name=ACTIVE) as hold:
        faulty.fail(kind, code, name=ACTIVE)
        first = asyncio.create_task(wal.append(b"in flight"))
        await hold.wait_entered()
        second = asyncio.create_task(wal.append(b"behind"))
        many = asyncio.create_task(wal.append_many([b"x" * 60 * KIB] * 4))  # nearly all the room
        waiting = asyncio.create_task(wal.append(b"y" * 60 * KIB))  # no room
        flushing = asyncio.create_task(wal.flush())
        upgrading = asyncio.create_task(wal.wait_durable(2))
        reading = asyncio.create_task(read_forever(wal))
        rotating = asyncio.create_task(wal.rotate())
        await turns()
    for task, kind_of, expected in [
        (first, in_flight, outcome),
        (second, WalError, "not_written"),
        (many, WalError, "not_written"),
        (waiting, WalClosedError, "not_written"),
        (flushing, WalError, "not_written"),
        (upgrading, in_flight, outcome),
        (rotating, WalClosedError, "not_written"),
        (reading, WalClosedError, "not_written"),
    ]:
        with pytest.raises(kind_of) as told:
            await task
        assert told.value.outcome == expected, kind_of
    assert isinstance(_root_cause(told.value), OSError)
    assert wal.durable_limit == 2


async def read_forever(wal: Wal) -> None:
    async with wal.follow() as reader:
        async for record in reader:
            assert record.value == b"durable"


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


async def test_a_failed_log_stays_failed_and_says_why(wal, faulty) -> None:
    await wal.append(b"kept")
    faulty.fail("datasync", errno.EIO, name=ACTIVE)
    with pytest.raises(OutcomeUnknownError):
        await wal.append(b"a")
    faulty.heal()
    writes = faulty.count("pwrite")
    for call in (
        lambda: wal.append(b"b"),
        lambda: wal.append_many([b"b"]),
        lambda: wal.append(b"b", durability="memory"),
        lambda: wal.rotate(),
    ):
        with pytest.raises(WalClosedError) as refused:
            await call()
        assert (refused.value.reason, refused.value.outcome) == ("failed", "not_written")
        assert isinstance(refused.value.__cause__, OSError)
    with pytest.raises(WalClosedError):
        wal.append_nowait(b"b")
    with pytest.raises(WalError):
        await wal.flush()
    assert await read_values(wal) == [b"kept"], "what is durable can still be read"
    with pytest.raises(WalClosedError) as closing:
        await wal.aclose()
    assert closing.value.reason == "failed"
    assert faulty.count("pwrite") == writes, "nothing was written after the failure"


async def test_what_was_durable_before_the_failure_is_acknowledged(wal, faulty) -> None:
    """The rotation made the first record durable; then the second could not be written."""
    await wal.append(b"x" * 50 * KIB)
    with faulty.hold("datasync", name=ACTIVE) as hold:
        held = asyncio.create_task(wal.append(b"held"))
        await hold.wait_entered()
        faulty.fail("replace", errno.EIO, name="0*.wal")
        first = asyncio.create_task(wal.append(b"y" * 10 * KIB))
        second = asyncio.create_task(wal.append(b"z" * 10 * KIB))
        await turns()
    assert await held == 2
    assert await first == 3
    with pytest.raises(StorageUnavailableError) as told:
        await second
    assert told.value.outcome == "not_written"


async def test_registers_that_were_durable_before_the_failure_are_shown(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """The transaction became a segment; then the next one could not be made."""
    settings = SMALL.replace(transaction_memory_bytes=4 * KIB)
    wal = await Wal.open(log_directory, settings=settings, fs=faulty)
    await wal.append_many([b"x"], update={"a": "1", "b": "1"})
    faulty.fail("replace", errno.EIO, name="0*.wal", nth=2)
    async with wal.transaction(update={"a": "2"}) as transaction:
        for _ in range(20):
            await transaction.append(b"y" * KIB)
    assert wal.registers == {"a": "2", "b": "1"}
    with pytest.raises(WalClosedError):
        await wal.aclose()
    async with Wal.open(log_directory) as again:
        assert again.registers == {"a": "2", "b": "1"}


async def test_registers_that_may_be_lost_by_the_failure_are_not_shown(wal, faulty) -> None:
    await wal.append_many([b"x"], update={"a": "1"})
    faulty.fail("datasync", errno.EIO, name=ACTIVE)
    with pytest.raises(OutcomeUnknownError):
        await wal.append_many([b"y"], update={"a": "2"})
    assert wal.registers == {"a": "1"}


async def test_a_failed_checkpoint_is_tried_again_and_fails_nothing(wal, faulty) -> None:
    faulty.fail("replace", errno.EIO, name="CHECKPOINT")
    before = faulty.count("replace", name="CHECKPOINT")
    for byte in b"abcdefgh":  # each one rotates, and a checkpoint follows
        await wal.append(bytes([byte]) * 60 * KIB)
    await until(lambda: faulty.count("replace", name="CHECKPOINT") > before + 1)
    assert wal.statistics().failure is None
    assert len(await read_values(wal)) == 8


class _BrokenClock(ManualClock):
    is_broken = False

    def now_us(self) -> int:
        if self.is_broken:
            raise RuntimeError("a defect")
        return super().now_us()


async def test_a_defect_leaves_nobody_waiting(log_directory) -> None:
    clock = _BrokenClock()
    wal = await Wal.open(log_directory, clock=clock)
    await wal.append(b"kept")
    clock.is_broken = True
    outcomes = await gather_outcomes([wal.append(b"a"), wal.append(b"b"), wal.flush()])
    assert all(isinstance(found, OutcomeUnknownError) for found in outcomes)
    clock.is_broken = False
    with pytest.raises(WalClosedError):
        await wal.aclose()
    async with Wal.open(log_directory) as wal:
        assert await read_values(wal) == [b"kept"]


async def test_a_log_that_was_taken_over_vouches_for_nothing(wal) -> None:
    """What is synced here may not be in the log that continues elsewhere."""
    await wal.append(b"synced here")
    shipped = wal._state.uploaded.waiter(2)
    wal._engine.writer.fail(FencedError("another directory took the prefix over"))
    with pytest.raises(FencedError) as found:
        await shipped
    assert found.value.outcome == "unknown"
    with pytest.raises(WalClosedError) as closed:
        await wal.append(b"refused")
    assert (closed.value.reason, closed.value.outcome) == ("fenced", "not_written")
