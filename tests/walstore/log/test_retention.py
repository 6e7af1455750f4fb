"""Retention: what may be deleted, and that deletion never harms a reader nor comes undone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest

from tests.local import SMALL, check_contiguous, read_all, segments, turns
from walstore import OffsetTrimmedError, Wal, WalError
from walstore.core.settings import KIB


async def fill(wal: Wal, count: int) -> None:
    for n in range(count):
        await wal.append(b"%06d" % n * 1000)


@pytest.fixture
async def wal(log_directory: Path, faulty):
    """A log of three sealed segments and an active one; nothing cached."""
    opened = await Wal.open(log_directory, settings=SMALL.replace(cache_bytes=0), fs=faulty)
    await fill(opened, 36)
    assert len(segments(log_directory)) == 4
    yield opened
    faulty.heal()
    with (
        contextlib.nullcontext()
        if opened._engine.writer.failure is None
        else pytest.raises(WalError)
    ):
        await opened.aclose()


async def test_a_dropped_segment_is_gone_and_the_head_moves(wal, log_directory) -> None:
    second = wal._state.sealed_segments()[1].start
    await wal.trim(second)
    assert (wal.head, len(segments(log_directory))) == (second, 3)
    check_contiguous(await read_all(wal), second)
    reader = wal.follow(second - 1)
    with pytest.raises(OffsetTrimmedError) as found:
        await anext(reader)
    error = found.value
    assert (error.requested, error.head, error.tail) == (second - 1, second, 37)
    assert reader.position == second - 1
    reader.seek(second)
    assert (await anext(reader)).offset == second


async def test_a_reader_in_a_file_that_goes_is_told_by_a_typed_error(wal, faulty) -> None:
    """The file vanishes between the reader's look at the head and its opening of the file."""
    second = wal._state.sealed_segments()[1].start
    with faulty.hold("open", name="0*.wal") as hold:
        reading = asyncio.create_task(anext(wal.follow(1)))
        await hold.wait_entered()
        dropping = asyncio.create_task(wal.trim(second))
        await dropping
    with pytest.raises(OffsetTrimmedError):
        await reading


async def test_the_head_moves_before_a_file_goes(wal, faulty) -> None:
    second = wal._state.sealed_segments()[1].start
    with faulty.hold("replace", name="next.tmp") as hold:
        dropping = asyncio.create_task(wal.trim(second))
        await hold.wait_entered()
        await turns()
        assert wal.head == second
        with pytest.raises(OffsetTrimmedError):
            await anext(wal.follow(1))
        check_contiguous(await read_all(wal), second)
    await dropping


async def test_a_reader_inside_an_open_file_finishes_it(wal, faulty) -> None:
    last = wal._state.sealed_segments()[-1]
    with faulty.hold("pread") as hold:
        reading = asyncio.create_task(anext(wal.follow(1)))
        await hold.wait_entered()
        await wal.trim(last.start)
    assert (await reading).offset == 1


async def test_a_time_search_survives_a_deletion(wal, faulty, log_directory) -> None:
    last = wal._state.sealed_segments()[-1]
    moment = (await read_all(wal))[0].timestamp
    with faulty.hold("open", name="0*.wal", times=1) as hold:
        opening = asyncio.create_task(wal.follow(moment).__aenter__())
        await hold.wait_entered()
        await wal.trim(last.start)
        assert segments(log_directory)[0].stem == f"{last.start:020}"
    assert (await opening).position == last.start


async def test_a_deletion_that_fails_is_left_for_later(wal, faulty, log_directory) -> None:
    for kind, name in (("replace", "next.tmp"), ("remove", "0*.wal")):
        faulty.fail(kind, errno.EACCES, name=name)
    first, second, third = (path.stem for path in segments(log_directory)[:3])
    assert await wal.trim(int(second)) == int(second)
    assert segments(log_directory)[0].stem == first
    assert await wal.trim(int(third)) == int(third)
    assert segments(log_directory)[0].stem == third


async def test_a_file_that_is_gone_already_is_no_trouble(wal, log_directory) -> None:
    segments(log_directory)[0].unlink()
    second = wal._state.sealed_segments()[1].start
    await wal.trim(second)
    check_contiguous(await read_all(wal), second)


async def test_L11_retention_stays_in_force_after_append_flush_reopen(log_directory) -> None:
    settings = SMALL.replace(cache_bytes=0)
    async with Wal.open(log_directory, settings=settings) as wal:
        await fill(wal, 36)
        head = wal._state.sealed_segments()[2].start
        await wal.trim(head)
        await wal.append(b"x" * 10 * KIB)
        await wal.rotate()
        assert wal.head == head
    for tail in (38, 39, 40):
        async with Wal.open(log_directory, settings=settings) as wal:
            assert (wal.head, wal.tail) == (head, tail)
            check_contiguous(await read_all(wal), head)
            with pytest.raises(OffsetTrimmedError):
                await anext(wal.follow(head - 1))
            await wal.append(b"")
            await wal.flush()
            assert wal.head == head
