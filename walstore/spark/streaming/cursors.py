"""The cursors of a stream, one in each log with the same name, and where the stream starts. Blocking.

A cursor retains all records from its position on. It is created once, at the start, and moved forward by
compare-and-swap; never back. One query uses it.

Spark asks twice for the start, asks again if it dies before the first micro-batch is done, and remembers no
answer. A start that may resolve differently the next time is therefore resolved once and held by a cursor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from walstore.spark.blocking import SyncRunner
from walstore.spark.bounds import Bound, Edge, LogName, Offsets, show
from walstore.spark.options import StreamOptions
from walstore.spark.plan import resolve
from walstore.spark.planned_log import StoreLog
from walstore.spark.streaming.log_cursors import DirectoryCursor, StoreCursor, StreamCursor
from walstore.spark.streaming.poller import PolledLog


def open_cursor(log: PolledLog, name: str) -> StreamCursor:
    """Return the cursor ``name`` of a log that was refreshed; makes no request yet."""
    if isinstance(log, StoreLog):
        if log.stored is None:
            return StoreCursor.without_log(log.open_store(), name)
        return StoreCursor(log.stored.cursors, name)
    with log.plan() as planned:
        return DirectoryCursor(log.wal, planned.tier_url, name)


logger = logging.getLogger("walstore.spark")


class StreamCursors:
    """Cursors of the logs of one stream."""

    def __init__(self, name: str, runner: SyncRunner) -> None:
        """Use the cursors called ``name``; the logs are open on ``runner``."""
        self._name = name
        self._runner = runner
        self._cursors: dict[LogName, StreamCursor] = {}
        self._known: dict[LogName, int] = {}

    def positions(self, logs: Mapping[LogName, PolledLog]) -> dict[LogName, int]:
        """Return the positions of the cursors that exist."""
        found = {
            name: self._runner.run(self._cursor(name, log).load()) for name, log in logs.items()
        }
        return {name: position for name, position in found.items() if position is not None}

    def begin(self, name: LogName, log: PolledLog, position: int) -> int:
        """Create a log's cursor at ``position`` if it does not exist; return its position."""
        return self._runner.run(self._cursor(name, log).create(position))

    def advance(self, logs: Mapping[LogName, PolledLog], offsets: Offsets) -> None:
        """Move the cursors forward. A failure is logged; the next call tries again."""
        for name, position in offsets.items():
            if name not in logs or position <= self._known.get(name, 0):
                continue
            try:
                self._runner.run(self._cursor(name, logs[name]).advance(position))
            except Exception as error:  # noqa: BLE001 - the query continues without its cursor
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
            self._runner.run(cursor.aclose())

    def _cursor(self, name: LogName, log: PolledLog) -> StreamCursor:
        if name not in self._cursors:
            self._cursors[name] = open_cursor(log, self._name)
        return self._cursors[name]


def initial_offsets(
    logs: Mapping[LogName, PolledLog], options: StreamOptions, cursors: StreamCursors | None
) -> dict[LogName, int]:
    """Return where each log starts without a checkpoint: at its cursor, or else at the options' bound.

    Creates the cursors that do not exist. Raises OffsetTrimmedError or OffsetNotWrittenError for offsets that
    are not available, InvalidSettingsError for bounds that do not fit the logs, and the cursors' errors.
    """
    held = {} if cursors is None else cursors.positions(logs)
    if held.keys() != logs.keys():
        options.starting.check(logs.keys())
    found = {}
    for name, log in logs.items():
        bound = held.get(name) or options.starting.of(*name)
        start = _resolve(name, log, bound, options)
        if cursors is not None and name not in held:
            start = cursors.begin(name, log, start)
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
