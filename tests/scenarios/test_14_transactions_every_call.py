"""Any one call of a life with transactions may fail, or be the last before the power goes.

Then every transaction is there as a whole or not at all, the registers say the same as the records, and what
a producer appends again is there once.
"""

from __future__ import annotations

import errno
import shutil
from itertools import count
from pathlib import Path

import pytest

from tests.effort import every
from tests.local import SMALL, PowerCut, UnsyncedFileSystem, crashes
from walstore import Wal
from walstore.core.ports import FileSystem
from walstore.core.settings import KIB
from walstore.errors import WalError
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

pytestmark = pytest.mark.slow

SETTINGS = SMALL.replace(transaction_memory_bytes=4 * KIB, producer_window=8)
FAULTS = {
    "one-error": {"error": errno.EIO},
    "done-and-reported-failed": {"happened": True},
    "full-for-good": {"error": errno.ENOSPC, "times": None},
}
RECORDS = {"small": 3, "large": 40, "none": 0}


class Life:
    """Transactions that leave their name in each record and in a register."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.sizes: dict[str, int] = {}
        self.produced: dict[int, int] = {}

    async def run(self, directory: Path, fs: FileSystem) -> None:
        """Live in two openings; stop where the log says that it failed."""
        try:
            for opening in range(2):
                async with Wal.open(directory, settings=SETTINGS, fs=fs) as wal:
                    await self._work(wal, opening)
        except WalError:
            return

    async def _work(self, wal: Wal, opening: int) -> None:
        producer = wal.producer("p")
        for size in ("none", "small", "large", "small", "large", "large", "none"):
            name = f"{opening}-{len(self.sizes)}-{size}"
            self.sizes[name] = RECORDS[size]
            async with wal.transaction(update={"last": name, f"of {name}": "1"}) as transaction:
                for at in range(RECORDS[size]):
                    await transaction.append(f"{name} {at} ".encode().ljust(300, b"."))
            self.acknowledged.append(name)
            sequence = await producer.last_sequence() + 1
            self.produced[sequence] = await producer.append(b"produced %d" % sequence)
        await wal.rotate()

    async def check(self, directory: Path) -> None:
        """Open the log again and compare all of it with what was acknowledged."""
        for _ in range(2):
            async with Wal.open(directory, settings=SETTINGS, fs=UnsyncedFileSystem()) as wal:
                async with wal.reader(follow=False) as reader:
                    found = [record.value async for record in reader]
                self._check_transactions(found, dict(wal.registers))
                await self._repeat(wal, found)
            (directory / "CHECKPOINT").unlink()  # the log itself must know all of it

    def _check_transactions(self, found: list[bytes], registers: dict[str, str]) -> None:
        committed = {name.removeprefix("of ") for name in registers if name.startswith("of ")}
        assert set(self.acknowledged) <= committed
        rows: dict[str, int] = {}
        for value in found:
            if not value.startswith(b"produced"):
                name, at, _ = value.decode().split(" ", 2)
                assert rows.setdefault(name, 0) == int(at), "in order, each once"
                rows[name] += 1
        assert rows == {name: self.sizes[name] for name in committed if self.sizes[name]}
        if committed:
            assert registers["last"] == max(committed, key=list(self.sizes).index)

    async def _repeat(self, wal: Wal, found: list[bytes]) -> None:
        producer = wal.producer("p")
        assert await producer.last_sequence() >= max(self.produced, default=0)
        for sequence, offset in list(self.produced.items())[-8:]:
            if sequence > await producer.last_sequence() - 8:
                assert await producer.append(b"again", sequence=sequence) == offset
        for sequence in range(1, await producer.last_sequence() + 1):
            assert found.count(b"produced %d" % sequence) == 1
        assert wal.tail == 1 + len(found)


@pytest.mark.parametrize("fault", FAULTS)
async def test_any_call_may_fail(fault: str, scratch: Path) -> None:
    for nth in count(1, every()):
        fs = FaultyFileSystem(UnsyncedFileSystem())
        fs.fail("*", nth=nth, **FAULTS[fault])
        life = Life()
        await life.run(scratch / str(nth), fs)
        await life.check(scratch / str(nth))
        if len(fs.calls) < nth:
            break
    assert nth > 100


async def test_the_power_may_go_before_any_call(scratch: Path) -> None:
    for nth in count(1, every()):
        root = scratch / f"{nth}" / "before"
        root.mkdir(parents=True)
        power = PowerLossFileSystem(root, UnsyncedFileSystem())
        fs = FaultyFileSystem(power)
        cut = PowerCut(fs, power, nth)
        life = Life()
        await life.run(root / "log", fs)
        for crashed in crashes(power, (LOSE_ALL, KEEP_ALL, 2 * nth, 2 * nth + 1), root.parent):
            await life.check(crashed / "log")
        shutil.rmtree(root.parent)
        if not cut.was_cut:
            break
    assert nth > 100
