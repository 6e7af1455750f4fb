"""The processes that the consumer scenarios kill.

    python tests/scenarios/consumer_child.py copy DIRECTORY TOTAL SEED

feeds the log ``in`` with the numbers below TOTAL and copies it to the log ``out`` by transactions, both at
the same time, and ends when ``out`` has all. ``trim`` removes what is copied.

    python tests/scenarios/consumer_child.py commit DIRECTORY

moves a cursor of the log ``in`` one by one, forever. Each line it writes is a position whose commit returned.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cursors import OpenLog, consumers_of, cursors_of
from tests.local import SMALL
from walstore import Wal
from walstore.core.runtime.clock import SystemClock


def say(line: str) -> None:
    """Tell the parent, in one write."""
    os.write(1, line.encode() + b"\n")


async def feed(wal: Wal, total: int) -> None:
    """Append the numbers that are not in the log yet."""
    while wal.tail <= total:
        await wal.append(b"%d" % (wal.tail - 1))


async def copy(wal: Wal, out: Wal, total: int, chance: random.Random) -> None:
    """Copy until the output has all."""
    async with consumers_of(wal) as make:
        consumer = make.consumer(
            "copy", output=out, follow=True, auto_commit_seconds=chance.choice((None, 0.01))
        )
        async with consumer:
            say(f"open at {consumer.position}")
            while out.tail <= total:
                async with consumer.transaction() as txn:
                    batch = await consumer.fetch(max_records=chance.randrange(1, 20))
                    for value in batch.values:
                        await txn.append(bytes(value) + bytes(chance.choice((0, 0, 3000))))
                if chance.random() < 0.1:
                    await trim(wal, consumer.committed)


async def trim(wal: Any, before: int) -> None:
    """Remove what is copied, as far as the cursor lets go."""
    if hasattr(wal, "trim"):
        await wal.trim(before=before)


async def run_copy(directory: Path, total: int, seed: int) -> None:
    """Feed and copy."""
    chance = random.Random(seed)
    settings = SMALL.replace(transaction_memory_bytes=chance.choice((4096, 65_536)))
    async with (
        Wal.open(directory / "in", settings=SMALL) as wal,
        Wal.open(directory / "out", settings=settings) as out,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(feed(wal, total))
        group.create_task(copy(wal, out, total, chance))


async def run_commits(directory: Path) -> None:
    """Move the cursor and tell, until somebody kills us."""
    async with (
        Wal.open(directory / "in", settings=SMALL) as wal,
        cursors_of(OpenLog(wal), clock=SystemClock()) as store,
    ):
        cursor = await store.open("c", lease_seconds=60)
        say(f"open at {cursor.position}")
        while True:
            await cursor.commit(cursor.position + 1)
            say(str(cursor.position))


if __name__ == "__main__":
    if sys.argv[1] == "copy":
        asyncio.run(run_copy(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
    else:
        asyncio.run(run_commits(Path(sys.argv[2])))
