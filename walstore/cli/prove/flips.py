"""Flips: bits that a disk changes by itself, in the files of a log, and what its readers and a repair do."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from walstore import CorruptionError, Record, Wal
from walstore.care.repair import Keep, apply_repair, plan_repair
from walstore.care.verify import verify_directory
from walstore.cli.prove.promises import BrokenPromiseError, Promises, Row, require
from walstore.cli.prove.workload import Workload, report_shown, settings_of
from walstore.core.files.directory import LOCK_NAME
from walstore.errors import WalError

_STEPS: Final = 60
_FLIPS: Final = 40


def flip_bits(place: Path, seed: int, counts: Counter[str], *, flips: int = _FLIPS) -> None:
    """Write a log, and flip a bit of a copy of it ``flips`` times.

    BrokenPromiseError, and the copy stays in ``flipped``, if a record is wrong or missing in silence: a read,
    a verification and an opening each report damage, or there is none to the records.
    """
    chance, log = random.Random(seed), place / "log"
    truth = asyncio.run(_write(log, seed, counts))
    for _ in range(flips):
        copy = place / "flipped"
        shutil.copytree(log, copy)
        what = _flip(copy, chance)
        try:
            keep: Keep = chance.choice(("before", "after"))
            is_noticed = _examine(copy, truth, keep, counts)
        except Exception as error:
            error.add_note(f"after bit {what} was flipped")
            raise
        counts["flips"] += 1
        counts["flips_detected" if is_noticed else "flips_without_effect"] += 1
        shutil.rmtree(copy)


async def _write(log: Path, seed: int, counts: Counter[str]) -> dict[int, Row]:
    """Fill a log; return its records by their offsets, as they were promised."""
    promises, settings = Promises(), settings_of(seed)

    def say(report: list[Any]) -> None:
        counts["appended"] += report[0] == "op"
        counts["acknowledged"] += report[0] == "ok"
        promises.hear(report)

    async with Wal.open(log, settings=settings) as wal:
        await Workload(wal, say, seed).run(_STEPS)
    async with Wal.open(log, settings=settings) as wal:
        await report_shown(wal, say)
    truth = {}
    for offset, (id_, at) in promises.at.items():
        op = promises.ops[id_]
        truth[offset] = (offset, op.value(at), op.key.encode() if op.key else None, op.stream)
    return truth


def _flip(copy: Path, chance: random.Random) -> str:
    """Flip a bit of a file; return which."""
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.name != LOCK_NAME]
    sizes = [path.stat().st_size for path in files]
    # Half of the time in any file, however small, else in any byte.
    weights = [min(size, 1) for size in sizes] if chance.random() < 0.5 else sizes
    (path,) = chance.choices(files, weights)
    data = bytearray(path.read_bytes())
    bit = chance.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"{bit} of {path}"


def _examine(copy: Path, truth: Mapping[int, Row], keep: Keep, counts: Counter[str]) -> bool:
    """Use a log with a flipped bit in every way; return whether any noticed."""
    noticed = [asyncio.run(_read(copy, truth, counts))]
    noticed.append(bool(verify_directory(copy).problems))
    written = copy.with_name("opened")
    shutil.copytree(copy, written)
    noticed.append(asyncio.run(_open(written, truth, counts)))
    shutil.rmtree(written)
    _repair(copy, truth, keep, counts)
    return any(noticed)


async def _read(log: Path, truth: Mapping[int, Row], counts: Counter[str]) -> bool:
    """Read a log without its lock; return whether that reported damage."""
    try:
        async with Wal.open_readonly(log) as wal, wal.reader(follow=False) as reader:
            async for record in reader:
                _compare("a reader", record, truth)
                counts["checked"] += 1
    except CorruptionError:
        return True
    return False


async def _open(log: Path, truth: Mapping[int, Row], counts: Counter[str]) -> bool:
    """Open a log for writing and read it; return whether that reported damage."""
    try:
        async with Wal.open(log) as wal:
            is_short = wal.tail <= max(truth, default=0)
            is_reported = wal.recovery.missing_from is not None
            require(is_reported or not is_short, f"opening lost records in silence from {wal.tail}")
            offsets = []
            async with wal.reader(follow=False) as reader:
                async for record in reader:
                    _compare("the writer", record, truth)
                    offsets.append(record.offset)
            counts["checked"] += len(offsets)
            require(
                offsets == list(range(wal.head, wal.tail)),
                f"of [{wal.head}, {wal.tail}) only {len(offsets)} records were read, without an error",
            )
            return is_reported
    except CorruptionError:
        return True


def _repair(log: Path, truth: Mapping[int, Row], keep: Keep, counts: Counter[str]) -> None:
    """Repair a log, and require each record that the plan does not call lost."""
    plan = plan_repair(log)
    if not plan.is_needed:
        return
    if plan.needs_choice:
        plan = plan_repair(log, keep=keep)
    apply_repair(plan)
    counts["repairs"] += 1
    try:
        head, found = asyncio.run(_read_repaired(log, truth))
    except WalError as error:
        raise BrokenPromiseError(f"a repaired log does not open: {error}") from error
    lost = {offset for one in plan.lost for offset in range(one.start, one.limit)}
    missing = {offset for offset in truth if offset >= head} - found - lost
    require(not missing, f"the repair lost offset {min(missing, default=0)} and does not say so")


async def _read_repaired(log: Path, truth: Mapping[int, Row]) -> tuple[int, set[int]]:
    """Return the head and all offsets of a repaired log."""
    found = set()
    async with Wal.open(log) as wal, wal.reader(follow=False) as reader:
        async for record in reader:
            _compare("the repaired log", record, truth)
            found.add(record.offset)
        return wal.head, found


def _compare(who: str, record: Record, truth: Mapping[int, Row]) -> None:
    row = (record.offset, record.value, record.key, record.stream)
    require(truth.get(record.offset) == row, f"{who} got a wrong record at offset {record.offset}")
