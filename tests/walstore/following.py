"""What the tests of a log that is followed from outside share."""

from __future__ import annotations

from pathlib import Path

from tests.local import SMALL
from walstore import (
    Record,
    Wal,
)
from walstore.core.files.posix import PosixFileSystem
from walstore.log.readonly import ReadonlyWal

FS = PosixFileSystem()


def put(path: Path, data: bytes) -> None:
    """Store bytes in a file that others look at, as its writer does."""
    with path.open("r+b") as file:
        file.write(data)


async def drain(log: ReadonlyWal, start=1) -> list[Record]:
    return [record async for record in log.reader(start, follow=False)]


async def fill(directory: Path, count: int, *, size: int = 1000) -> None:
    async with Wal.open(directory, settings=SMALL) as wal:
        for at in range(count):
            await wal.append(b"%d" % at + bytes(size), durability="memory")


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value.rstrip(b"\0")) for record in records]
