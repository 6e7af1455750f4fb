"""A stream lands each record once in a table, however often and wherever it is killed.

The child is a whole Spark: driver, JVM, planner and workers. It tells what it does through a pipe, while the
test appends; it stands still at a call of the source that the seed chose, or goes on while it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from tests.scenarios.stream_source import PIPE, STOP_AT
from tests.walstore.spark.versions import limit
from uploader import CloudWriter
from walstore import Wal
from walstore.spark.features import HAS_LIMITS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.kill,
    pytest.mark.timeout(1200),
]

STAGES = {
    "initial": (1, 2),
    "latest": (1, 40),
    "partitions": (1, 4),
    "read": (1, 3),
    "reading": (1, 3),
    "commit": (1, 3),
    "committed": (1, 3),
    "nowhere": (1, 1),
}
"""Calls at which it may stop, and up to which number."""
ROUNDS = 4
MOST_LINES = 60
"""After so many lines it is killed wherever it is."""


class Producer:
    """Appends values that say which offset they should get."""

    def __init__(self, log: Wal | CloudWriter, chance: random.Random) -> None:
        self._log = log
        self._chance = chance
        self.written = 0

    async def append(self) -> None:
        count = self._chance.randrange(1, 10)
        values = [b"%d" % (self.written + at + 1) for at in range(count)]
        span = await self._log.append_many(values)
        assert span.start == self.written + 1
        self.written += count


class Children:
    """Runs the program, one after the other."""

    def __init__(self, location: str, place: Path, options: list[str]) -> None:
        self._arguments = [location, str(place), *options]
        self._place = place
        self._errors = place / "errors"
        self._runs = 0
        self._pipe = place

    async def land(self, producer: Producer | None, stop_at: str) -> list[str]:
        """Run until it stops, or has told much, appending meanwhile; kill it; return what it told."""
        lines: list[str] = []
        child, pipe = await asyncio.to_thread(self._start, "land", stop_at, subprocess.DEVNULL)
        with pipe:
            dying = asyncio.create_task(asyncio.to_thread(_tell_death, child, self._pipe))
            try:
                while len(lines) < MOST_LINES and lines[-1:] != ["stopped"]:
                    line = await asyncio.to_thread(pipe.readline)
                    lines.append(line.strip())
                    assert lines[-1] != "died", self._errors.read_text()
                    if producer is not None:
                        await producer.append()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                await dying
        return lines

    def finish(self) -> list[tuple[int, bytes]]:
        """Let it land the rest; return the rows of the table."""
        child, pipe = self._start("finish", "nowhere:1", subprocess.PIPE)
        with pipe:
            try:
                output, _ = child.communicate(timeout=400)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        assert child.returncode == 0, self._errors.read_text()
        rows = [line.split() for line in output.decode().splitlines()]
        return sorted((int(offset), value.encode()) for offset, value in rows)

    def _start(
        self, mode: str, stop_at: str, stdout: int
    ) -> tuple[subprocess.Popen[bytes], TextIO]:
        options = []
        if mode == "land":
            options = [
                "pollIntervalMs=1",
                *(f"{name}={value}" for name, value in limit(50).items()),
            ]
        # Its own pipe: a process of the child before may have closed that one's not yet.
        self._runs += 1
        self._pipe = self._place / f"pipe{self._runs}"
        os.mkfifo(self._pipe)
        # Open for writing, too, so that it has no end when a child dies.
        pipe = os.fdopen(os.open(self._pipe, os.O_RDWR))
        with self._errors.open("wb") as errors:
            child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.scenarios.stream_child", mode),
                    *(*self._arguments, *options),
                ],
                env=os.environ | {PIPE: str(self._pipe), STOP_AT: stop_at},
                cwd=Path(__file__).parents[2],
                stdout=stdout,
                stderr=errors,
                start_new_session=True,
            )
        return child, pipe


def _tell_death(child: subprocess.Popen[bytes], path: Path) -> None:
    """Say in the pipe that a child died, since nothing else would."""
    child.wait()
    with path.open("w") as pipe:
        pipe.write("died\n")


def chosen(chance: random.Random, seed: int, turn: int) -> str:
    """Return where to stop; every stage has its turn over the seeds."""
    stage = list(STAGES)[(seed * ROUNDS + turn) % len(STAGES)]
    low, high = STAGES[stage]
    return f"{stage}:{chance.randint(low, high)}"


@pytest.mark.parametrize(("kind", "seed"), [("store", 0), ("directory", 1)])
def test_each_record_is_in_the_table_once(tmp_path, kind, seed):
    chance = random.Random(seed)
    store = f"file://{tmp_path}/store/orders"
    location = store if kind == "store" else str(tmp_path / "log")
    children = Children(location, tmp_path, ["cursorName=etl", "startingOffsets=latest"])

    async def run() -> tuple[int, int, set[str]]:
        opening = CloudWriter.open(store) if kind == "store" else Wal.open(location)
        async with opening as log:
            producer = Producer(log, chance)
            await producer.append()
            first = producer.written + 1
            # Killed when it has resolved "latest" and read nothing; until then nothing is appended.
            seen = set(await children.land(None, "latest:1" if HAS_LIMITS else "partitions:1"))
            for turn in range(ROUNDS):
                seen |= set(await children.land(producer, chosen(chance, seed, turn)))
            return first, producer.written, seen

    first, written, seen = asyncio.run(run())
    assert {"initial", "latest", "partitions", "read", "stopped"} <= seen
    rows = children.finish()
    assert rows == [(offset, b"%d" % offset) for offset in range(first, written + 1)]
    assert len(rows) > 50
