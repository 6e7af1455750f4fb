"""Logs whose manifests are rolled up while they are written: nothing is lost, and readers do not notice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from uploader import CloudLog, CloudTier, UploadSettings
from uploader.format.rollup import RollUpSettings
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import Fault, happen_then_kill, kill
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import Wal
from walstore.errors import WalError

pytestmark = pytest.mark.slow

URL = "memory://ignored"
PAIRS = RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2)
FAST = RetryPolicy(attempts=2, first_wait_seconds=0.001, longest_wait_seconds=0.001)


async def read(store: MemoryStore) -> list[bytes]:
    """Return all records in order, after everything about the log was verified."""
    async with CloudLog.open(URL, store=store) as log:
        await log.verify()
        return [record.value async for record in log.reader()]


def tier(store: FaultyStore, roll_up: RollUpSettings = PAIRS) -> CloudTier:
    settings = UploadSettings(fragment_age_seconds=0, roll_up=roll_up)
    return CloudTier(URL, store=store, settings=settings, retry=FAST)


@pytest.mark.parametrize("wanted", [(2, 2), (1, 2)])
async def test_a_hundred_appends_of_ten(log_directory: Path, wanted: tuple[int, int]) -> None:
    """wal3's scenario 70: small thresholds, a deep tree, and every sum is right."""
    store, expected = MemoryStore(), []
    roll_up = RollUpSettings(fragments_per_snapshot=wanted[0], snapshots_per_snapshot=wanted[1])
    async with Wal.open(log_directory, tier=tier(FaultyStore(store), roll_up)) as wal:
        for turn in range(100):
            batch = [b"%d of %d" % (at, turn) for at in range(10)]
            await wal.append_many(batch, durability="cloud")
            expected += batch
    assert await read(store) == expected
    async with CloudLog.open(URL, store=store) as log:
        assert log.manifest.snapshots
        assert len(await log.fragments()) == 100
        assert [record.value async for record in log.reader(555, stop=557)] == expected[554:556]


@pytest.mark.parametrize("fault", [kill, happen_then_kill])
async def test_a_log_killed_at_its_nth_store_call(
    log_directory: Path, fault: Callable[[], Fault]
) -> None:
    """Every few calls of a life with roll-ups: the next life has everything, once."""
    store, lives, nth = MemoryStore(), 0, 3
    requests = nth
    while requests >= nth:
        nth, lives = nth + 7, lives + 1
        faulty = FaultyStore(store)
        faulty.on("any", fault(), nth=nth)
        with contextlib.suppress(StoreKilled, WalError, BaseExceptionGroup):
            await live(log_directory, faulty, b"life %d" % lives)
        requests = faulty.requests
    assert lives > 5
    async with Wal.open(log_directory, tier=tier(FaultyStore(store))) as wal:
        await wal.wait_durable(wal.tail - 1, "cloud")
        local = [record.value async for record in wal.reader(follow=False)]
    assert await read(store) == local
    assert local[-12:] == [b"life %d" % lives] * 12


async def live(log_directory: Path, store: FaultyStore, value: bytes) -> None:
    """Append a dozen records, each shipped by itself, for as long as the store lives."""
    async with Wal.open(log_directory, tier=tier(store)) as wal:
        for _ in range(12):
            await wal.append(value, durability="cloud")


async def test_two_writers_roll_up_the_same_log() -> None:
    """Each appends through contention; whoever wins, every append that was told is there once."""
    store = MemoryStore()
    settings = WriterSettings(interval_seconds=0, roll_up=PAIRS, contention_attempts=1000)
    told: list[bytes] = []

    async def write(name: int) -> None:
        async with CloudWriter.open(
            URL, store=FaultyStore(store), settings=settings, retry=FAST
        ) as log:
            for at in range(30):
                value = b"%d from %d" % (at, name)
                await log.append(value)
                told.append(value)

    async with asyncio.TaskGroup() as group:
        for name in range(2):
            group.create_task(write(name))
    assert sorted(await read(store)) == sorted(told)
    async with CloudLog.open(URL, store=store) as log:
        assert log.manifest.snapshots
