"""DirectoryFollower: every durable record once, over rotation, reopening and deletion."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import SMALL, fill, flip
from uploader import CloudTier
from walstore import Batch, CorruptionError, LogNotFoundError, OffsetTrimmedError, Wal
from walstore.cli.follower import DirectoryFollower


def _drain(follower: DirectoryFollower, stop: int | None = None) -> list[Batch]:
    batches: list[Batch] = []
    while found := follower.poll(stop):
        batches += found
    return batches


def _values(batches: list[Batch]) -> list[bytes]:
    return [value for batch in batches for value in batch.values]


async def test_sees_each_record_once_as_it_becomes_durable(log_directory: Path) -> None:
    expected: list[bytes] = []
    found: list[bytes] = []
    follower = None
    for life in range(3):
        async with Wal.open(log_directory, settings=SMALL) as wal:
            if follower is None:
                follower = DirectoryFollower(log_directory, 1)
                assert await asyncio.to_thread(follower.poll) == []
            for step in range(30):
                values = [b"%d %d %d " % (life, step, at) + bytes(300) for at in range(20)]
                expected += values
                await wal.append_many(values)
                found += _values(await asyncio.to_thread(_drain, follower))
                assert found == expected


def test_starts_anywhere_and_stops_anywhere(log_directory: Path) -> None:
    asyncio.run(fill(log_directory, records=3000))
    for start in (1, 2, 999, 2999, 3000, 3001):
        for stop in (1, 1000, 3001, None):
            follower = DirectoryFollower(log_directory, start)
            batches = _drain(follower, stop)
            limit = 3001 if stop is None else max(start, stop)
            assert [b.start for b in batches] == [start, *(b.limit for b in batches)][
                : len(batches)
            ]
            assert _values(batches) == [b"value %d" % n for n in range(start, limit)]


def test_goes_on_behind_a_stop_within_a_batch(log_directory: Path) -> None:
    asyncio.run(fill(log_directory))
    follower = DirectoryFollower(log_directory, 1)
    for stop in range(2, 102):
        assert _values(follower.poll(stop)) == [b"value %d" % (stop - 1)]


def test_works_without_the_cell(log: Path) -> None:
    (log / "DURABLE").unlink()
    follower = DirectoryFollower(log, 1)
    assert len(_values(_drain(follower))) == 100


async def test_a_follower_that_is_overtaken_by_deletion_is_told(
    log_directory: Path, tmp_path: Path
) -> None:
    settings = SMALL.replace(retention_bytes=0)
    tier = CloudTier((tmp_path / "store").as_uri())
    async with Wal.open(log_directory, settings=settings, tier=tier) as wal:
        await wal.append(b"first")
        follower = DirectoryFollower(log_directory, 1)
        for _ in range(20):
            await wal.append_many([bytes(1000)] * 20, durability="cloud")
    with pytest.raises(OffsetTrimmedError) as caught:
        await asyncio.to_thread(follower.poll)
    assert caught.value.requested == 1
    assert caught.value.head > 1


def test_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError):
        DirectoryFollower(tmp_path, 1).poll()


def test_damage(log: Path) -> None:
    flip(max(log.glob("*.wal")), -20)
    follower = DirectoryFollower(log, 1)
    with pytest.raises(CorruptionError):
        _drain(follower)
