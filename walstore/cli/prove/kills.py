"""Kills: writers of the same logs, killed or paused one after another, and their logs checked."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

from walstore.cli.prove.forks import ForkedChild, Forks, pause, resume
from walstore.cli.prove.promises import Promises, require
from walstore.cli.prove.writers import ENDLESS, Scene, check, follow, intrude, write

WRITERS: Final = 20
"""Writers of a round."""
_CHECK_SECONDS: Final = 60.0
_OPEN_SECONDS: Final = 10.0


class KillRound:
    """Writers of the logs in one directory. Never opens a log itself."""

    def __init__(self, scene: Scene, counts: Counter[str], *, has_pauses: bool = False) -> None:
        """Make a round that adds what it does to ``counts``. With pauses, each writer is paused before it
        is killed, and a second one is refused meanwhile."""
        self._scene = scene
        self._counts = counts
        self._has_pauses = has_pauses
        self._chance = random.Random(scene.seed)
        self._promises = [Promises() for _ in range(scene.logs)]
        self._seen: list[dict[int, tuple[int, int]]] = [{} for _ in range(scene.logs)]
        self._acknowledged: set[tuple[int, int]] = set()
        self._follower: ForkedChild | None = None
        self._forks = Forks(self._take)

    def run(self, writers: int = WRITERS) -> None:
        """Kill that many writers. BrokenPromiseError if a log does not keep what was promised."""
        try:
            for life in range(writers):
                self._kill_one(life)
                if life == writers - 1 or self._chance.random() < 0.6:
                    self._check()
                self._renew_follower()
        finally:
            self._forks.end_all()

    def _kill_one(self, life: int) -> None:
        chance, listen = self._chance, self._forks.listen
        how = chance.choices(("working", "opening", "closing"), (5, 3, 2))[0]
        steps = chance.randint(1, 12) if how == "closing" else ENDLESS
        child = self._forks.start(
            lambda pipe: write(self._scene, self._promises, pipe, life + 1, steps)
        )
        if how == "opening":
            listen(child, chance.uniform(0, 0.012))
        else:
            listen(child, _OPEN_SECONDS, until="closing" if how == "closing" else "opened")
            listen(child, chance.uniform(0, 0.006 if how == "closing" else 0.12))
        if self._has_pauses and how == "working":
            self._pause(child)
        self._counts["kills"] += 1
        self._counts[f"kills_{how}"] += 1
        self._forks.end(child)

    def _pause(self, child: ForkedChild) -> None:
        """Pause a writer, let another one try to open its logs, and let it continue now and then."""
        pause(child)
        second = self._forks.start(lambda pipe: intrude(self._scene, pipe))
        refused = self._forks.listen(second, _CHECK_SECONDS, until="locked")
        self._forks.end(second)
        require(refused, "a second writer was not refused while the first one was paused")
        self._counts["pauses"] += 1
        self._counts["second_writers_refused"] += 1
        if self._chance.random() < 0.8:
            resume(child)
            self._forks.listen(child, self._chance.uniform(0, 0.06))

    def _check(self) -> None:
        checker = self._forks.start(lambda pipe: check(self._scene, self._promises, pipe))
        checked = self._forks.listen(checker, _CHECK_SECONDS, until="checked")
        self._forks.end(checker)
        require(checked, "the log could not be checked in time")
        self._counts["checks"] += 1
        for promises, seen in zip(self._promises, self._seen, strict=True):
            for offset, what in seen.items():
                known = promises.at.get(offset)
                require(
                    known == what or offset < promises.head,
                    f"a follower saw {what} at offset {offset}, the log has {known}",
                )

    def _renew_follower(self) -> None:
        if self._follower is not None and (self._follower.is_done or self._chance.random() < 0.15):
            self._forks.end(self._follower)
            self._follower = None
        log = self._chance.randrange(self._scene.logs)
        if self._follower is None and any(self._scene.path(log).glob("*.wal")):
            self._follower = self._forks.start(lambda pipe: follow(self._scene, log, pipe))

    def _take(self, message: list[Any]) -> None:
        log, (kind, *what) = message
        if kind == "saw":
            offset, named = what
            require(named is not None, f"a follower saw garbage at offset {offset}")
            known = self._seen[log].setdefault(offset, tuple(named))
            require(known == tuple(named), f"followers saw {known} and {named} at {offset}")
            self._counts["followed"] += 1
        elif kind == "checked":
            self._counts["checked"] += what[0]
        elif kind not in ("closing", "locked"):
            self._counts["appended"] += kind == "op"
            if (
                kind == "ok" and (log, what[0]) not in self._acknowledged
            ):  # some are asked for twice
                self._acknowledged.add((log, what[0]))
                self._counts["acknowledged"] += 1
            self._promises[log].hear([kind, *what])
