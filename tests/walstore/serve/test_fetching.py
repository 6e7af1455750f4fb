"""Fetching: large batches are read one at a time, and for all that want them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from walstore import Settings, Wal
from walstore.core.batches.batch import Batch
from walstore.serve.fetching import Fetching

MIB = 1 << 20
VALUES = [os.urandom(MIB // 2) for _ in range(6)]
"""Of a group of three megabytes."""
UNCACHED = Settings(cache_bytes=0)


async def groups(wal: Wal, count: int) -> list[int]:
    """Append groups; return their first offsets."""
    return [(await wal.append_many(VALUES)).start for _ in range(count)]


async def fetch(fetching: Fetching, wal: Wal, position: int, most_bytes: int = MIB) -> Batch:
    reader = wal.follow(position)
    return await fetching.fetch(wal, reader, position, most_bytes=most_bytes)


async def test_a_large_batch_is_read_once_for_all_that_want_it(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log", settings=UNCACHED) as wal:
        starts = await groups(wal, 8)
        fetching = Fetching(4 * MIB)
        before = wal.statistics().file_reads
        wanted = [start + at for at in range(6) for start in starts]
        found = await asyncio.gather(*(fetch(fetching, wal, position) for position in wanted))
        assert [batch.start for batch in found] == wanted
        assert [batch.values[0] for batch in found] == [
            VALUES[at] for at in range(6) for _ in starts
        ]
        assert len(starts) <= wal.statistics().file_reads - before < 2 * len(starts)
        assert fetching.kept_bytes < 4 * MIB


async def test_what_nobody_wants_any_more_is_forgotten(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log", settings=UNCACHED) as wal:
        (start,) = await groups(wal, 1)
        fetching = Fetching()
        await fetch(fetching, wal, start)
        assert fetching.kept_bytes > 3 * MIB
        fetching.tidy()
        await fetch(fetching, wal, start + 3)
        fetching.tidy()
        assert fetching.kept_bytes > 3 * MIB
        fetching.tidy()
        assert fetching.kept_bytes == 0


async def test_who_is_cancelled_keeps_nobody_from_reading(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log", settings=UNCACHED) as wal:
        starts = await groups(wal, 3)
        fetching = Fetching()
        for turns in range(12):
            reads = [asyncio.ensure_future(fetch(fetching, wal, start)) for start in starts]
            for _ in range(turns):
                await asyncio.sleep(0)
            for read in reads[:2]:
                read.cancel()
            assert (await reads[2]).start == starts[2]
            await asyncio.wait(reads)
            fetching.tidy()
            fetching.tidy()
