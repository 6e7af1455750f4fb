"""A repair may fail or be killed at any call, and the power may go: the next one finishes it.

Until then the log is as it was, refuses to open, or is repaired; nothing in between can be read.

The damaged log is made and planned once. Each fault gets a copy in the same place, and what it leaves is
checked once, however many faults leave the same.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.local import (
    UnsyncedFileSystem,
    close_opened,
    crashes,
    is_new,
    open_blocking,
    read_opened,
)
from tests.walstore.care.repair.test_from_copy import LogCopy
from walstore import Wal
from walstore.care.repair.plan import STAGED_NAME, RepairPlan
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.care.repair.runs import Keep
from walstore.core.ports import FileSystem
from walstore.errors import CorruptionError, WalError
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

pytestmark = pytest.mark.slow

FS = UnsyncedFileSystem()
FAULTS: dict[str, dict[str, Any]] = {
    "one-error": {"error": errno.EIO},
    "done-and-reported-failed": {"happened": True},
    "half-written": {"error": errno.ENOSPC, "written_bytes": 100},
    "dead-disk": {"error": errno.EIO, "times": None},
}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments [1, 6), [6, 11), [11, 16), of which the second has lost its footer, and of the third
    batch [12, 13) is damaged and a bit of [14, 15) flipped; a log that remembers something."""
    path = tmp_path_factory.mktemp("damaged") / "log"

    async def make() -> None:
        async with Wal.open(path) as wal:
            await wal.append_many([b"1"], update={"owner": "a"})
            for number in range(2, 16):
                await wal.append(b"%d" % number * 100)
                if number in (5, 10):
                    await wal.rotate()

    asyncio.run(make())
    _, second, third = sorted(path.glob("*.wal"))
    second.write_bytes(second.read_bytes()[:-4])
    data = bytearray(third.read_bytes())
    data[data.index(b"12" * 100)] ^= 0xFF
    data[data.index(b"14" * 100)] ^= 1
    third.write_bytes(data)
    return path


def contents(path: Path) -> list[bytes] | None:
    """Return the values of a log, or None if it refuses to open or to be read."""
    try:
        opened = open_blocking(path, fs=FS)
    except CorruptionError:
        return None
    try:
        return [record.value for record in read_opened(opened)]
    except CorruptionError:
        return None
    finally:
        close_opened(opened)


def expected(keep: Keep) -> list[bytes]:
    first = [b"1", *(b"%d" % number * 100 for number in range(2, 16))]
    return first[:11] if keep == "before" else first[12:]


def check(path: Path, keep: Keep) -> None:
    """Look at an interrupted repair, finish it, and look again."""
    twin = renew(path, path.with_name(path.name + "-looked-at"))
    assert contents(twin) in (None, expected(keep))
    plan = plan_repair(path, keep=keep, fs=FS)
    apply_repair(plan, fs=FS)
    assert not plan_repair(path, fs=FS).is_needed
    assert contents(path) == expected(keep)


def repair(plan: RepairPlan, fs: FileSystem, copy: LogCopy | None = None) -> None:
    try:
        apply_repair(plan, copy=copy, fs=fs)
    except (OSError, WalError):
        return


def renew(source: Path, path: Path) -> Path:
    """Make ``path`` a copy of a directory, whatever it was."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(source, path)
    return path


@pytest.mark.parametrize("keep", ["before", "after"])
@pytest.mark.parametrize("fault", FAULTS)
def test_any_call_of_a_repair_may_fail(
    fault: str, keep: Keep, damaged: Path, scratch: Path
) -> None:
    path = scratch / "log"
    plan = plan_repair(renew(damaged, path), keep=keep, fs=FS)
    seen: set[bytes] = set()
    for nth in count(1):
        renew(damaged, path)
        fs = FaultyFileSystem(FS)
        fs.fail("*", nth=nth, **FAULTS[fault])
        repair(plan, fs)
        if is_new(path, seen):
            check(path, keep)
        if len(fs.calls) < nth:
            break
    assert nth > 50


@pytest.mark.parametrize("keep", ["before", "after"])
def test_the_power_may_go_before_any_call_of_a_repair(
    keep: Keep, damaged: Path, scratch: Path
) -> None:
    root = scratch / "before"
    plan = plan_repair(renew(damaged, root / "log"), keep=keep, fs=FS)
    seen: set[bytes] = set()
    for nth in count(1):
        renew(damaged, root / "log")
        power = PowerLossFileSystem(root, FS)
        fs = FaultyFileSystem(power)
        fs.before_each(lambda _, fs=fs, power=power, nth=nth: fs.count("*") >= nth and power.cut())
        repair(plan, fs)
        seeds = (LOSE_ALL, KEEP_ALL, 2 * nth, 2 * nth + 1)
        for crashed in crashes(power, seeds, scratch / "after", seen):
            check(crashed / "log", keep)
        shutil.rmtree(scratch / "after")
        if len(fs.calls) < nth:
            break
    assert nth > 50


def whole(path: Path, copy: LogCopy) -> None:
    """Look at an interrupted repair from a copy, finish it, and look again: nothing is lost."""
    twin = renew(path, path.with_name(path.name + "-looked-at"))
    values = [b"1", *(b"%d" % number * 100 for number in range(2, 16))]
    assert contents(twin) in (None, values)
    plan = plan_repair(path, copy=copy, fs=FS)
    # Once the repair has begun, the copy is not needed any more.
    apply_repair(plan, copy=None if plan.is_begun or not plan.is_needed else copy, fs=FS)
    assert not plan_repair(path, fs=FS).is_needed
    assert contents(path) == values
    assert not (path / STAGED_NAME).exists() or not plan.is_needed


@pytest.fixture(scope="module")
def damaged_and_copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LogCopy]:
    """As :func:`damaged`, with a segment missing and a batch that must be made anew; and the records."""
    path = tmp_path_factory.mktemp("copied") / "log"

    async def make() -> None:
        async with Wal.open(path) as wal:
            await wal.append_many([b"1"], update={"owner": "a"})
            for number in range(2, 16):
                await wal.append(b"%d" % number * 100)
                if number in (5, 10):
                    await wal.rotate()

    asyncio.run(make())
    other = path.with_name("copy")
    shutil.copytree(path, other)
    first, second, third = sorted(path.glob("*.wal"))
    data = bytearray(first.read_bytes())
    data[data.index(b"3" * 100)] ^= 0xFF
    first.write_bytes(data)
    second.unlink()
    data = bytearray(third.read_bytes())
    begin, end = data.index(b"12" * 100), data.index(b"13" * 100)
    data[begin:end] = bytes(end - begin)
    third.write_bytes(data)
    return path, LogCopy(other)


@pytest.mark.parametrize("fault", FAULTS)
def test_any_call_of_a_repair_from_a_copy_may_fail(
    fault: str, damaged_and_copied: tuple[Path, LogCopy], scratch: Path
) -> None:
    log, copy = damaged_and_copied
    path = scratch / "log"
    plan = plan_from(renew(log, path), copy)
    seen: set[bytes] = set()
    for nth in count(1):
        renew(log, path)
        fs = FaultyFileSystem(FS)
        fs.fail("*", nth=nth, **FAULTS[fault])
        repair(plan, fs, copy)
        if is_new(path, seen):
            whole(path, copy)
        if len(fs.calls) < nth:
            break
    assert nth > 50


def test_the_power_may_go_before_any_call_of_a_repair_from_a_copy(
    damaged_and_copied: tuple[Path, LogCopy], scratch: Path
) -> None:
    log, copy = damaged_and_copied
    root = scratch / "before"
    plan = plan_from(renew(log, root / "log"), copy)
    seen: set[bytes] = set()
    for nth in count(1):
        renew(log, root / "log")
        power = PowerLossFileSystem(root, FS)
        fs = FaultyFileSystem(power)
        fs.before_each(lambda _, fs=fs, power=power, nth=nth: fs.count("*") >= nth and power.cut())
        repair(plan, fs, copy)
        seeds = (LOSE_ALL, KEEP_ALL, 2 * nth)
        for crashed in crashes(power, seeds, scratch / "after", seen):
            whole(crashed / "log", copy)
        shutil.rmtree(scratch / "after")
        if len(fs.calls) < nth:
            break
    assert nth > 50


def plan_from(path: Path, copy: LogCopy) -> RepairPlan:
    plan = plan_repair(path, copy=copy, fs=FS)
    assert plan.lost == ()
    return plan


def test_a_repair_that_is_interrupted_again_and_again(damaged: Path, scratch: Path) -> None:
    """Each attempt gets a few calls further."""
    path = scratch / "log"
    shutil.copytree(damaged, path)
    for attempt in count(1):
        fs = FaultyFileSystem(FS)
        fs.fail("*", nth=8 * attempt, times=None)
        repair(plan_repair(path, keep="after", fs=FS), fs)
        if not plan_repair(path, fs=FS).is_needed:
            break
    assert attempt > 3
    assert contents(path) == expected("after")
