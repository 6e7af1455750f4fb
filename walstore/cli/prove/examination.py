"""Examination: opens a log as its next users would, and checks every promise.

Somebody reads it without the lock, then the writer opens it, goes on, closes it and opens it again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from walstore import LogNotFoundError, Settings, Wal
from walstore.cli.prove.promises import FoundLog, Promises, require
from walstore.cli.prove.workload import read, read_all, settings_of

AFTER: Final = (b"after the crash", b"and once more" * 50)
"""What the writer appends."""


def checking_settings(seed: int) -> Settings:
    """Return the workload's settings, with larger reads: what is found does not depend on these."""
    return settings_of(seed).replace(read_ahead_bytes=1 << 20, cache_bytes=0)


async def examine(directory: Path, promises: Promises, seed: int, *, lost_nothing: bool) -> int:
    """Check a log as every user sees it; return the number of its records.

    Raises BrokenPromiseError, and whatever opening and reading raise.
    """
    seen = await _look_from_outside(directory, promises, seed, lost_nothing=lost_nothing)
    settings = checking_settings(seed)
    async with Wal.open(directory, settings=settings) as wal:
        require(wal.recovery.missing_from is None, "opening says that synced records are missing")
        found = await look(wal, promises)
        promises.check(found)
        require(seen is None or seen <= found.limit, f"a reader saw {seen}, now {found.limit}")
        await _repeat(wal, promises, found.limit)
        span = await wal.append_many(AFTER, durability="disk")
        require(span.start == found.limit, f"the next record got offset {span.start}")
    async with Wal.open(directory, settings=settings) as wal:
        again = await look(wal, promises)
    require(again.head >= found.head, "the head went back after a clean close")
    values = {record[0]: record[1] for record in found.records} | dict(
        zip(span, AFTER, strict=True)
    )
    require(
        {record[0]: record[1] for record in again.records}
        == {offset: value for offset, value in values.items() if offset >= again.head},
        "the records changed after a clean close",
    )
    require(again.registers == found.registers, "the registers changed after a clean close")
    return len(found.records)


async def look(wal: Wal, promises: Promises) -> FoundLog:
    """Read all that a log remembers."""
    limit = wal.durable_limit
    head, records = await read_all(wal, limit)
    infos = await wal.cursors() if promises.cursors else []
    for info in infos:
        require(info.problem is None, f"cursor {info.name!r}: {info.problem}")
    return FoundLog(
        head,
        limit,
        records,
        dict(wal.registers),
        {name: [info.is_open, dict(info.metadata)] for name, info in wal.streams().items()},
        {info.name: info.position for info in infos},
        {name: await wal.producer(name).last_sequence() for name in promises.sequences},
        wal.head,
    )


async def _look_from_outside(
    directory: Path, promises: Promises, seed: int, *, lost_nothing: bool
) -> int | None:
    """Read without the lock: a prefix, never garbage. Return up to where, if that must stay."""
    try:
        log = await Wal.open_readonly(directory)
    except LogNotFoundError:
        require(not promises.was_opened and promises.limit == 1, "a reader finds no log")
        return None
    try:
        limit = log.limit
        found = FoundLog(log.head, limit, await read(log, limit))
        promises.check_prefix(found)
        if lost_nothing:
            require(limit >= promises.limit, f"a reader sees up to {limit}, not {promises.limit}")
    finally:
        await log.aclose()
    return None if settings_of(seed).sync == "os" else limit


async def _repeat(wal: Wal, promises: Promises, limit: int) -> None:
    """Repeat the newest acknowledged append of each producer: it must not be appended again."""
    for name, numbers in promises.sequences.items():
        known = [(n, op, start) for n, (op, start) in numbers.items() if start is not None]
        if known:
            number, op, start = max(known)
            span = await wal.producer(name).append_many([b"again"], sequence=number)
            require(span.start == start, f"operation {op} was appended again at {span.start}")
    require(wal.tail == limit, "a repeated append grew the log")
