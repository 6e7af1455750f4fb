"""StreamCursors: the cursors that a stream leaves in its logs, one in each, all of one name. Blocking."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from walstore.spark.bounds import LogName
from walstore.spark.streaming.cursors import StreamCursor
from walstore.spark.streaming.followed import Followed
from walstore.spark.streaming.offsets import Offsets, show
from walstore.spark.sync_runner import Loop

logger = logging.getLogger("walstore.spark")


class StreamCursors:
    """Cursors of the logs of one stream."""

    def __init__(self, name: str, loop: Loop) -> None:
        """Use the cursors called ``name``; ``loop`` is where the logs are open."""
        self._name = name
        self._loop = loop
        self._cursors: dict[LogName, StreamCursor] = {}
        self._known: dict[LogName, int] = {}

    def positions(self, logs: Mapping[LogName, Followed]) -> dict[LogName, int]:
        """Return where the cursors stand that there are."""
        found = {name: self._loop.run(self._cursor(name, log).load()) for name, log in logs.items()}
        return {name: position for name, position in found.items() if position is not None}

    def begin(self, name: LogName, log: Followed, position: int) -> int:
        """Make a log's cursor at ``position`` unless there is one; return where it stands."""
        return self._loop.run(self._cursor(name, log).create(position))

    def advance(self, logs: Mapping[LogName, Followed], offsets: Offsets) -> None:
        """Move the cursors forward. What fails is logged and left for the next time."""
        for name, position in offsets.items():
            if name not in logs or position <= self._known.get(name, 0):
                continue
            try:
                self._loop.run(self._cursor(name, logs[name]).advance(position))
            except Exception as error:  # noqa: BLE001 - the query goes on without its cursor
                logger.warning(
                    "cursor %s of %s was not moved to %d: %s",
                    self._name, show(name), position, error,
                )  # fmt: skip
            else:
                self._known[name] = position

    def close(self) -> None:
        """Release what was opened for the cursors."""
        while self._cursors:
            _, cursor = self._cursors.popitem()
            self._loop.run(cursor.aclose())

    def _cursor(self, name: LogName, log: Followed) -> StreamCursor:
        if name not in self._cursors:
            self._cursors[name] = log.cursor(self._name)
        return self._cursors[name]
