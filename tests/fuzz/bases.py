"""The logs that are damaged: small ones, with every kind of file that a log directory can hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.local import copy_log
from walstore import Record, Settings, Wal
from walstore.care.repair.plan import encode_plan
from walstore.care.repair.repairing import plan_repair
from walstore.core.files.directory import REPAIR_NAME, RESTORE_NAME
from walstore.core.files.posix import PosixFile, PosixFileSystem
from walstore.testing import ManualClock

TIME_US: Final = 1_760_000_000_000_000
SETTINGS: Final = Settings(
    segment_bytes=64 << 10,
    batch_bytes=4 << 10,
    cache_bytes=16 << 10,
    checkpoint_bytes=64 << 10,
    read_ahead_bytes=4 << 10,
    max_record_bytes=64 << 10,
    channel_bytes=1 << 20,
    transaction_memory_bytes=4 << 10,
    min_free_bytes=0,
)
COMPRESSED: Final = SETTINGS.replace(compression="zstd")


class MemoryFileSystem(PosixFileSystem):
    """The real file system without its syncs and without reserving blocks: thousands of logs are opened."""

    def open(self, path: Path, mode: str) -> PosixFile:
        found = super().open(path, mode)
        found.datasync = lambda: None  # type: ignore[method-assign]
        found.allocate = lambda size: None  # type: ignore[method-assign]
        return found

    def sync_directory(self, path: Path) -> None:
        pass


@dataclass(frozen=True)
class Base:
    """A log as its files, and what it holds."""

    name: str
    files: dict[str, bytes]
    """By their paths below the log's directory."""
    records: dict[int, Record]
    """Every acknowledged record, by offset."""
    registers: dict[str, str]
    head: int
    limit: int


async def _plain(wal: Wal, clock: ManualClock) -> None:
    for number in range(12):
        await wal.append(b"value %d" % number * (number + 1))
        if number in {4, 8}:
            await wal.rotate()
    await wal.append_many([b"even"] * 20)
    await wal.append(b"")


async def _rich(wal: Wal, clock: ManualClock) -> None:
    async with wal.transaction(update={"leader": "a", "term": "7"}) as transaction:
        await transaction.append(b"with registers")
    await wal.open_stream("eu", metadata={"owner": "billing"})
    producer = wal.producer("p")
    for number in range(6):
        clock.advance(1)
        await producer.append(b"produced %d" % number, stream="eu", key=b"k%d" % number)
        await wal.append(
            b"", stream="us", headers={"trace": b"\x01\x02", "x": b""}, timestamp_us=clock.now_us()
        )
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(
                wal.append(
                    b"together %d" % number,
                    stream=("eu", "us", "später", None)[number % 4] or None,
                    headers={"n": b"%d" % number} if number % 3 else None,
                    timestamp_us=clock.now_us() + number,
                )
            )
    async with wal.transaction() as transaction:  # larger than memory: a segment of its own
        for number in range(12):
            await transaction.append(bytes([number]) * 900, key=b"spilled")
    await wal.append(b"behind", stream="us")
    async with wal.transaction(update={"term": "8"}):
        pass
    cursor = await wal.cursor("billing", lease_seconds=3600.0)
    await cursor.commit(5)
    await wal.cursor("audit")


async def _packed(wal: Wal, clock: ManualClock) -> None:
    for number in range(6):
        values = [b"compressible " * 30 + b"%d" % at for at in range(number + 2)]
        await wal.append_many(values, key=b"key", stream="eu", headers={"h": b"v"})
        if number == 2:
            await wal.rotate()


async def _trimmed(wal: Wal, clock: ManualClock) -> None:
    for number in range(10):
        await wal.append(b"old %d" % number, stream="eu")
        if number % 3 == 2:
            await wal.rotate()
    await wal.append(b"new")


Fill = Callable[[Wal, ManualClock], Awaitable[None]]


def make_bases(scratch: Path) -> list[Base]:
    """Make all logs in a directory that is empty."""
    kinds: list[tuple[str, Fill, Settings]] = [
        ("plain", _plain, SETTINGS),
        ("rich", _rich, SETTINGS),
        ("packed", _packed, COMPRESSED),
        ("trimmed", _trimmed, SETTINGS),
    ]
    found = []
    for name, fill, settings in kinds:
        found.append(asyncio.run(_make(scratch / name, name, fill, settings, is_closed=True)))
        found.append(
            asyncio.run(
                _make(scratch / f"{name}-open", f"{name}-open", fill, settings, is_closed=False)
            )
        )
    found.append(_interrupted_repair(scratch, found[0]))
    found.append(_with_leftovers(found[2]))
    return found


async def _make(path: Path, name: str, fill: Fill, settings: Settings, *, is_closed: bool) -> Base:
    """Make a log; if it is not closed, as a process that is killed leaves it."""
    clock = ManualClock(now_us=TIME_US)
    copy = path.with_name(f"{name}.copy")
    async with Wal.open(path, settings=settings, clock=clock, fs=MemoryFileSystem()) as wal:
        await fill(wal, clock)
        await wal.flush()
        async with wal.reader("earliest", follow=False) as reader:
            records = {record.offset: record async for record in reader}
        if name.startswith("trimmed"):
            await wal.trim(5)
        registers, head, limit = dict(wal.registers), wal.head, wal.tail
        if not is_closed:
            await asyncio.to_thread(copy_log, path, copy)
    files = read_files(path if is_closed else copy)
    return Base(name, files, records, registers, head, limit)


def _interrupted_repair(scratch: Path, base: Base) -> Base:
    """A log whose repair was killed just after it began."""
    path = scratch / "repair"
    files = dict(base.files)
    name = max(name for name in files if name.endswith(".wal"))
    data = bytearray(files[name])
    data[len(data) // 2] ^= 0x10
    files[name] = bytes(data)
    write_files(path, files)
    files[REPAIR_NAME] = encode_plan(plan_repair(path, keep="before"))
    return Base("repair", files, base.records, base.registers, base.head, base.limit)


def _with_leftovers(base: Base) -> Base:
    """A log beside whatever crashes leave."""
    names = sorted(name for name in base.files if name.endswith(".wal"))
    files = dict(base.files)
    files["transaction-1.tmp"] = files[names[-1]]
    files["next.tmp"] = files[names[0]]
    files["CHECKPOINT.tmp"] = files["CHECKPOINT"][:100]
    files["cursors/.next"] = b"half"
    files["damaged/repair.wal.1"] = b"old"
    files[names[-1].replace(".wal", ".broken")] = b"torn"
    files[f"{RESTORE_NAME}.tmp"] = b"{}"
    return Base("leftovers", files, base.records, base.registers, base.head, base.limit)


def read_files(path: Path) -> dict[str, bytes]:
    """Return the files below a directory; locks are made again by whoever needs them."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.is_symlink() and file.name != ".lock"
    }


def write_files(path: Path, files: dict[str, bytes]) -> None:
    """Write files below a directory."""
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
