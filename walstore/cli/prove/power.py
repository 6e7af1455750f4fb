"""Power: logs whose power fails at a random call, in every way that their writes and syncs allow.

The file system is the simulated one of :mod:`walstore.testing`: what no sync covered is kept or lost, sector
by sector and name by name. So this tests the log, and not whether the disk keeps what it was told to sync.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from walstore import Wal
from walstore.cli.errors import is_expected, unwrap
from walstore.cli.prove.examination import examine
from walstore.cli.prove.promises import Promises
from walstore.cli.prove.workload import Workload, report_shown, settings_of
from walstore.core.ports import FileSystem
from walstore.testing import Call, FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

_LIVES: Final = 4
_OUTCOMES: Final = 6
"""Possible outcomes of one power failure that are tried, besides the two extremes."""
_MOST_CALLS: Final = 900
_STEPS: Final = 400
_OPS_OF_A_LIFE: Final = 100_000


def fail_power(
    place: Path,
    seed: int,
    counts: Counter[str],
    *,
    above: Callable[[FileSystem], FileSystem] = lambda fs: fs,
) -> None:
    """Let the power of a log fail some times, and examine what may be left each time.

    The log continues from one of the outcomes. ``above`` wraps the file system that loses power. Everything
    is below ``place``. BrokenPromiseError, and the outcome stays in ``outcome``, if a promise is not kept.
    """
    chance = random.Random(seed)
    work = seed if settings_of(seed).sync != "os" else seed + 2  # which does not wait for syncs
    promises = Promises()
    directory = place / "life-0"
    directory.mkdir()
    for life in range(1, _LIVES + 1):
        power = PowerLossFileSystem(directory)
        fs = above(_cut_at(power, chance.randint(1, _MOST_CALLS)))
        asyncio.run(_live(directory / "log", fs, promises, counts, work, life))
        counts["power_failures"] += 1
        outcomes = [LOSE_ALL, KEEP_ALL, *(chance.getrandbits(32) + 2 for _ in range(_OUTCOMES))]
        for outcome in outcomes:
            state = place / "outcome"
            power.crash(outcome, state)
            examination = examine(state / "log", promises, work, lost_nothing=False)
            counts["checked"] += asyncio.run(examination)
            counts["checks"] += 1
            shutil.rmtree(state)
            counts["power_outcomes"] += 1
        before, directory = directory, place / f"life-{life}"
        power.crash(chance.choice(outcomes), directory)
        shutil.rmtree(before)


def _cut_at(power: PowerLossFileSystem, call: int) -> FileSystem:
    """Return a file system whose power fails before that call on it."""
    fs, calls = FaultyFileSystem(power), itertools.count(1)

    def cut(_: Call) -> None:
        if next(calls) == call:
            power.cut()

    fs.before_each(cut)
    return fs


async def _live(
    log: Path, fs: FileSystem, promises: Promises, counts: Counter[str], seed: int, life: int
) -> None:
    """Open a log and work until the power fails."""

    def say(report: list[Any]) -> None:
        counts["appended"] += report[0] == "op"
        counts["acknowledged"] += report[0] == "ok"
        promises.hear(report)

    try:
        async with Wal.open(log, settings=settings_of(seed), fs=fs) as wal:
            await report_shown(wal, say)
            await Workload(wal, say, seed * 31 + life, life * _OPS_OF_A_LIFE + 1).run(_STEPS)
    except Exception as error:
        if not is_expected(unwrap(error)):
            raise
