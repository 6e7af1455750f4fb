"""Any one call of a log's life may fail, or be the last before the power goes. Nothing acknowledged is lost.

A fixed workload (six producers, an atomic group, two rotations) runs once for each call it makes.
"""

from __future__ import annotations

import asyncio
import errno
import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.effort import every
from tests.local import PowerCut, crashes
from walstore import Settings, Wal
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import FileSystem
from walstore.errors import WalError
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

pytestmark = pytest.mark.slow

SETTINGS = Settings(segment_bytes=64 * 1024, checkpoint_bytes=64 * 1024, batch_bytes=4096)

FAULTS: dict[str, dict[str, Any]] = {
    "one-error": {"error": errno.EIO},
    "done-and-reported-failed": {"happened": True},
    "half-written": {"error": errno.ENOSPC, "written_bytes": 100},
    "full-for-good": {"error": errno.ENOSPC, "times": None},
    "dead-disk": {"error": errno.EIO, "times": None},
}


class Workload:
    """What was appended, and what became of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.acknowledged: dict[int, bytes] = {}
        self.refused: dict[bytes, WalError] = {}

    async def run(self, directory: Path, fs: FileSystem) -> None:
        """Open, append, rotate and close; stop quietly where the log says that it failed."""
        try:
            async with Wal.open(directory, settings=SETTINGS, fs=fs) as wal:
                async with asyncio.TaskGroup() as group:
                    for number in range(6):
                        group.create_task(self._produce(wal, number))
                await self._append_group(wal)
                await wal.rotate()
                await self._append(wal, b"last")
        except WalError:
            return

    async def check(self, directory: Path) -> None:
        """Open the log again, append, and compare all of it with what was acknowledged."""
        async with Wal.open(directory, settings=SETTINGS) as wal:
            await wal.append(b"after")
            async with wal.reader(follow=False) as reader:
                found = {record.offset: record.value async for record in reader}
        assert list(found) == list(range(1, len(found) + 1))
        assert self.acknowledged.items() <= found.items()
        assert list(found.values()).count(b"group") in (0, 30)
        values = set(found.values())
        for value, error in self.refused.items():
            assert error.outcome != "not_written" or value not in values
            assert error.outcome != "durable" or value in values

    async def _produce(self, wal: Wal, number: int) -> None:
        for at in range(12):
            size = self.chance.choice([0, 10, 600, 3000])
            if not await self._append(wal, b"%d-%d-" % (number, at) + bytes(size)):
                return

    async def _append(self, wal: Wal, value: bytes) -> bool:
        try:
            offset = await wal.append(value)
        except WalError as error:
            self.refused[value] = error
            return False
        self.acknowledged[offset] = value
        return True

    async def _append_group(self, wal: Wal) -> None:
        for offset in await wal.append_many([b"group"] * 30):
            self.acknowledged[offset] = b"group"


@pytest.mark.parametrize("fault", FAULTS)
async def test_any_call_may_fail(fault: str, scratch: Path) -> None:
    """Then the log says so, keeps what it acknowledged, and works again when the disk does."""
    for nth in count(1, every()):
        fs = FaultyFileSystem(PosixFileSystem())
        fs.fail("*", nth=nth, **FAULTS[fault])
        workload = Workload(nth)
        await workload.run(scratch / str(nth), fs)
        await workload.check(scratch / str(nth))
        if len(fs.calls) < nth:
            break
    assert nth > 50


async def test_the_power_may_go_before_any_call(scratch: Path) -> None:
    """Then what was acknowledged survives, whichever unsynced sectors and names do."""
    for nth in count(1, every()):
        root = scratch / f"{nth}" / "before"
        root.mkdir(parents=True)
        power = PowerLossFileSystem(root, PosixFileSystem())
        fs = FaultyFileSystem(power)
        cut = PowerCut(fs, power, nth)
        workload = Workload(nth)
        await workload.run(root / "log", fs)
        for crashed in crashes(power, (LOSE_ALL, KEEP_ALL, 2 * nth, 2 * nth + 1), root.parent):
            await workload.check(crashed / "log")
        if not cut.was_cut:
            break
    assert nth > 50
