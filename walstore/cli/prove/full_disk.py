"""Full disk: a log whose disk has no space left at a random byte, and some again later."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

from walstore import DiskFullError, Wal
from walstore.cli.errors import is_expected, leaves, unwrap
from walstore.cli.prove.examination import look
from walstore.cli.prove.promises import Promises, require
from walstore.cli.prove.workload import Workload, report_shown, settings_of
from walstore.core.ports import FileSystem
from walstore.testing import FaultyFileSystem

_LIVES: Final = 8
_STEPS: Final = 200
_OPS_OF_A_LIFE: Final = 100_000
_MOST_SPACE_BYTES: Final = 512 << 10


def fill_disk(
    place: Path, seed: int, counts: Counter[str], *, fs: FileSystem | None = None
) -> None:
    """Fill the disk below a log some times, and check the log after each time.

    The space is limited above ``fs``, by default the machine's file system: writes fail with ENOSPC where it
    ends, after a part of them. BrokenPromiseError if a promise is not kept, or another error is raised.
    """
    asyncio.run(_FullDisk(place / "log", seed, counts, FaultyFileSystem(fs)).run())


class _FullDisk:
    """One log, opened again and again."""

    def __init__(self, log: Path, seed: int, counts: Counter[str], fs: FaultyFileSystem) -> None:
        self._log, self._seed, self._counts, self._fs = log, seed, counts, fs
        self._chance = random.Random(seed)
        self._promises = Promises()

    async def run(self) -> None:
        for life in range(1, _LIVES + 1):
            try:
                await self._live(life)
            except Exception as error:
                if not is_expected(unwrap(error)):
                    raise
            self._fs.heal()
        async with Wal.open(self._log, settings=settings_of(self._seed), fs=self._fs) as wal:
            await self._check(wal)

    async def _live(self, life: int) -> None:
        """Work until the disk is full, and some more where the log goes on by itself."""
        settings, chance = settings_of(self._seed), self._chance
        async with Wal.open(self._log, settings=settings, fs=self._fs) as wal:
            await self._check(wal)
            await report_shown(wal, self._say)
            seed, first = self._seed * 31 + life, life * _OPS_OF_A_LIFE + 1
            work = Workload(wal, self._say, seed, first)
            await work.run(chance.randint(0, 12))
            self._fs.limit_space(chance.randrange(_MOST_SPACE_BYTES))
            try:
                await work.run(_STEPS)
            except Exception as error:
                full = [one for one in leaves(error) if isinstance(one, DiskFullError)]
                if not full:
                    raise
                self._counts["full_disks"] += 1
                self._fs.heal()
                if all(one.retriable for one in full):
                    self._counts["continued_when_there_was_space"] += 1
                    await work.run(chance.randint(1, 12))

    async def _check(self, wal: Wal) -> None:
        require(wal.recovery.missing_from is None, "opening says that synced records are missing")
        found = await look(wal, self._promises)
        self._promises.check(found)
        self._counts["checks"] += 1
        self._counts["checked"] += len(found.records)

    def _say(self, report: list[Any]) -> None:
        self._counts["appended"] += report[0] == "op"
        self._counts["acknowledged"] += report[0] == "ok"
        self._counts["refused"] += report[0] == "refused"
        self._promises.hear(report)
