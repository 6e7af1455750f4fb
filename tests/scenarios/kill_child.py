"""The process that L10 kills: appends from several tasks and tells which offsets are acknowledged.

    python tests/scenarios/kill_child.py DIRECTORY ROUND

Writes one line for each acknowledgement, each with one unbuffered write, so that a line that arrived was
true when it was written: ``tail OFFSET`` once the log is open, then ``OFFSET COUNT NAME``. The records of
``NAME`` have the values ``NAME/0``, ``NAME/1``, … padded to some length.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from walstore import Settings, Wal

SETTINGS = Settings(
    segment_bytes=256 * 1024,
    checkpoint_bytes=128 * 1024,
    batch_bytes=16 * 1024,
    max_record_bytes=64 * 1024,
    channel_bytes=128 * 1024,
    cache_bytes=64 * 1024,
)
SIZES = (0, 10, 100, 700, 3000, 20_000)


def value_of(name: str, at: int, size: int) -> bytes:
    """Return the value of a record; its size says nothing about its truth."""
    return f"{name}/{at} ".encode().ljust(size, b".")


def say(line: str) -> None:
    """Tell the parent, in one write."""
    os.write(1, line.encode() + b"\n")


async def append(wal: Wal, name: str, turn: int) -> None:
    """Append one record or a group, and report it."""
    size = SIZES[turn % len(SIZES)]
    if turn % 5 == 4:
        count = 2 + turn % 7
        start = (await wal.append_many(value_of(name, at, size // 4) for at in range(count))).start
    else:
        count = 1
        start = await wal.append(value_of(name, 0, size))
    say(f"{start} {count} {name}")


async def work(wal: Wal, prefix: str) -> None:
    """Append forever."""
    turn = 0
    while True:
        await append(wal, f"{prefix}-{turn}", turn)
        turn += 1


async def main(directory: str, round_: str) -> None:
    """Open the log and append from several tasks until somebody kills us."""
    async with Wal.open(directory, settings=SETTINGS) as wal, asyncio.TaskGroup() as tasks:
        say(f"tail {wal.tail}")
        for task in range(6):
            tasks.create_task(work(wal, f"{round_}-{task}"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
