"""The cursors of a sidecar: one in each log, from before it starts until after the last batch.

A cursor is created before the first batch is planned, so that nothing is collected in between, and moves only
to the end of committed batches. A cursor beyond that was moved by another program: records that did not land
may have been removed, so the sidecar refuses to start until a user has resolved it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from uploader import open_store
from walstore import InvalidSettingsError, OffsetTrimmedError
from walstore.offset_range import OffsetRange
from walstore.spark.blocking import SyncRunner
from walstore.spark.bounds import LogName, Offsets, show
from walstore.spark.logs import NamedLog
from walstore.spark.planned_log import StoreOpener
from walstore.spark.streaming.cursors import open_cursor
from walstore.spark.streaming.log_cursors import StreamCursor
from walstore.spark.streaming.poller import PolledLog, make_polled_log

_ATTEMPTS: Final = 10


class HeldLogs:
    """The logs of a sidecar, retained by cursors. Blocking; one thread at a time. Close it."""

    def __init__(self, cursor_name: str, *, open_store: StoreOpener = open_store) -> None:
        """Hold no log yet; the cursors will have that name. Tests of faults pass ``open_store``."""
        self._open_store = open_store
        self._name = cursor_name
        self._runner = SyncRunner()
        self._logs: dict[LogName, PolledLog] = {}
        self._cursors: dict[LogName, StreamCursor] = {}
        self._positions: dict[LogName, int] = {}
        # Partitions without records: they have no manifest yet, so there is nothing to retain.
        self._unmade: set[LogName] = set()

    @property
    def positions(self) -> Offsets:
        """Positions of the cursors that this object created or moved."""
        return dict(self._positions)

    @property
    def names(self) -> frozenset[LogName]:
        """The open logs."""
        return frozenset(self._logs)

    def open(self, logs: Iterable[NamedLog]) -> None:
        """Open logs that are not open yet; LogNotFoundError, CorruptionError, the store's errors."""
        for named in logs:
            name = (named.topic, named.partition)
            if name in self._logs:
                continue
            polled_log = make_polled_log(
                named, self._runner, use_tier=True, open_store=self._open_store
            )
            self._logs[name] = polled_log
            self._runner.run(polled_log.refresh())
            self._cursors[name] = open_cursor(polled_log, self._name)

    def begins(self) -> dict[LogName, int]:
        """Return where each log begins if nothing has landed; creates no cursor."""
        found = {name: self._runner.run(self._cursors[name].load()) for name in self._logs}
        return {name: self._head(name) if at is None else at for name, at in found.items()}

    def begin(self, landed: Offsets | None) -> dict[LogName, int]:
        """Create the missing cursors; return where each log begins.

        ``landed`` is the position of an earlier run in each log; None if no batch ever landed. A log begins
        there, or else at its cursor, or else at its head. Raises InvalidSettingsError if a cursor is beyond
        what has landed, or a log ends before that; OffsetTrimmedError if records were removed before they
        landed.
        """
        for name in self._logs:
            at = None if landed is None else landed.get(name)
            self._positions[name] = self._begin_one(name, at)
            if self._runner.run(self._cursors[name].load()) is None:
                self._unmade.add(name)
        return dict(self._positions)

    def advance(self, landed: Offsets) -> None:
        """Move the cursors to what has landed; cursors beyond that stay.

        Every cursor is tried, also if one fails. Then one of the errors is raised, and the next call moves
        the cursors that did not move.
        """
        due = {
            name: position
            for name, position in landed.items()
            if name in self._cursors and position > self._positions.get(name, 0)
        }
        for name in self._unmade & due.keys():
            self._runner.run(self._logs[name].refresh())
            self._cursors[name] = open_cursor(self._logs[name], self._name)
            self._unmade.discard(name)
        failures = self._runner.run(self._advance_all(due))
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Release connections; the cursors stay."""
        try:
            for cursor in self._cursors.values():
                self._runner.run(cursor.aclose())
            for log in self._logs.values():
                self._runner.run(log.aclose())
        finally:
            self._runner.close()

    # -- inside ------------------------------------------------------------------------------

    def _begin_one(self, name: LogName, landed: int | None) -> int:
        cursor = self._cursors[name]
        found = self._runner.run(cursor.load())
        if landed is None:
            return self._create_at_head(name) if found is None else self._check_kept(name, found)
        if found is not None and found > landed:
            raise InvalidSettingsError(
                f"cursor {self._name!r} of {show(name)} stands at {found}, and only what comes before "
                f"{landed} has landed: records in between may have been removed; if they still exist, "
                f"set the cursor back: walstore cursors … --set {self._name} {landed} --confirm"
            )
        log = self._logs[name]
        if landed > log.limit:
            raise InvalidSettingsError(
                f"what has landed of {show(name)} ends at {landed}, and the log ends before that, at"
                f" {log.limit}: it is another log than the one that was landed; name a new table"
            )
        if found is None:
            try:
                self._runner.run(cursor.create(landed))
            except OffsetTrimmedError as error:
                error.add_note(
                    f"cursor {self._name!r} of {show(name)} was removed, and records since that did not land"
                )
                raise
        else:
            self._runner.run(cursor.advance(landed))
        return landed

    def _check_kept(self, name: LogName, position: int) -> int:
        OffsetRange(self._head(name), self._logs[name].limit).check_head(
            position,
            f"what cursor {self._name!r} of {show(name)} asks for was removed from the log; delete the "
            "cursor to begin at the head",
        )
        return position

    def _create_at_head(self, name: LogName) -> int:
        """Create a cursor at the head, which a collection may move meanwhile."""
        head = self._head(name)
        for attempt in range(_ATTEMPTS):
            try:
                return self._runner.run(self._cursors[name].create(head))
            except OffsetTrimmedError as error:
                if attempt == _ATTEMPTS - 1 or error.head <= head:
                    raise
                head = error.head
        raise AssertionError("unreachable")

    def _head(self, name: LogName) -> int:
        with self._logs[name].plan() as planned:
            return planned.head

    async def _advance_all(self, due: Mapping[LogName, int]) -> list[Exception]:
        gate = asyncio.Semaphore(_ATTEMPTS)

        async def one(name: LogName, position: int) -> None:
            async with gate:
                await self._cursors[name].advance(position)
            self._positions[name] = position

        moves = (one(name, position) for name, position in due.items())
        results = await asyncio.gather(*moves, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
        return [result for result in results if isinstance(result, Exception)]
