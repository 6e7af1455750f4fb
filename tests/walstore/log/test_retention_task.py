"""Retention at work: by age, bytes and trim, held by pins, without timers that nobody needs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.local import (
    SMALL,
    UnsyncedFileSystem,
    check_contiguous,
    read_all,
    segments,
    turns,
)
from tests.waiting import until
from walstore import (
    OffsetNotWrittenError,
    OffsetTrimmedError,
    Settings,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalError,
    WalLockedError,
)
from walstore.core.files.posix import PosixFileSystem
from walstore.core.settings import KIB
from walstore.log.retention_plan import RetentionHold
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors.directory import HeldCursors, hold_cursors
from walstore.testing import ManualClock, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

HOUR = 3600.0
FS = PosixFileSystem()
AGED = SMALL.replace(retention_seconds=HOUR, cache_bytes=0)
SIZED = SMALL.replace(retention_bytes=130 * KIB, cache_bytes=0)
FULL = 10
"""Records of 6 000 bytes that fill a segment."""


async def fill(wal: Wal, count: int) -> None:
    for _ in range(count):
        await wal.append(b"%06d" % wal.tail * 1000)


def spans(wal: Wal) -> list[tuple[int, int]]:
    """Return the bounds of the sealed segments."""
    return [(s.summary.start, s.summary.limit) for s in wal._state.sealed_segments() if s.summary]


async def set_cursor(directory: Path, name: str, position: int, deadline_us: int = 0) -> None:
    state = CursorState(position, 1, b"8 bytes.", 0, 1 if deadline_us else 0, deadline_us, "test")
    async with locked(directory) as held:
        await asyncio.to_thread(held.write, name, state)
        await asyncio.to_thread(held.sync)


async def remove_cursor(directory: Path, name: str) -> None:
    async with locked(directory) as held:
        await asyncio.to_thread(held.remove, name)
        await asyncio.to_thread(held.sync)


@contextlib.asynccontextmanager
async def locked(directory: Path) -> AsyncIterator[HeldCursors]:
    """Hold the cursors as another process would."""
    context = hold_cursors(FS, directory)
    held = await asyncio.to_thread(context.__enter__)
    try:
        yield held
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def opened(directory: Path, settings: Settings, clock: ManualClock, fs=None):
    async with Wal.open(directory, settings=settings, clock=clock, fs=fs) as wal:
        yield wal


# -- age ---------------------------------------------------------------------------------------------


async def test_a_segment_goes_when_its_newest_record_expires(log_directory, clock) -> None:
    async with opened(log_directory, AGED, clock) as wal:
        await fill(wal, FULL - 1)
        clock.advance(600)
        await fill(wal, 1)
        clock.advance(1)
        before = wal._engine.retention.plan
        await fill(wal, 1)  # in the next segment: it goes later
        ((_, limit),) = spans(wal)
        await until(lambda: wal._engine.retention.plan is not before)
        await clock.wait_for_sleepers()
        assert clock.sleepers == 1
        clock.advance(HOUR - 1 - 1e-6)
        await turns(50)
        assert wal.head == 1
        clock.advance(1e-6)
        await until(lambda: wal.head == limit)
        check_contiguous(await read_all(wal), limit)
        with pytest.raises(OffsetTrimmedError):
            await anext(wal.follow(limit - 1))


async def test_an_idle_log_empties_itself_and_then_has_no_timer(log_directory, clock) -> None:
    """The active segment is sealed once all of it has expired, so no record outlives its time."""
    async with opened(log_directory, AGED, clock) as wal:
        await fill(wal, FULL + 3)
        clock.advance(HOUR / 2)
        await fill(wal, 1)
        await clock.wait_for_sleepers()
        clock.advance(HOUR / 2)
        await until(lambda: wal._engine.retention.dropped_segments == 1)
        assert 1 < wal.head <= FULL + 1, "the record appended later is in the active segment"
        await clock.wait_for_sleepers()
        clock.advance(HOUR / 2)
        await until(lambda: wal._engine.retention.dropped_segments == 2)
        assert wal.head == wal.tail
        assert await read_all(wal) == []
        assert len(segments(log_directory)) == 1
        await turns(50)
        assert clock.sleepers == 0

        await wal.append(b"again")
        await clock.wait_for_sleepers()
        clock.advance(HOUR)
        await until(lambda: wal.head == wal.tail == FULL + 6)
        await turns(50)
        assert clock.sleepers == 0
    async with opened(log_directory, AGED, clock) as wal:
        assert wal.head == wal.tail == FULL + 6


async def test_an_active_segment_with_a_young_record_is_not_sealed(log_directory, clock) -> None:
    async with opened(log_directory, AGED, clock) as wal:
        await wal.append(b"old")
        clock.advance(HOUR - 1)
        await wal.append(b"young")
        await clock.wait_for_sleepers()
        clock.advance(HOUR - 1)
        await clock.wait_for_sleepers()
        await turns(50)
        assert [record.value for record in await read_all(wal)] == [b"old", b"young"]
        assert wal.statistics().rotations == 0


async def test_what_expired_while_the_log_was_closed_goes_at_opening(log_directory, clock) -> None:
    async with opened(log_directory, AGED, clock) as wal:
        await fill(wal, 3 * FULL)
    clock.advance(2 * HOUR)
    async with opened(log_directory, AGED, clock) as wal:
        await until(lambda: wal.head == wal.tail == 3 * FULL + 1)


async def test_logs_without_an_age_limit_set_no_timer(log_directory, clock) -> None:
    for settings in (SMALL, SIZED):
        async with opened(log_directory / str(settings.retention_bytes), settings, clock) as wal:
            await fill(wal, 3 * FULL)
            await wal.rotate()
            await turns(50)
            assert clock.sleepers == 0


async def test_time_that_jumps_back_delays_but_does_not_confuse(log_directory, clock) -> None:
    async with opened(log_directory, AGED, clock) as wal:
        await wal.append(b"x")
        clock.shift_wall(-HOUR)
        await wal.append(b"y")
        await clock.wait_for_sleepers()
        for _ in range(2):
            assert wal.head == 1
            clock.advance(HOUR)
            await turns(50)
            await until(lambda: clock.sleepers == 1 or wal.head == 3)
        await until(lambda: wal.head == 3)


# -- bytes -------------------------------------------------------------------------------------------


async def test_the_oldest_go_beyond_the_budget(log_directory, clock) -> None:
    async with opened(log_directory, SIZED, clock) as wal:
        for _ in range(8 * FULL):
            await fill(wal, 1)
            sealed = sum(s.summary.data_bytes for s in wal._state.sealed_segments() if s.summary)
            assert sealed <= SIZED.retention_bytes + 64 * KIB, "one may be about to go"
        await until(lambda: wal._engine.retention.dropped_bytes > 4 * 55 * KIB)
        assert len(spans(wal)) == 2
        assert wal.head == spans(wal)[0][0]
        check_contiguous(await read_all(wal), wal.head)
    async with opened(log_directory, SIZED.replace(retention_bytes=0), clock) as wal:
        await until(lambda: len(segments(log_directory)) == 1)
        check_contiguous(await read_all(wal), wal.head)


async def test_a_deletion_that_fails_is_tried_again_and_fails_nothing(
    log_directory, clock, faulty
) -> None:
    async with opened(log_directory, SIZED, clock, faulty) as wal:
        for kind, name in (("replace", "next.tmp"), ("remove", "0*.wal")):
            faulty.fail(kind, errno.EACCES, name=name, times=None)
        await fill(wal, 10 * FULL)
        await until(lambda: wal.head > 5 * FULL)
        assert segments(log_directory)[0].name == "00000000000000000001.wal"
        faulty.heal()
        await fill(wal, 2 * FULL)
        await until(lambda: int(segments(log_directory)[0].stem) == wal.head)
        check_contiguous(await read_all(wal), wal.head)
    faulty.fail("remove", errno.EACCES, name="0*.wal", times=None)
    async with opened(log_directory, SIZED, clock, faulty) as wal:
        head = await wal.trim(wal.durable_limit)
        assert head == wal.head == wal.tail
    faulty.heal()
    async with opened(log_directory, SIZED, clock) as wal:
        assert wal.head == head
    assert len(segments(log_directory)) == 1


# -- pins --------------------------------------------------------------------------------------------


async def test_a_cursor_holds_what_it_has_not_read(log_directory, clock, caplog) -> None:
    caplog.set_level(logging.INFO, "walstore")
    async with opened(log_directory, AGED, clock) as wal:
        await fill(wal, 3 * FULL)
        second, third = spans(wal)[1][0], spans(wal)[2][0] if len(spans(wal)) > 2 else None
        await set_cursor(log_directory, "billing", second + 1)
        clock.advance(HOUR)
        await until(lambda: wal.head == second)
        await clock.wait_for_sleepers()
        held = wal._engine.retention.plan.held
        assert (held.start, held.hold, held.holder) == (
            second,
            RetentionHold.PINNED,
            "cursor billing",
        )
        assert "kept: pinned by cursor billing" in caplog.text
        assert third is None or (await read_all(wal))[0].offset == second
        await remove_cursor(log_directory, "billing")
        clock.advance(HOUR / 16)  # nobody told us, so it looks again at times
        await until(lambda: wal.head == wal.tail)


async def test_a_lease_that_ends_frees_what_it_held(log_directory, clock) -> None:
    async with opened(log_directory, AGED, clock) as wal:
        await fill(wal, 3)
        await set_cursor(log_directory, "lent", 2, clock.now_us() + int((HOUR + 7) * 1e6))
        await clock.wait_for_sleepers()
        clock.advance(HOUR)
        await turns(50)
        await clock.wait_for_sleepers()
        assert wal.head == 1
        clock.advance(7)
        await until(lambda: wal.head == 4)


async def test_a_damaged_cursor_holds_everything(log_directory, clock) -> None:
    async with opened(log_directory, SMALL, clock) as wal:
        await fill(wal, 2 * FULL)
        await set_cursor(log_directory, "torn", 5)
        (log_directory / "cursors" / "torn").write_bytes(b"?")
        assert await wal.trim(9) == 1
        await remove_cursor(log_directory, "torn")
        assert await wal.trim(9) == 9


async def test_a_reader_that_pins_holds_what_it_needs(log_directory, clock) -> None:
    async with opened(log_directory, SMALL, clock) as wal:
        await fill(wal, 3 * FULL)
        with wal._engine.pins.readers.add(7) as pin:
            assert pin.offset == 7
            assert await wal.trim(20) == 7
            pin.move(12)
            assert await wal.trim(20) == 12
            pin.move(3)
            assert pin.offset == 12, "what is gone is gone"
            late = wal._engine.pins.readers.add(1)
            assert late.offset == 12
            late.release()
            late.release()
        assert await wal.trim(20) == 20


async def test_R1_a_pin_made_while_retention_decides_is_heeded_or_told(
    log_directory, clock, faulty
) -> None:
    """Whoever pins gets an offset that stays: the one asked for, or the head that is being made."""
    async with opened(log_directory, SMALL, clock, faulty) as wal:
        await fill(wal, 3 * FULL)
        readers = wal._engine.pins.readers
        with faulty.hold("replace", name="CHECKPOINT") as hold:
            trimming = asyncio.create_task(wal.trim(20))
            await hold.wait_entered()
            pin = readers.add(5)
            with pytest.raises(WalLockedError):
                await set_cursor(log_directory, "late", 5)
        assert await trimming == wal.head == pin.offset == 20
        assert await wal.trim(25) == 20


async def test_cursors_that_are_locked_are_waited_for(log_directory, clock) -> None:
    async with opened(log_directory, SMALL, clock) as wal:
        await fill(wal, 5)
        async with locked(log_directory):
            trimming = asyncio.create_task(wal.trim(3))
            for _ in range(5):
                await clock.wait_for_sleepers()
                assert wal.head == 1
                await wal.append(b"nobody else waits")
                clock.advance(1)
            await clock.wait_for_sleepers()
        clock.advance(1)
        assert await trimming == 3


async def test_cursors_that_stay_locked_are_an_error_in_the_end(log_directory, clock) -> None:
    async with opened(log_directory, SMALL, clock) as wal:
        await fill(wal, 5)
        async with locked(log_directory):
            trimming = asyncio.create_task(wal.trim(3))
            while not trimming.done():
                clock.advance(1)
                await turns()
            with pytest.raises(WalLockedError):
                await trimming
        assert await wal.trim(3) == 3


async def test_cursors_that_cannot_be_read_stop_deletion_not_the_log(
    log_directory, clock, faulty
) -> None:
    async with opened(log_directory, AGED, clock, faulty) as wal:
        await fill(wal, 3)
        faulty.fail("list", errno.EIO, name="cursors", times=None)
        with pytest.raises(StorageUnavailableError):
            await wal.trim(2)
        await clock.wait_for_sleepers()
        clock.advance(HOUR)
        await turns(50)
        await clock.wait_for_sleepers()
        assert wal.head == 1
        assert await wal.append(b"goes on") == 4
        faulty.heal()
        clock.advance(HOUR)
        await until(lambda: wal.head == 5)


# -- trim --------------------------------------------------------------------------------------------


async def test_trim_moves_the_head_exactly_and_frees_whole_files(log_directory, clock) -> None:
    async with opened(log_directory, SMALL, clock) as wal:
        await fill(wal, 3 * FULL)
        second = spans(wal)[1][0]
        assert await wal.trim(second + 3) == wal.head == second + 3
        assert segments(log_directory)[0].stem == f"{second:020d}"
        check_contiguous(await read_all(wal), second + 3)
        for start in (1, second, second + 2):
            with pytest.raises(OffsetTrimmedError):
                await anext(wal.follow(start))
        assert await wal.trim(second) == second + 3, "it never goes back"
        assert await wal.trim(-5) == second + 3
    async with opened(log_directory, SMALL, clock) as wal:
        assert wal.head == second + 3
        check_contiguous(await read_all(wal), second + 3)


async def test_a_head_inside_a_segment_does_not_rest_on_hints(log_directory, clock) -> None:
    async with opened(log_directory, SMALL, clock) as wal:
        await fill(wal, 2 * FULL)
        assert await wal.trim(5) == 5
        await fill(wal, FULL)
    for hint in ("CHECKPOINT", "DURABLE"):
        (log_directory / hint).unlink()
    async with opened(log_directory, SMALL, clock) as wal:
        assert wal.head == 5
        check_contiguous(await read_all(wal), 5)


async def test_trim_up_to_the_durable_limit_empties_the_log(log_directory, clock) -> None:
    async with opened(log_directory, SMALL, clock) as wal:
        await fill(wal, 15)
        assert await wal.trim(16) == wal.head == wal.tail == 16
        assert await read_all(wal) == []
        assert len(segments(log_directory)) == 1
        await fill(wal, 2 * FULL)
        check_contiguous(await read_all(wal), 16)
        await until(lambda: int(segments(log_directory)[0].stem) > 1)
        assert wal.head == 16


async def test_the_active_file_goes_once_it_is_sealed(log_directory, clock) -> None:
    """Also on a log without limits, whose retention otherwise has nothing to do."""
    async with opened(log_directory, SMALL, clock) as wal:
        await fill(wal, 5)
        assert await wal.trim(6) == 6
        assert len(segments(log_directory)) == 1
        await wal.rotate()
        await until(lambda: [path.stem for path in segments(log_directory)] == [f"{6:020d}"])


async def test_trim_beyond_the_durable_limit_is_refused(log_directory, clock, faulty) -> None:
    async with opened(log_directory, SMALL, clock, faulty) as wal:
        await fill(wal, 3)
        with pytest.raises(OffsetNotWrittenError):
            await wal.trim(5)
        with pytest.raises(TypeError):
            await wal.trim("2")  # type: ignore[arg-type]
        assert await wal.trim(4) == 4
    with pytest.raises(WalClosedError):
        await wal.trim(4)


async def test_trimmed_records_are_not_in_memory_either(log_directory, clock) -> None:
    async with opened(log_directory, SMALL.replace(cache_bytes=1 << 20), clock) as wal:
        await fill(wal, 3)
        await wal.trim(3)
        with pytest.raises(OffsetTrimmedError):
            await anext(wal.follow(2))
        assert [record.offset for record in await read_all(wal)] == [3]


async def test_appends_and_readers_go_on_while_trimming(log_directory, clock) -> None:
    async with opened(log_directory, SMALL, clock) as wal:
        async with asyncio.TaskGroup() as group:
            group.create_task(fill(wal, 6 * FULL))
            reader = wal.follow()
            for offset in range(1, 6 * FULL + 1):
                assert (await anext(reader)).offset == offset
                if offset % 7 == 0:
                    assert await wal.trim(offset) == offset
        assert wal.head == 56


CALLS: dict[str, Callable[[int], bool]] = {"some": lambda n: n % 3 == 0, "all": lambda _: True}


@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.slow)])
async def test_R3_any_call_of_a_trim_may_fail(log_directory, clock, faulty, which) -> None:
    """The head is where it was or where it was to go, and no record above it is lost."""
    async with opened(log_directory / "sound", SMALL, clock, faulty) as wal:
        await fill(wal, 2 * FULL)
        before = len(faulty.calls)
        await wal.trim(14)
        calls = len(faulty.calls) - before
    assert calls > 10
    for nth in filter(CALLS[which], range(1, calls + 1)):
        directory = log_directory / str(nth)
        with contextlib.suppress(WalError):
            async with opened(directory, SMALL, clock, faulty) as wal:
                await fill(wal, 2 * FULL)
                faulty.fail("*", errno.EIO, nth=nth)
                with contextlib.suppress(WalError):
                    assert await wal.trim(14) == 14
        faulty.heal()
        async with opened(directory, SMALL, clock) as wal:
            assert wal.head in (1, 14)
            check_contiguous(await read_all(wal), wal.head)
            assert await wal.append(b"") == 2 * FULL + 1


@pytest.mark.parametrize("seed", [LOSE_ALL, KEEP_ALL, 2, 3, 4])
@pytest.mark.parametrize("head", [5, 14])
async def test_R3_a_head_that_was_returned_survives_a_power_failure(
    log_directory, tmp_path, clock, head, seed
) -> None:
    fs = PowerLossFileSystem(log_directory, PosixFileSystem())
    wal = await Wal.open(log_directory, settings=SMALL, clock=clock, fs=fs)
    await fill(wal, 2 * FULL)
    assert await wal.trim(head) == head
    into = tmp_path.with_name(f"{tmp_path.name}-after")
    await asyncio.to_thread(fs.crash, seed, into)
    async with opened(into, SMALL, clock) as after:
        assert after.head == head
        check_contiguous(await read_all(after), head)
    with contextlib.suppress(WalError):
        await wal.aclose()


@pytest.mark.parametrize("head", [FULL + 1, 14])
async def test_R3_a_cell_of_before_a_trim_does_not_come_back(
    log_directory, tmp_path, clock, head
) -> None:
    """Else a log without its checkpoint would miss segments that were removed on purpose."""
    fs = PowerLossFileSystem(log_directory, UnsyncedFileSystem())
    wal = await Wal.open(log_directory, settings=SMALL, clock=clock, fs=fs)
    await fill(wal, 3 * FULL)
    assert await wal.trim(head) == head
    for seed in (LOSE_ALL, KEEP_ALL, 2, 3):
        into = tmp_path.with_name(f"{tmp_path.name}-{seed}")
        await asyncio.to_thread(fs.crash, seed, into)
        (into / "CHECKPOINT").unlink()
        async with opened(into, SMALL, clock) as after:
            assert after.head == head
            check_contiguous(await read_all(after), head)
    with contextlib.suppress(WalError):
        await wal.aclose()


@pytest.mark.parametrize("count", range(0, 30, 3))
async def test_L14_a_trim_that_is_cancelled_at_any_turn(log_directory, clock, count) -> None:
    async with opened(log_directory, SMALL, clock) as wal:
        await fill(wal, 2 * FULL)
        trimming = asyncio.create_task(wal.trim(14))
        await turns(count)
        trimming.cancel()
        await asyncio.wait([trimming])
        assert await wal.trim(2) in (2, 14)
        assert await wal.trim(14) == 14
        check_contiguous(await read_all(wal), 14)
