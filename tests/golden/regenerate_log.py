"""The golden logs: what is in ``log_v1`` and ``log_v2``, and the program that wrote them.

Version 1: two sealed segments, an active one, a checkpoint, and a durable cell, as closing leaves them.
Version 2: what a process that died leaves, with all that a log can contain: plain, atomic and compressed
batches, marks of registers, streams and producers, a large transaction, a trimmed head, and cursors.

Both versions must stay readable for good, so the files are never written again.
``python -m tests.golden.regenerate_log`` writes the version that this program writes, if it is missing.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from walstore import Record, Settings, Wal
from walstore.core.files.directory import LOCK_NAME
from walstore.testing import ManualClock

DIRECTORIES: Final = {version: Path(__file__).parent / f"log_v{version}" for version in (1, 2)}
TIME_US: Final = 1_760_000_000_000_000
SECOND_US: Final = 1_000_000
PLAIN: Final = Settings(segment_bytes=64 * 1024)
COMPRESSED: Final = Settings(
    segment_bytes=64 * 1024, compression="zstd", transaction_memory_bytes=1
)
REGISTERS: Final = {"owner": "alice", "phase": "three", "später": "ja"}
CURSORS: Final = {"billing": 7, "search": 4}
_BEGINNING: Final = [
    Record(1, b"first", timestamp_us=TIME_US),
    Record(2, b"", b"key", "eu", {"trace": b"\x01\x02"}, TIME_US),
    Record(3, b"atomic 1", timestamp_us=TIME_US),
    Record(4, b"atomic 2", timestamp_us=TIME_US),
    Record(5, "später".encode(), timestamp_us=TIME_US + SECOND_US),
    Record(6, b"\x00" * 20, None, "us", {}, TIME_US + SECOND_US),
    Record(7, b"after reopening", timestamp_us=TIME_US + 2 * SECOND_US),
]


def expected(version: int) -> list[Record]:
    """Return the records that the log of that version contains."""
    if version == 1:
        return list(_BEGINNING)
    late_us = TIME_US + 2 * SECOND_US
    last_us = late_us + SECOND_US
    return [
        *_BEGINNING[2:],  # the head was moved to 3
        Record(8, b"numbered", timestamp_us=late_us),
        Record(9, b"compressed " * 400, timestamp_us=late_us),
        *(Record(10 + at, b"large %d" % at, None, "eu", {}, late_us) for at in range(3)),
        Record(13, b"behind", b"key", None, {"trace": b"\x03"}, last_us),
    ]


async def write(path: Path, killed: Path) -> None:
    """Make the log in an empty directory, and copy it to ``killed`` while it is open."""
    clock = ManualClock(now_us=TIME_US)
    async with Wal.open(path, settings=PLAIN, clock=clock) as wal:
        await wal.append(b"first")
        await wal.append(b"", key=b"key", stream="eu", headers={"trace": b"\x01\x02"})
        await wal.append_many([b"atomic 1", b"atomic 2"], update={"owner": "bob", "gone": "x"})
        await wal.rotate()
        clock.advance(1)
        await wal.append("später".encode())
        await wal.append(b"\x00" * 20, stream="us")
        await wal.rotate()
        await wal.trim(3)
    clock.advance(1)
    async with Wal.open(path, settings=COMPRESSED, clock=clock) as wal:
        for name, position in CURSORS.items():
            await wal.cursor(name, start=position)
        await wal.append(b"after reopening")
        await wal.producer("p").append(b"numbered", sequence=1)
        await wal.append(b"compressed " * 400)
        await wal.open_stream("asia", metadata={"zone": "9"})
        await wal.close_stream("us")
        async with wal.transaction(update={"owner": "alice", "gone": None, "später": "ja"}) as txn:
            for at in range(3):
                await txn.append(b"large %d" % at, stream="eu")
        clock.advance(1)
        await wal.append(b"behind", key=b"key", headers={"trace": b"\x03"})
        async with wal.transaction(update={"phase": "three"}):
            pass
        shutil.copytree(path, killed, ignore=shutil.ignore_patterns(LOCK_NAME, ".lock"))


def main() -> int:
    """Write the golden log of this version once."""
    target = DIRECTORIES[2]
    if target.exists():
        sys.stderr.write(f"{target} is there and must not change\n")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(write(Path(scratch) / "log", target))
    return 0


if __name__ == "__main__":
    sys.exit(main())
