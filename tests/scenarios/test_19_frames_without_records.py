"""Frames that carry marks only lie between those with records. No way of reading shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.local import SMALL, check_contiguous, stored_batches
from walstore import Wal
from walstore.core.batches.arrow import SCHEMA
from walstore.core.batches.batch import Batch
from walstore.core.batches.cost import FRAME_COST_BYTES
from walstore.core.batches.derived import ConcatBatch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.files.log_files import LogSnapshot
from walstore.core.files.segment_file import iter_chunks
from walstore.core.format import segment
from walstore.log.readonly import ReadonlyWal

RECORDS = 120


async def write(wal: Wal) -> None:
    """Append records, with changes of the ledger before, between and behind them, over segments."""
    for number in range(RECORDS // 4):
        await wal.open_stream(f"s{number}")
        await wal.append(bytes(2000), stream=f"s{number}")
        await wal.append_many([bytes(300)] * 3)
        if number % 10 == 9:
            await wal.rotate()
    await wal.open_stream("last")


def check(batches: Iterable[Batch], start: int = 1, limit: int = RECORDS + 1) -> None:
    """Assert that no batch is empty and that they are all of the log."""
    found = list(batches)
    assert all(len(batch) for batch in found)
    assert (found[0].start, found[-1].limit) == (start, limit)
    assert all(before.limit == after.start for before, after in pairwise(found))
    check_contiguous([record for batch in found for record in batch], start)


@pytest.fixture
async def wal(log_directory: Path):
    async with Wal.open(log_directory, settings=SMALL.replace(cache_bytes=1 << 20)) as found:
        await write(found)
        yield found


def marks_only(directory: Path) -> list[FrameBatch]:
    """Return the frames without records of each segment."""
    found: list[FrameBatch] = []
    view = LogSnapshot.open(directory)
    for source in view.segments:
        limit = source.summary.limit if source.summary else view.durable_limit
        file = view.fs.open(source.path, "r")
        for chunk in iter_chunks(file, source, segment.HEADER_BYTES, limit, 1 << 20):
            found += [batch for batch in chunk if not len(batch)]
        file.close()
    return found


async def test_there_are_such_frames_everywhere(log_directory: Path, wal: Wal) -> None:
    starts = [batch.start for batch in await asyncio.to_thread(marks_only, log_directory)]
    assert set(range(1, RECORDS, 4)) <= set(starts)
    assert len(starts) > len(set(starts)), "segments begin with them, too"


async def test_readers_of_the_log(log_directory: Path, wal: Wal) -> None:
    assert wal._state.cache.start == 1
    check([batch async for batch in wal.reader(follow=False).batches()])
    check([await wal.follow(start).fetch(max_records=1) for start in range(1, 4)], 1, 4)
    wal._state.cache.clear()
    check([batch async for batch in wal.reader(follow=False).batches()])
    check([await wal.reader(follow=False).fetch(max_records=1000, max_bytes=1 << 30)])
    for start in range(1, RECORDS + 1, 7):
        check([batch async for batch in wal.reader(start, follow=False).batches()], start)


async def test_readers_of_a_reopened_log(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await write(wal)
    async with Wal.open(log_directory, settings=SMALL) as wal:
        check([batch async for batch in wal.reader(follow=False).batches()])
        await wal.append(b"more")
        assert [r.offset async for r in wal.reader(RECORDS, follow=False)] == [RECORDS, RECORDS + 1]


async def test_readers_beside_the_writer(log_directory: Path, wal: Wal) -> None:
    async with ReadonlyWal.open(log_directory) as beside:
        check([batch async for batch in beside.reader(follow=False).batches()])
    await asyncio.to_thread(check_files, log_directory)


def check_files(directory: Path) -> None:
    check(stored_batches(directory))
    check(stored_batches(directory, 50, 77), 50, 77)


async def test_the_cache_counts_nothing_for_them(wal: Wal) -> None:
    cache = wal._state.cache
    batches = cache.read(cache.start, cache.start + RECORDS, cache.size_bytes)
    assert cache.size_bytes == sum(batch.nbytes + FRAME_COST_BYTES for batch in batches)
    assert all(map(len, batches))


async def test_seen_all_the_same_such_a_batch_is_empty(log_directory: Path, wal: Wal) -> None:
    """For code that walks frames by itself."""
    batch = (await asyncio.to_thread(marks_only, log_directory))[0]
    for found in (batch, batch.select_stream("s0"), ConcatBatch([batch, batch])):
        assert (found.start, found.limit, len(found)) == (1, 1, 0)
        assert found.records() == list(found.values) == list(found.keys) == []
        assert list(found.offsets) == list(found.streams) == list(found.headers) == []
        assert list(found.timestamps_us) == []
        assert found.to_arrow().schema == SCHEMA
        assert found.to_arrow().num_rows == 0
        assert not found.may_hold_stream("s0")
