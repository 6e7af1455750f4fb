"""What was deleted and acknowledged stays deleted when the power fails at once."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.effort import first_seed
from walstore import Wal, WalError, WalStore
from walstore.testing import PowerLossFileSystem
from walstore.testing.power import LOSE_ALL

FIRST = first_seed("deletions")
SEEDS = (LOSE_ALL, *range(FIRST + 2, FIRST + 22))
"""Crashes that keep nothing unsynced, or a part."""


async def test_a_cursor_and_a_group(scratch: Path) -> None:
    power = PowerLossFileSystem(scratch / "log")
    async with _lost(await Wal.open(scratch / "log", fs=power)) as wal:
        for value in (b"one", b"two", b"three"):
            await wal.append(value)
        cursor = await wal.cursor("billing")
        await cursor.commit(3)
        async with wal.group("workers") as group:
            for job in await group.fetch(2):
                await job.ack()
        assert await wal.delete_cursor("billing")
        assert await wal.delete_group("workers")
        crashes = _crash(power, scratch)
    for crash in crashes:
        async with Wal.open(crash) as wal:
            assert await wal.cursors() == []
            assert await wal.groups() == []
            assert wal.tail == 4


async def test_a_log_of_a_store(scratch: Path) -> None:
    power = PowerLossFileSystem(scratch / "store")
    async with _lost(await WalStore.open(scratch / "store", fs=power)) as store:
        for name in ("kept", "deleted"):
            await (await store.wal(name)).append(b"one")
        await store.delete("deleted")
        crashes = _crash(power, scratch)
    for crash in crashes:
        async with WalStore.open(crash) as store:
            assert await store.logs() == ["kept"]
            wal = await store.wal("deleted")
            assert wal.tail == 1


@contextlib.asynccontextmanager
async def _lost(opened):
    yield opened
    with contextlib.suppress(WalError):
        await opened.aclose()


def _crash(power: PowerLossFileSystem, scratch: Path) -> list[Path]:
    """Cut the power, and return what the disk may contain."""
    crashes = [scratch / f"crash-{seed}" for seed in SEEDS]
    for seed, crash in zip(SEEDS, crashes, strict=True):
        power.crash(seed, crash)
    return crashes
