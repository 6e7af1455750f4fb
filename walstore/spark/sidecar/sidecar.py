"""Sidecar: lands logs in a table until it is stopped, each record once, and moves cursors behind it.

It owns the order of steps, which makes it safe to kill at any point:

1. A cursor retains each log from where the table will begin.
2. Spark writes a batch into the table and then commits it in the checkpoint; it repeats an uncommitted batch,
   and the table shows it once.
3. Only then, and once the files on a local disk are synced, the cursors move to the end of that batch. They
   may be late, never early: after a kill in between, the next start moves them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from walstore import InvalidSettingsError, WalError
from walstore.core.ports import Clock
from walstore.spark.bounds import LogName, from_json
from walstore.spark.environment import require_packages
from walstore.spark.sidecar.checkpoint import QueryCheckpoint, SparkFolder, sync_file_systems
from walstore.spark.sidecar.landing import Landing, Observer, Started, Summary
from walstore.spark.sidecar.session import close_session, open_session, spark_errors
from walstore.spark.sidecar.sidecar_settings import SidecarSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from walstore.spark.logs import NamedLog
    from walstore.spark.sidecar.holding import HeldLogs


logger = logging.getLogger("walstore.spark")

LOOK_SECONDS: Final = 0.25
"""Interval at which the query is checked."""
FINISH_SECONDS: Final = 15.0
"""How long a running batch may continue when the sidecar is stopped; then it is abandoned."""


class Sidecar:
    """One run of a sidecar. Blocking: runs on the thread that calls :meth:`run`, until :meth:`stop`."""

    def __init__(
        self,
        settings: SidecarSettings,
        observer: Observer,
        *,
        clock: Clock,
        spark_log_level: str = "off",
    ) -> None:
        """Do no I/O yet."""
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._log_level = spark_log_level
        self._stop = threading.Event()
        self._seen: tuple[int, str] | None = None
        self._local_places: Callable[[], tuple[str, ...]] = tuple
        self._landing = Landing(observer.warned, clock)

    def stop(self) -> None:
        """Let :meth:`run` end soon: after the running batch, if that takes at most 15 s.

        Any thread, or a signal handler, may call it any number of times.
        """
        self._stop.set()

    def run(self) -> Summary:
        """Land records until stopped; with ``is_once`` until everything has landed.

        Raises LogNotFoundError, InvalidSettingsError for a checkpoint, table or cursor that does not fit,
        OffsetTrimmedError for records that were removed before they landed, CorruptionError,
        StorageUnavailableError, and WalError with Spark's message for other failures. Whatever it raises,
        another run continues where this one ended.
        """
        require_packages()
        from walstore.spark.sidecar.holding import HeldLogs

        held = HeldLogs(self._settings.cursor_name)
        try:
            # Before Spark, which takes seconds to start: most mistakes are found here.
            held.open(self._find_logs())
            with spark_errors():
                spark = open_session(self._settings, log_level=self._log_level)
                try:
                    return self._run(spark, held)
                finally:
                    close_session(spark)
        finally:
            held.close()

    # -- inside ------------------------------------------------------------------------------

    def _find_logs(self) -> list[NamedLog]:
        from walstore.spark.logs import find_logs
        from walstore.spark.options import Options, parse_location, parse_selection

        settings = self._settings
        given = {"subscribe": settings.subscribe, "subscribePattern": settings.subscribe_pattern}
        named = {name: value for name, value in given.items() if value is not None}
        selection = parse_selection(Options(named, tuple(given)))
        return find_logs(parse_location(settings.location, {}), selection)

    def _run(self, spark: SparkSession, held: HeldLogs) -> Summary:
        from walstore.spark.sidecar.tables import open_table, start_query

        settings = self._settings
        checkpoint = QueryCheckpoint(SparkFolder(spark, settings.checkpoint_place))
        table = open_table(spark, settings)
        table.check(checkpoint, held.begins)
        self._local_places = table.local_places
        commit, landing = checkpoint.commit(), self._landing
        if commit is not None:
            landing.batch, landing.positions = commit.batch, commit.positions
            checkpoint.check_logs(commit, held.names)
            sync_file_systems(self._local_places())
        start = held.begin(landing.positions if commit is not None else None)
        landing.positions = {**landing.positions, **start}
        self._observer.started(
            Started(
                positions=start,
                is_resumed=commit is not None,
                cursor=settings.cursor_name,
                checkpoint=settings.checkpoint_place,
            )
        )
        if not self._stop.is_set():
            query = start_query(spark, settings, start if commit is None else None, table)
            self._watch(query, checkpoint, held)
        return landing.summary(held.positions, is_stopped=self._stop.is_set())

    def _watch(self, query: StreamingQuery, checkpoint: QueryCheckpoint, held: HeldLogs) -> None:
        try:
            with spark_errors():
                look = partial(self._look, query, checkpoint, held)
                while not _wait(query) and not self._stop.is_set():
                    look()
                self._finish(query, partial(look, is_last=True))
                query.stop()
                look(is_last=True)
        except WalError as error:
            if not self._stop.is_set():
                raise
            # The JVM may have been stopped too, as systemd does; the next run continues.
            logger.info("stopped in the middle of a batch: %s", error)

    def _finish(self, query: StreamingQuery, look: Callable[[], None]) -> None:
        """Wait for the running batch to end, at most :data:`FINISH_SECONDS`."""
        before, deadline = self._landing.batch, self._clock.monotonic() + FINISH_SECONDS
        while (
            query.isActive
            and query.status["isTriggerActive"]
            and query.status["isDataAvailable"]
            and self._landing.batch == before
            and self._clock.monotonic() < deadline
            and not _wait(query)
        ):
            look()

    def _look(
        self,
        query: StreamingQuery,
        checkpoint: QueryCheckpoint,
        held: HeldLogs,
        *,
        is_last: bool = False,
    ) -> None:
        """Move the cursors if another batch was committed, and report it."""
        progress, landing = query.lastProgress, self._landing
        seen = None if progress is None else (progress["batchId"], progress["timestamp"])
        if seen == self._seen and not landing.is_late and not is_last:
            return
        self._seen = seen
        if progress is not None:
            landing.tails = tails_of(progress, landing.tails)
        commit = checkpoint.commit()
        if commit is None:
            return
        is_new = commit.batch != landing.batch
        if not is_new and not (landing.is_late and (is_last or landing.is_retry_due)):
            return
        records = count_records(landing.positions, commit.positions)
        landing.land(commit.batch, commit.positions, records)
        with landing.moving():
            self._advance(held)
        if is_new or not landing.is_late:
            self._observer.landed(landing.report(records, held.positions, seconds_of(progress)))

    def _advance(self, held: HeldLogs) -> None:
        """Move the cursors to what has landed; the files are durable before."""
        sync_file_systems(self._local_places())
        if self._landing.positions.keys() - held.names:
            held.open(self._find_logs())
        held.advance(self._landing.positions)


def _wait(query: StreamingQuery) -> bool:
    """Wait a moment; return whether the query has ended. Raises its error if it failed."""
    # PySpark accepts fractions of a second, although its types do not allow them.
    return bool(query.awaitTermination(LOOK_SECONDS))  # type: ignore[arg-type]


def count_records(before: Mapping[LogName, int], after: Mapping[LogName, int]) -> int:
    """Return the number of records in between: offsets have no gaps. A log found meanwhile began at 1."""
    return sum(position - before.get(name, 1) for name, position in after.items())


def tails_of(progress: Mapping[str, Any], before: dict[LogName, int]) -> dict[LogName, int]:
    """Return the logs' tails as the source reported them to Spark, or else ``before``."""
    sources = progress["sources"]
    latest = sources[0].get("latestOffset") if sources else None
    try:
        return from_json(json.loads(latest) if isinstance(latest, str) else latest)
    except (ValueError, InvalidSettingsError):
        return before


def seconds_of(progress: Mapping[str, Any] | None) -> float | None:
    """Return how long the last batch took, or None if Spark does not report it."""
    duration = None if progress is None else progress["durationMs"].get("triggerExecution")
    return None if duration is None else float(duration) / 1000
