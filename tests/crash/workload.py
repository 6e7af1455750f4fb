"""What a recorded program does: a life, and what a supervisor does after a kill. Says each step."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from walstore import Wal
from walstore.cli.prove.workload import Workload, report_shown, settings_of


async def forge() -> bytes:
    """Return a frame of another log that is far ahead, at every alignment."""
    with tempfile.TemporaryDirectory() as scratch:
        async with Wal.open(Path(scratch, "other")) as wal:
            await wal.append_many([b""] * 10_000)
            await wal.append(b"forged")
            (segment,) = wal.path.glob("*.wal")
            data = await asyncio.to_thread(segment.read_bytes)
    frame = data[data.rindex(b"WBF1") : data.rindex(b"WEnd") + 4]
    assert len(frame) % 8 == 0
    return b"".join(frame + b"." for _ in range(8))


async def live(directory: Path, say: Callable[[list], None], seed: int, steps: int) -> None:
    """Open, fill and close a log three times; odd seeds have values that look like frames."""
    forged = await forge() if seed % 2 else b""
    for session in range(3):
        async with Wal.open(directory, settings=settings_of(seed)) as wal:
            if session:
                await report_shown(wal, say)
            work = Workload(
                wal,
                say,
                seed * 10 + session,
                1 + session * 100_000,
                forged,
                is_trimmed_often=seed % 2 == 1,
            )
            await work.run(steps)
            limit = wal.tail
        say(["durable", limit])


async def live_again(directory: Path, say: Callable[[list], None], seed: int) -> None:
    """Do what a supervisor does after a kill: open the log, show it, go on for a little, close it."""
    async with Wal.open(directory, settings=settings_of(seed)) as wal:
        await report_shown(wal, say)
        work = Workload(wal, say, seed, 900_000)
        await work.append_group()
        await work.run(2)
        limit = wal.tail
    say(["durable", limit])


def reporter(descriptor: int, cell: Callable[[], bytes | None] = lambda: None) -> Callable:
    """Return what writes a report; what the durable cell holds comes before it if that changed.

    Stores into mapped memory are no system calls, so a recorder of these learns of them in this way.
    """
    known: list[bytes | None] = [None]

    def say(report: list) -> None:
        now = cell()
        if now is not None and now != known[0]:
            known[0] = now
            os.write(descriptor, json.dumps(["cell", now.hex()]).encode() + b"\n")
        if report:
            os.write(descriptor, json.dumps(report).encode() + b"\n")

    return say
