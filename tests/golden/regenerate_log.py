"""The golden log: what is in ``log_v1``, and the program that wrote it.

A directory as a process that died leaves it: two sealed segments, an active one with reserved blocks cut
off, a checkpoint, and a durable cell. Version 1 must stay readable for good, so the files are never written
again. ``python -m tests.golden.regenerate_log`` made them; it refuses to run while they are there.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from walstore import Record, Settings, Wal
from walstore.directory import LOCK_NAME
from walstore.testing import ManualClock

DIRECTORY: Final = Path(__file__).parent / "log_v1"
TIME_US: Final = 1_760_000_000_000_000


def expected() -> list[Record]:
    """Return the records that the log holds."""
    return [
        Record(1, b"first", timestamp_us=TIME_US),
        Record(2, b"", b"key", "eu", {"trace": b"\x01\x02"}, TIME_US),
        Record(3, b"atomic 1", timestamp_us=TIME_US),
        Record(4, b"atomic 2", timestamp_us=TIME_US),
        Record(5, "später".encode(), timestamp_us=TIME_US + 1_000_000),
        Record(6, b"\x00" * 20, None, "us", {}, TIME_US + 1_000_000),
        Record(7, b"after reopening", timestamp_us=TIME_US + 2_000_000),
    ]


async def write(path: Path) -> None:
    """Make the log in an empty directory."""
    clock = ManualClock(now_us=TIME_US)
    settings = Settings(segment_bytes=64 * 1024)
    async with Wal.open(path, settings=settings, clock=clock) as wal:
        await wal.append(b"first")
        await wal.append(b"", key=b"key", stream="eu", headers={"trace": b"\x01\x02"})
        await wal.append_many([b"atomic 1", b"atomic 2"])
        await wal.rotate()
        clock.advance(1)
        await wal.append("später".encode())
        await wal.append(b"\x00" * 20, stream="us")
        await wal.rotate()
    clock.advance(1)
    async with Wal.open(path, settings=settings, clock=clock) as wal:
        await wal.append(b"after reopening")


def main() -> int:
    """Write the golden log once."""
    if DIRECTORY.exists():
        sys.stderr.write(f"{DIRECTORY} is there and must not change\n")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "log"
        asyncio.run(write(path))
        (path / LOCK_NAME).unlink()
        shutil.copytree(path, DIRECTORY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
