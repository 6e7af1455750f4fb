"""One story: writers of the same logs, killed one after another, and judged. Never opens a log itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.crash.promises import BrokenPromiseError, Promises, require
from tests.storm.child import ENDLESS, Scene, follow, judge, write

ROUNDS = 20
JUDGE_SECONDS = 60
_CHUNK = 1 << 20


@dataclass(slots=True)
class Child:
    """A forked process, and what it has said."""

    pid: int
    pipe: int
    errors: int
    heard: bytes = b""
    is_done: bool = False

    def lines(self) -> list[list]:
        """Return the whole lines that came since the last call."""
        whole, _, self.heard = self.heard.rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]


@dataclass(slots=True)
class Counts:
    """What a story was made of."""

    kills: int = 0
    while_opening: int = 0
    while_closing: int = 0
    judged: int = 0
    acknowledged: int = 0
    seen: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Take over those of another story."""
        for name in ("kills", "while_opening", "while_closing", "judged", "acknowledged", "seen"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures += other.failures


class Story:
    """The lives and deaths of the writers of one directory."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._chance = random.Random(scene.seed)
        self._promises = [Promises() for _ in range(scene.logs)]
        self._seen: list[dict[int, tuple[int, int]]] = [{} for _ in range(scene.logs)]
        self._follower: Child | None = None
        self._children: list[Child] = []
        self.counts = Counts()

    def run(self, rounds: int = ROUNDS) -> Counts:
        """Kill that many writers."""
        try:
            for round_ in range(rounds):
                self._kill_one(round_)
                if round_ == rounds - 1 or self._chance.random() < 0.6:
                    self._judge()
                self._renew_follower()
        finally:
            for child in list(self._children):
                self._end(child)
        return self.counts

    # -- killing -----------------------------------------------------------------------------

    def _kill_one(self, round_: int) -> None:
        chance = self._chance
        how = chance.choices(("working", "opening", "closing"), (5, 3, 2))[0]
        steps = chance.randint(1, 12) if how == "closing" else ENDLESS
        child = self._fork(lambda pipe: write(self._scene, self._promises, pipe, round_ + 1, steps))
        self.counts.kills += 1
        if how == "opening":
            self.counts.while_opening += 1
            self._listen(child, chance.uniform(0, 0.012))
        else:
            waits_for = "closing" if how == "closing" else "opened"
            self._listen(child, 10, until=waits_for)
            self.counts.while_closing += how == "closing"
            self._listen(child, chance.uniform(0, 0.006 if how == "closing" else 0.12))
        self._end(child)

    def _judge(self) -> None:
        child = self._fork(lambda pipe: judge(self._scene, self._promises, pipe))
        judged = self._listen(child, JUDGE_SECONDS, until="judged")
        self._end(child)
        require(judged, "the judge was not done in time")
        self.counts.judged += 1
        for promises, seen in zip(self._promises, self._seen, strict=True):
            for offset, what in seen.items():
                known = promises.at.get(offset)
                require(
                    known == what or offset < promises.head,
                    f"a follower saw {what} at offset {offset}, the log has {known}",
                )

    def _renew_follower(self) -> None:
        if self._follower is not None and (self._follower.is_done or self._chance.random() < 0.15):
            self._end(self._follower)
            self._follower = None
        log = self._chance.randrange(self._scene.logs)
        if self._follower is None and any(self._scene.path(log).glob("*.wal")):
            self._follower = self._fork(lambda pipe: follow(self._scene, log, pipe))

    # -- children ----------------------------------------------------------------------------

    def _fork(self, main: Callable[[int], Coroutine[Any, Any, None]]) -> Child:
        pipe, out = os.pipe()
        errors, error_out = os.pipe()
        pid = os.fork()
        if not pid:
            _live(main, out, error_out)
        os.close(out)
        os.close(error_out)
        for descriptor in (pipe, errors):
            os.set_blocking(descriptor, False)
        child = Child(pid, pipe, errors)
        self._children.append(child)
        return child

    def _listen(self, child: Child, seconds: float, until: str | None = None) -> bool:
        """Hear everybody for some time, or until one report of a child; return whether it came."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            pipes = {each.pipe: each for each in self._children if not each.is_done}
            ready, _, _ = select.select(list(pipes), [], [], max(0, left))
            came = False
            for pipe in ready:
                came |= self._hear(pipes[pipe], until if pipes[pipe] is child else None)
            if came or child.is_done:
                return came
            if left <= 0:
                return False

    def _hear(self, child: Child, until: str | None) -> bool:
        data = os.read(child.pipe, _CHUNK)
        if not data:
            child.is_done = True
            self._blame(child)
        child.heard += data
        came = False
        for log, report in child.lines():
            came |= report[0] == until
            self._note(log, report)
        return came

    def _note(self, log: int, report: list) -> None:
        kind = report[0]
        if kind == "saw":
            offset, *what = report[1:]
            known = self._seen[log].setdefault(offset, tuple(what))
            require(known == tuple(what), f"followers saw {known} and {what} at {offset}")
            self.counts.seen += 1
        elif kind not in ("closing", "judged"):
            self.counts.acknowledged += kind == "ok"
            self._promises[log].hear(report)

    def _blame(self, child: Child) -> None:
        """Raise what a child died of, if it was its own mistake."""
        error = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(child.errors, _CHUNK):
                error += piece
        if error:
            raise BrokenPromiseError(error.decode())

    def _end(self, child: Child) -> None:
        """Kill a child, and hear the rest of what it said."""
        self._children.remove(child)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        try:
            if not child.is_done:
                with contextlib.suppress(BlockingIOError):
                    while not child.is_done:
                        self._hear(child, None)
        finally:
            os.close(child.pipe)
            os.close(child.errors)


def _live(main: Callable[[int], Coroutine[Any, Any, None]], out: int, errors: int) -> None:
    """Run in the child, and never return into the parent's code."""
    code = 1
    try:
        asyncio.run(main(out))
        code = 0
    except BaseException:  # noqa: BLE001 - the parent judges it
        text = traceback.format_exc().encode()
        with contextlib.suppress(OSError):
            os.write(errors, text[-60_000:])
    finally:
        sys.stdout.flush()
        os._exit(code)
