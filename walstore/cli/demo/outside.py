"""The consumer outside the writing process: it tails the log's files, across the kill and the restart."""

from __future__ import annotations

import threading
from pathlib import Path

from walstore.batches.batch import Batch
from walstore.cli.demo.checks import ReadTally
from walstore.cli.follower import DirectoryFollower
from walstore.errors import LogNotFoundError
from walstore.read.log_watch import LONGEST_POLL_SECONDS, SHORTEST_POLL_SECONDS


class OutsideConsumer:
    """Follows a log directory on a thread of its own and keeps a ledger of all it reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ending = threading.Event()
        self.ledger = ReadTally()

    def run(self) -> None:
        """Follow until :meth:`end` was called and nothing is left to read. Blocking; one thread."""
        follower = DirectoryFollower(self._path, 1)
        pause = SHORTEST_POLL_SECONDS
        while True:
            is_ending = self._ending.is_set()
            found = self._poll(follower)
            for batch in found:
                self.ledger.take(batch)
            if found:
                pause = SHORTEST_POLL_SECONDS
            elif is_ending:
                return
            else:
                self._ending.wait(pause)
                pause = min(2 * pause, LONGEST_POLL_SECONDS)

    def end(self) -> None:
        """Let :meth:`run` read what is left, then return."""
        self._ending.set()

    def _poll(self, follower: DirectoryFollower) -> list[Batch]:
        try:
            return follower.poll()
        except LogNotFoundError:  # the writing process is still starting
            return []
