"""The writer that a reader in another process follows, until somebody kills it.

    python tests/scenarios/readonly_child.py DIRECTORY NAME LANES SIZE RETENTION_BYTES

Values are ``NAME COUNTER`` and padding. Writes ``tail OFFSET`` once the log is open, then
``OFFSET NAME COUNTER`` for each acknowledged record. A number on stdin says that all before that offset may
be deleted. With ``LANES`` 0 it appends one record at first, and one for each line ``next`` on stdin.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.local import drop_before
from walstore import Settings, Wal

KIB = 1024


def settings(retention_bytes: int | None) -> Settings:
    return Settings(
        segment_bytes=64 * KIB,
        checkpoint_bytes=128 * KIB,
        batch_bytes=8 * KIB,
        max_record_bytes=64 * KIB,
        channel_bytes=128 * KIB,
        cache_bytes=64 * KIB,
        retention_bytes=retention_bytes,
    )


def say(line: str) -> None:
    """Tell the parent, in one write: a line that arrived was true when it was written."""
    os.write(1, line.encode() + b"\n")


async def produce(wal: Wal, name: str, size: int, turns: asyncio.Semaphore | None = None) -> None:
    counter = 0
    while True:
        if turns is not None:
            await turns.acquire()
        value = f"{name} {counter} ".encode()
        offset = await wal.append(value.ljust(size * (counter % 4), b"."))
        say(f"{offset} {name} {counter}")
        counter += 1


async def obey(wal: Wal, turns: asyncio.Semaphore) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        if line == b"next\n":
            turns.release()
        else:
            await drop_before(wal, int(line))


async def main(directory: str, name: str, lanes: str, size: str, retention: str) -> None:
    retention_bytes = int(retention) or None
    async with (
        Wal.open(directory, settings=settings(retention_bytes)) as wal,
        asyncio.TaskGroup() as tasks,
    ):
        say(f"tail {wal.tail}")
        turns = asyncio.Semaphore(1)
        tasks.create_task(obey(wal, turns))
        for lane in range(int(lanes)):
            tasks.create_task(produce(wal, f"{name}-{lane}", int(size)))
        if lanes == "0":
            tasks.create_task(produce(wal, name, int(size), turns))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
