"""StreamCursors: the cursors of a stream, one in each log by the same name, and where it starts. Blocking.

A cursor retains all records from its position on. It is created once, at the start, and moved forward by
compare-and-swap; never back. One query uses it.

Spark asks twice for the start, asks again if it dies before the first micro-batch is done, and remembers no
answer. A start that may resolve differently the next time is therefore resolved once and held by a cursor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from uploader.runtime.task_groups import gather_all
from walstore.spark.blocking import SyncRunner
from walstore.spark.bounds import Bound, Edge, LogName, Offsets, show
from walstore.spark.options import StreamOptions
from walstore.spark.plan import resolve
from walstore.spark.streaming.log_cursor import LogCursor
from walstore.spark.streaming.poller import PolledLog

logger = logging.getLogger("walstore.spark")

_AT_ONCE: Final = 10
"""Cursors moved concurrently."""


class StreamCursors:
    """The cursors of one name in several logs. Blocking."""

    def __init__(self, name: str, runner: SyncRunner) -> None:
        """Use the cursors called ``name``; the logs are open on ``runner``."""
        self.name = name
        self.positions: dict[LogName, int] = {}
        """Positions of the cursors that this object created or moved."""
        self._runner = runner
        self._cursors: dict[LogName, LogCursor] = {}

    def load(self, name: LogName, log: PolledLog) -> int | None:
        """Return the position of a log's cursor, or None if it does not exist."""
        return self._runner.run(self._cursor(name, log).load())

    def create(self, name: LogName, log: PolledLog, position: int) -> int:
        """Create a log's cursor at ``position`` if it does not exist; return its position."""
        return self._runner.run(self._cursor(name, log).create(position))

    def advance(
        self, logs: Mapping[LogName, PolledLog], offsets: Offsets
    ) -> dict[LogName, Exception]:
        """Move the cursors forward, or create them there; cursors beyond that stay.

        Every cursor is tried, also if one fails; returns the errors. The next call tries those again.
        """
        due: list[tuple[LogName, LogCursor]] = []
        failed: dict[LogName, Exception] = {}
        for name, position in offsets.items():
            if name in logs and position > self.positions.get(name, 0):
                try:
                    due.append((name, self._cursor(name, logs[name])))
                except Exception as error:  # noqa: BLE001 - the caller says what it is
                    failed[name] = error

        async def one(name: LogName, cursor: LogCursor) -> None:
            try:
                async with gate:
                    await cursor.advance(offsets[name])
            except Exception as error:  # noqa: BLE001 - the caller says what it is
                failed[name] = error
            else:
                self.positions[name] = offsets[name]

        gate = asyncio.Semaphore(_AT_ONCE)
        self._runner.run(gather_all(one(*each) for each in due))
        return failed

    def forget(self, name: LogName) -> None:
        """Open a log's cursor again on its next use."""
        cursor = self._cursors.pop(name, None)
        if cursor is not None:
            self._runner.run(cursor.aclose())

    def close(self) -> None:
        """Release what was opened for the cursors; they stay."""
        for name in list(self._cursors):
            self.forget(name)

    def _cursor(self, name: LogName, log: PolledLog) -> LogCursor:
        if name not in self._cursors:
            self._cursors[name] = log.cursor(self.name)
        return self._cursors[name]


def initial_offsets(
    logs: Mapping[LogName, PolledLog], options: StreamOptions, cursors: StreamCursors | None
) -> dict[LogName, int]:
    """Return where each log starts without a checkpoint: at its cursor, or else at the options' bound.

    Creates the cursors that do not exist. Raises OffsetTrimmedError or OffsetNotWrittenError for offsets that
    are not available, InvalidSettingsError for bounds that do not fit the logs, and the cursors' errors.
    """
    held = {name: cursors and cursors.load(name, log) for name, log in logs.items()}
    if None in held.values():
        options.starting.check(logs.keys())
    found = {}
    for name, log in logs.items():
        start = _resolve(name, log, held[name] or options.starting.of(*name), options)
        if cursors is not None and held[name] is None:
            start = cursors.create(name, log, start)
        found[name] = start
    return found


def _resolve(name: LogName, log: PolledLog, bound: Bound, options: StreamOptions) -> int:
    with log.plan() as planned:
        interval = resolve(
            planned,
            bound,
            Edge.LATEST,
            needs_record=options.needs_record,
            fail_on_data_loss=options.fail_on_data_loss,
        )
    if interval.lost:
        logger.warning("%s: %s", show(name), interval.lost)
    return interval.start
