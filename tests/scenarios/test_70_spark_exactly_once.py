"""A stream lands each record once in a table, however often and wherever it is killed.

The child is a whole Spark: driver, JVM, planners and workers, with two streams, one from a log in a store and
one from a log in a directory. Each tells what it does through a pipe, while the test appends; it stands
still at a call of the source that its seed chose, or goes on while it is killed. One session has both
streams, since it takes longer to start than they take to their stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TextIO

import pytest

from tests.effort import SEEDS_EACH, first_seed, some
from tests.scenarios.stream_source import PIPES, STOPS
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
ROUNDS = some(10, least=2)
MOST_LINES = 60
"""After so many lines it is killed wherever it is."""
SEEDS = {"store": 0, "directory": 1}


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

    def __init__(self, locations: list[str], place: Path) -> None:
        self._locations = locations
        self._place = place
        self._errors = place / "errors"
        self._runs = 0

    async def land(
        self, producers: Mapping[str, Producer | None], stops: Mapping[str, str]
    ) -> dict[str, set[str]]:
        """Run until both stopped or told much, appending meanwhile; kill them; return what they told."""
        going, over = set(SEEDS), asyncio.Event()
        seen: dict[str, set[str]] = {kind: set() for kind in SEEDS}

        async def follow(kind: str) -> None:
            for number in count(1):
                line = (await asyncio.to_thread(pipes[kind].readline)).strip()
                if line == "died":
                    assert over.is_set(), self._errors.read_text()
                    return
                seen[kind].add(line)
                if line == "stopped" or number == MOST_LINES:
                    going.discard(kind)
                if not going:
                    over.set()
                if (producer := producers[kind]) is not None:
                    await producer.append()

        with contextlib.ExitStack() as stack:
            where, pipes = self._make_pipes(stack)
            child = await asyncio.to_thread(self._start, "land", where, stops, subprocess.DEVNULL)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.to_thread(_tell_death, child, where))
                    for kind in SEEDS:
                        group.create_task(follow(kind))
                    await over.wait()
                    os.killpg(child.pid, signal.SIGKILL)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        return seen

    def finish(self) -> dict[str, list[tuple[int, bytes]]]:
        """Let it land the rest; return the rows of each table."""
        with contextlib.ExitStack() as stack:
            where, _ = self._make_pipes(stack)
            child = self._start("finish", where, {}, subprocess.PIPE)
            try:
                output, _ = child.communicate(timeout=400)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        assert child.returncode == 0, self._errors.read_text()
        rows: dict[str, list[tuple[int, bytes]]] = {kind: [] for kind in SEEDS}
        for line in output.decode().splitlines():
            kind, offset, value = line.split()
            rows[kind].append((int(offset), value.encode()))
        return {kind: sorted(found) for kind, found in rows.items()}

    def _make_pipes(self, stack: contextlib.ExitStack) -> tuple[Path, dict[str, TextIO]]:
        """Make pipes for a run: a process of the child before may have closed its own not yet."""
        self._runs += 1
        where = self._place / f"pipes{self._runs}"
        where.mkdir()
        pipes = {}
        for kind in SEEDS:
            os.mkfifo(where / kind)
            # Open for writing, too, so that it has no end when a child dies.
            pipe = os.fdopen(os.open(where / kind, os.O_RDWR))
            pipes[kind] = stack.enter_context(pipe)
        return where, pipes

    def _start(
        self, mode: str, pipes: Path, stops: Mapping[str, str], stdout: int
    ) -> subprocess.Popen[bytes]:
        options = ["cursorName=etl", "startingOffsets=latest"]
        if mode == "land":
            options += [
                "pollIntervalMs=1",
                *(f"{name}={value}" for name, value in limit(50).items()),
            ]
        with self._errors.open("wb") as errors:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.scenarios.stream_child", mode),
                    *(str(self._place), *self._locations, *options),
                ],
                env=os.environ
                | {
                    PIPES: str(pipes),
                    STOPS: " ".join(f"{kind}:{call}" for kind, call in stops.items()),
                },
                cwd=Path(__file__).parents[2],
                stdout=stdout,
                stderr=errors,
                start_new_session=True,
            )


def _tell_death(child: subprocess.Popen[bytes], pipes: Path) -> None:
    """Say in the pipes that a child died, since nothing else would."""
    child.wait()
    for kind in SEEDS:
        with (pipes / kind).open("w") as pipe:
            pipe.write("died\n")


def chosen(chance: random.Random, seed: int, turn: int) -> str:
    """Return where to stop: each stage has its turn over the seeds; in the last turn something was read."""
    stages = list(STAGES)
    stage = stages[(first_seed("a stage") // SEEDS_EACH + seed * ROUNDS + turn) % len(stages)]
    if turn == ROUNDS - 1:
        stage = chance.choice(stages[stages.index("read") + 1 :])
    low, high = STAGES[stage]
    return f"{stage}:{chance.randint(low, high)}"


def test_each_record_is_in_the_table_once(tmp_path):
    store, directory = f"file://{tmp_path}/store/orders", str(tmp_path / "log")
    chances = {
        kind: random.Random(seed + first_seed("a Spark source")) for kind, seed in SEEDS.items()
    }
    children = Children([store, directory], tmp_path)
    seen: dict[str, set[str]] = {kind: set() for kind in SEEDS}

    async def run() -> dict[str, range]:
        async with CloudWriter.open(store) as stored, Wal.open(directory) as local:
            producers = {
                "store": Producer(stored, chances["store"]),
                "directory": Producer(local, chances["directory"]),
            }
            for producer in producers.values():
                await producer.append()
            first = {kind: producer.written + 1 for kind, producer in producers.items()}
            # Killed when they have resolved "latest" and read nothing; until then nothing is appended.
            start = "latest:1" if HAS_LIMITS else "partitions:1"
            rounds = [(dict.fromkeys(SEEDS), dict.fromkeys(SEEDS, start))]
            for turn in range(ROUNDS):
                stops = {kind: chosen(chances[kind], seed, turn) for kind, seed in SEEDS.items()}
                rounds.append((producers, stops))
            for appending, stops in rounds:
                for kind, told in (await children.land(appending, stops)).items():
                    seen[kind] |= told
            for kind, producer in producers.items():
                while producer.written < first[kind] + 50:
                    await producer.append()
            return {
                kind: range(first[kind], producer.written + 1)
                for kind, producer in producers.items()
            }

    expected = asyncio.run(run())
    rows = children.finish()
    for kind in SEEDS:
        assert {"initial", "latest", "partitions", "read", "stopped"} <= seen[kind]
        assert rows[kind] == [(offset, b"%d" % offset) for offset in expected[kind]]
        assert len(rows[kind]) > 50
