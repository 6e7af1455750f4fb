"""Bucket: two writers at a time to one stored log, killed or paused again and again, and the log checked."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

from walstore.cli.prove.bucket_writers import BucketScene, check, write
from walstore.cli.prove.forks import ForkedChild, Forks, pause, resume
from walstore.cli.prove.promises import Promises, require

LIVES: Final = 4
"""How often the writers of a round are started."""
_WRITERS: Final = 2
_OPEN_SECONDS: Final = 20.0
_LONGEST_LIFE_SECONDS: Final = 0.5
_CHECK_SECONDS: Final = 240.0


class BucketRound:
    """The writers of one stored log. Never opens it itself."""

    def __init__(
        self, scene: BucketScene, counts: Counter[str], *, has_pauses: bool = False
    ) -> None:
        """Make a round that adds what it does to ``counts``."""
        self._scene, self._counts, self._has_pauses = scene, counts, has_pauses
        self._chance = random.Random(scene.seed)
        self._promises = Promises()
        self._forks = Forks(self._take)

    def run(self, lives: int = LIVES) -> None:
        """Start and kill two writers that often. BrokenPromiseError if the log breaks a promise."""
        try:
            for life in range(lives):
                self._live(life)
                if life % 2 or life == lives - 1:
                    self._check()
        finally:
            self._forks.end_all()

    def _live(self, life: int) -> None:
        chance, forks = self._chance, self._forks
        writers = [self._start(life * _WRITERS + at + 1) for at in range(_WRITERS)]
        if chance.random() < 0.8:
            forks.listen(writers[0], _OPEN_SECONDS, until="writing")
        for writer in writers:
            forks.listen(writer, chance.uniform(0, _LONGEST_LIFE_SECONDS))
            if self._has_pauses and not writer.is_done:
                pause(writer)
                forks.listen(writers[-1], chance.uniform(0, _LONGEST_LIFE_SECONDS))
                resume(writer)
                self._counts["pauses"] += 1
        for writer in writers:
            forks.listen(writer, chance.uniform(0, 0.1))
            self._counts["kills"] += not writer.is_done
            forks.end(writer)

    def _start(self, writer: int) -> ForkedChild:
        return self._forks.start(lambda pipe: write(self._scene, pipe, writer))

    def _check(self) -> None:
        if not self._promises.ops:
            return  # no writer got as far as making the log
        checker = self._forks.start(lambda pipe: check(self._scene, self._promises, pipe))
        checked = self._forks.listen(checker, _CHECK_SECONDS, until="checked")
        self._forks.end(checker)
        require(checked, "the log could not be checked in time")
        self._counts["checks"] += 1

    def _take(self, message: list[Any]) -> None:
        _, (kind, *what) = message
        if kind == "fault":
            self._counts[what[0]] += 1
        elif kind == "checked":
            self._counts["checked"] += what[0]
        elif kind == "refused_for_now":
            self._counts["refused_for_now"] += 1
        elif kind != "writing":
            self._counts["appended"] += kind == "op"
            self._counts["acknowledged"] += kind == "ok"
            self._counts["refused"] += kind == "refused"
            self._promises.hear([kind, *what])
