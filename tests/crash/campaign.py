"""Tries the states of recorded lives, counts them, and keeps those that break a promise."""

from __future__ import annotations

import asyncio
import contextlib
import lzma
import re
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from tests.crash.disk import Disk
from tests.crash.recorder import Life
from tests.crash.states import State, States
from tests.crash.trial import materialise, try_state
from walstore.cli.prove.promises import Promises

COMMAND_LINE_EVERY = 100
_NAMES = re.compile(r"\d+|/[\w./-]+|'[^']*'|\[.*?\]")


@dataclass(slots=True)
class Failure:
    """One kind of broken promise: how often it was met, and the first state that showed it."""

    kind: str
    message: str
    count: int = 0
    in_order: int = 0
    """How many of these a file system with a journal of its metadata can leave, too."""
    command: str = ""

    def describe(self) -> str:
        """Return what to print: how often, what, and how to see it again."""
        return (
            f"{self.count} x {self.kind} ({self.in_order} with names in the order of a journal)\n"
            f"  {self.message}\n  {self.command}"
        )


@dataclass(slots=True)
class Tally:
    """What was tried."""

    lives: int = 0
    restarts: int = 0
    moments: int = 0
    made: int = 0
    distinct: int = 0
    tried: int = 0
    command_lines: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Take over what somebody else tried."""
        for name in ("lives", "restarts", "moments", "made", "distinct", "tried", "command_lines"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kind, failure in other.failures.items():
            known = self.failures.setdefault(kind, failure)
            if known is not failure:
                known.count += failure.count
                known.in_order += failure.in_order

    def describe(self, seconds: float) -> str:
        """Return the counts as a line."""
        return (
            f"{self.distinct} distinct crash states of {self.lives} lives and {self.restarts} "
            f"restarts after kill -9 ({self.moments} moments), {self.tried} times opened, read, "
            f"appended to, closed and opened again, {self.command_lines} also by the command line: "
            f"{sum(failure.count for failure in self.failures.values())} broke a promise; "
            f"{seconds:.0f} s"
        )


def save(life: Life, path: Path) -> None:
    """Write a life to a file."""
    packed = msgpack.packb([life.seed, life.begins, life.events])
    path.write_bytes(lzma.compress(packed, preset=9))


def load(path: Path) -> Life:
    """Read what :func:`save` wrote."""
    seed, begins, events = msgpack.unpackb(lzma.decompress(path.read_bytes()))
    return Life(seed, events, begins)


def states_of(life: Life, most: int) -> Iterator[tuple[int, int, State, Promises]]:
    """Yield moment, number, state and what had been promised by then."""
    disk, promises = Disk(), Promises()
    states = States(disk, life.seed)
    for moment, event in enumerate(life.events):
        if event[0] == "say":
            promises.hear(event[1])
            continue
        if moment >= life.begins and event[0] != "syncing":
            # Before the event: what was promised since the last one belongs to this disk.
            for number, state in enumerate(states.at(moment, most)):
                yield moment, number, state, promises
        disk.apply(event)
    for number, state in enumerate(states.at(len(life.events), most)):
        yield len(life.events), number, state, promises


def try_life(
    life: Life,
    tally: Tally,
    *,
    most: int,
    keep: Path | None,
    limit: int | None = None,
    moments: Container[int] | None = None,
) -> None:
    """Try the states of a life, identical ones once; of all moments, or of some."""
    tried: dict[bytes, int] = {}
    latest = -1
    with _loop() as loop, tempfile.TemporaryDirectory(dir=_memory()) as scratch:
        for moment, number, state, promises in states_of(life, most):
            if moments is not None and moment not in moments:
                continue
            if limit is not None and tally.tried >= limit:
                break
            tally.moments += moment != latest
            latest = moment
            tally.made += 1
            tally.distinct += state.digest not in tried
            if tried.get(state.digest) == promises.reports:
                continue
            tried[state.digest] = promises.reports
            tally.tried += 1
            with_command_line = tally.tried % COMMAND_LINE_EVERY == 0
            tally.command_lines += with_command_line
            error = try_state(
                loop,
                state.files,
                promises,
                life.seed,
                Path(scratch, "state"),
                lost_nothing=state.keeps_all,
                with_command_line=with_command_line,
            )
            if error is not None:
                _note(tally, life, (moment, number, most), state, error, keep)


def rebuild(path: Path, moment: int, number: int, most: int, into: Path) -> BaseException | None:
    """Make a state of a saved life again, in a directory that stays, and try a copy of it."""
    life = load(path)
    for at, which, state, promises in states_of(life, most):
        if (at, which) != (moment, number):
            continue
        materialise(state.files, into)
        with _loop() as loop, tempfile.TemporaryDirectory(dir=_memory()) as scratch:
            return try_state(
                loop,
                state.files,
                promises,
                life.seed,
                Path(scratch, "state"),
                lost_nothing=state.keeps_all,
                with_command_line=True,
            )
    raise SystemExit(f"{path} has no state {number} at {moment}")


def _note(
    tally: Tally,
    life: Life,
    place: tuple[int, int, int],
    state: State,
    error: BaseException,
    keep: Path | None,
) -> None:
    phase = "restart" if life.begins else "life"
    last = traceback.extract_tb(error.__traceback__)[-1]
    first = str(error).partition("\n")[0]
    kind = f"{phase}: {type(error).__name__}: {_NAMES.sub('…', first)[:150]}"
    failure = tally.failures.get(kind)
    if failure is None:
        failure = tally.failures[kind] = Failure(
            kind, f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        )
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            path = keep / f"{life.seed}-{life.begins}.life"
            save(life, path)
            into = keep / f"{life.seed}-{life.begins}-{place[0]}-{place[1]}"
            arguments = ["rebuild", path, *place, into]
            words = [sys.executable, "-m", "tests.crash", *map(str, arguments)]
            failure.command = shlex.join(words)
            materialise(state.files, into)
    failure.count += 1
    failure.in_order += state.in_order


@contextlib.contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _memory() -> Path | None:
    """Return a directory in memory, if there is one with room."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30:
        return memory
    return None
