"""The cursors of a sidecar: one in each log, from before it starts until after the last batch.

A cursor is created before the first batch is planned, so that nothing is collected in between, and moves only
to the end of committed batches. A cursor beyond that was moved by another program: records that did not land
may have been removed, so the sidecar refuses to start until a user has resolved it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from uploader import open_store
from walstore import InvalidSettingsError, OffsetTrimmedError
from walstore.core.offset_range import OffsetRange
from walstore.spark.blocking import SyncRunner
from walstore.spark.bounds import LogName, Offsets, show
from walstore.spark.logs import NamedLog
from walstore.spark.planned_log import StoreOpener
from walstore.spark.sidecar.landing import check_not_beyond
from walstore.spark.streaming.poller import PolledLog, make_polled_log
from walstore.spark.streaming.stream_cursors import StreamCursors

_ATTEMPTS: Final = 10


class HeldLogs:
    """The logs of a sidecar, retained by cursors. Blocking; one thread at a time. Close it."""

    def __init__(self, cursor_name: str, *, open_store: StoreOpener = open_store) -> None:
        """Hold no log yet; the cursors will have that name. Tests of faults pass ``open_store``."""
        self._open_store = open_store
        self._name = cursor_name
        self._runner = SyncRunner()
        self._logs: dict[LogName, PolledLog] = {}
        self._cursors = StreamCursors(cursor_name, self._runner)
        # Partitions without records: they have no manifest yet, so there is nothing to retain.
        self._unmade: set[LogName] = set()

    @property
    def positions(self) -> Offsets:
        """Positions of the cursors that this object created or moved."""
        return dict(self._cursors.positions)

    @property
    def names(self) -> frozenset[LogName]:
        """The open logs."""
        return frozenset(self._logs)

    def open(self, logs: Iterable[NamedLog]) -> None:
        """Open logs that are not open yet; LogNotFoundError, CorruptionError, the store's errors."""
        for named in logs:
            name = (named.topic, named.partition)
            if name not in self._logs:
                self._logs[name] = make_polled_log(
                    named, self._runner, use_tier=True, open_store=self._open_store
                )
                self._runner.run(self._logs[name].refresh())

    def begins(self) -> dict[LogName, int]:
        """Return where each log begins if nothing has landed; creates no cursor."""
        found = {name: self._load(name) for name in self._logs}
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
            self._cursors.positions[name] = self._begin_one(name, at)
            if self._load(name) is None:
                self._unmade.add(name)
        return dict(self._cursors.positions)

    def advance(self, landed: Offsets) -> None:
        """Move the cursors to what has landed; cursors beyond that stay.

        Every cursor is tried, also if one fails. Then one of the errors is raised, and the next call moves
        the cursors that did not move.
        """
        for name in self._unmade & landed.keys():
            if landed[name] > self._cursors.positions[name]:
                self._runner.run(self._logs[name].refresh())
                self._cursors.forget(name)
                self._unmade.discard(name)
        for error in self._cursors.advance(self._logs, landed).values():
            raise error

    def close(self) -> None:
        """Release connections; the cursors stay."""
        try:
            self._cursors.close()
            for log in self._logs.values():
                self._runner.run(log.aclose())
        finally:
            self._runner.close()

    # -- inside ------------------------------------------------------------------------------

    def _begin_one(self, name: LogName, landed: int | None) -> int:
        found = self._load(name)
        if landed is None:
            return self._create_at_head(name) if found is None else self._check_kept(name, found)
        has = f"only what comes before {landed} has landed"
        check_not_beyond(self._name, name, found, landed, has)
        log = self._logs[name]
        if landed > log.limit:
            raise InvalidSettingsError(
                f"what has landed of {show(name)} ends at {landed}, and the log ends before that, at"
                f" {log.limit}: it is another log than the one that was landed; name a new table"
            )
        if found is not None:
            self.advance({name: landed})
            return landed
        try:
            return self._cursors.create(name, log, landed)
        except OffsetTrimmedError as error:
            error.add_note(
                f"cursor {self._name!r} of {show(name)} was removed, and records since that did not land"
            )
            raise

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
                return self._cursors.create(name, self._logs[name], head)
            except OffsetTrimmedError as error:
                if attempt == _ATTEMPTS - 1 or error.head <= head:
                    raise
                head = error.head
        raise AssertionError("unreachable")

    def _head(self, name: LogName) -> int:
        with self._logs[name].plan() as planned:
            return planned.head

    def _load(self, name: LogName) -> int | None:
        return self._cursors.load(name, self._logs[name])
