"""The writer that a reader in another process follows, until somebody kills it.

    python tests/scenarios/readonly_child.py DIRECTORY NAME PAUSE_SECONDS SIZE RETENTION_BYTES

Values are ``NAME COUNTER NANOSECONDS`` and padding, where the time is that of the call of append on the clock
that all processes share. Writes ``tail OFFSET`` once the log is open, then ``OFFSET NAME COUNTER`` for each
acknowledged record. A number on stdin says that all before that offset may be deleted.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
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


async def produce(wal: Wal, name: str, pause: float, size: int) -> None:
    counter = 0
    while True:
        value = f"{name} {counter} {time.monotonic_ns()} ".encode()
        offset = await wal.append(value.ljust(size * (counter % 4), b"."))
        say(f"{offset} {name} {counter}")
        counter += 1
        await asyncio.sleep(pause)


async def delete(wal: Wal) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        await drop_before(wal, int(line))


async def main(directory: str, name: str, pause: str, size: str, retention: str) -> None:
    retention_bytes = int(retention) or None
    async with (
        Wal.open(directory, settings=settings(retention_bytes)) as wal,
        asyncio.TaskGroup() as tasks,
    ):
        say(f"tail {wal.tail}")
        tasks.create_task(delete(wal))
        for lane in range(3):
            tasks.create_task(produce(wal, f"{name}-{lane}", float(pause), int(size)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
