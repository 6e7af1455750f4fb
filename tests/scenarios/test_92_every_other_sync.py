"""Each sync but those of segments fails once, and then the power. What was acknowledged holds.

Syncs of segments are the append's own; these are of checkpoints, cursors, groups, new names and deletions.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Awaitable
from itertools import count
from pathlib import Path

import pytest

from tests.effort import every
from tests.local import SMALL
from walstore import Wal, WalError, WalStore
from walstore.testing import Call, FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import LOSE_ALL

pytestmark = pytest.mark.slow

SYNCS = ("datasync", "sync_directory")
VALUES = [b"%d;" % number * 900 for number in range(30)]


class Life:
    """A store of two logs, one of which is deleted, and what its user was told."""

    def __init__(self, directory: Path, nth: int) -> None:
        self.power = PowerLossFileSystem(directory / "store")
        self.fs = FaultyFileSystem(self.power)
        self.fs.before_each(self._fail_one)
        self.directory = directory
        self.syncs = 0
        self.appended = 0
        self.done: set[str] = set()
        self.settled: set[int] = set()
        self._nth = nth

    @property
    def has_failed(self) -> bool:
        return self.syncs >= self._nth

    def _fail_one(self, call: Call) -> None:
        if call.kind in SYNCS and call.path.name != "next.tmp" and call.path.suffix != ".wal":
            self.syncs += 1
            if self.syncs == self._nth:
                raise OSError(errno.EIO, "injected", str(call.path))

    async def run(self) -> None:
        try:
            async with WalStore.open(self.directory / "store", fs=self.fs, settings=SMALL) as store:
                await (await store.wal("deleted")).append(b"one")
                await self._use(await store.wal("kept"))
                await self._try("delete log", store.delete("deleted"))
        except WalError:
            return

    async def _use(self, wal: Wal) -> None:
        for value in VALUES:
            await wal.append(value)
            self.appended += 1
        for position in (10, 20):
            await self._try(f"commit {position}", self._commit(wal, "kept", position))
            await self._try(f"commit other {position}", self._commit(wal, "other", position))
        with contextlib.suppress(WalError):
            async with wal.group("workers") as group:
                for job in await group.fetch(4):
                    if await self._try("ack", job.ack()):
                        self.settled.add(job.offset)
        with contextlib.suppress(WalError):
            async with wal.group("others") as group:
                await (await group.fetch(1))[0].ack()
        await self._try("delete cursor", wal.delete_cursor("other"))
        await self._try("delete group", wal.delete_group("others"))
        await self._try("trim", wal.trim(5))
        await wal.rotate()
        await wal.append(b"last")
        self.appended += 1

    async def _commit(self, wal: Wal, name: str, position: int) -> None:
        await (await wal.cursor(name)).commit(position)

    async def _try(self, what: str, act: Awaitable[object]) -> bool:
        try:
            await act
        except WalError:
            return False
        self.done.add(what)
        return True

    async def check(self) -> None:
        """Compare what the user was told with what is there after a power failure."""
        self.power.crash(LOSE_ALL, self.directory / "crashed")
        async with WalStore.open(self.directory / "crashed", settings=SMALL) as store:
            names = await store.logs()
            assert "deleted" not in names or "delete log" not in self.done
            if "kept" not in names:
                assert self.appended == 0
                return
            wal = await store.wal("kept")
            assert wal.tail > self.appended
            assert wal.head <= 5
            positions = {one.name: one.position for one in await wal.cursors()}
            assert all(one.problem is None for one in await wal.cursors())
            for position in (10, 20):
                assert f"commit {position}" not in self.done or positions["kept"] >= position
            assert "delete cursor" not in self.done or "other" not in positions
            groups = {one.name for one in await wal.groups()}
            assert "delete group" not in self.done or not groups & {"others"}
            if wal.tail > 5:
                async with wal.group("workers") as group:
                    again = {job.offset for job in await group.fetch(10)}
                assert not again & self.settled
            assert await wal.append(b"after") == wal.tail - 1


async def test_what_was_acknowledged_holds(scratch: Path) -> None:
    for nth in count(1, every()):
        life = Life(scratch / str(nth), nth)
        await life.run()
        await life.check()
        if not life.has_failed:
            break
    assert life.done >= {"commit 10", "commit 20", "ack", "delete cursor", "delete group", "trim"}
    assert life.done >= {"delete log"}
    assert life.settled == {1, 2, 3, 4}
    assert life.syncs >= 30
