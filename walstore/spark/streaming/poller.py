"""Polls the logs of a stream: which logs exist, and the limit of each. Blocking.

Spark asks for the offsets some fifty times a second and gets what is known. The logs themselves are polled at
the pace of :class:`PollPace`, all that are due concurrently. Each is opened once and planned over at any
time; all share one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Final, TypeAlias

from walstore import CorruptionError, LogNotFoundError, ReadonlyWal, Wal, WalError
from walstore.core.files.directory import peek_log_id
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.spark.blocking import SyncRunner
from walstore.spark.bounds import LogName, show
from walstore.spark.logs import NamedLog
from walstore.spark.planned_log import DirectoryLog, StoreLog, StoreOpener
from walstore.spark.streaming.log_cursor import LogCursor


class PolledDirectory:
    """A log in a directory of this machine, next to its writer. Its limit is known at any time.

    The log belongs to ``runner`` and is used only there: Spark may call from another thread each time.
    """

    def __init__(self, log: NamedLog, runner: SyncRunner, *, use_tier: bool) -> None:
        """Poll ``log`` on ``runner``."""
        self.name = (log.topic, log.partition)
        self._path = log.location.text
        self._runner = runner
        self._use_tier = use_tier
        self._log: ReadonlyWal | None = None

    @property
    def wal(self) -> ReadonlyWal:
        """The open log; call :meth:`refresh` first."""
        assert self._log is not None
        return self._log

    @property
    def head(self) -> int:
        """First offset in the directory; earlier records may be in its tier."""
        return 1 if self._log is None else self._runner.run(_head(self._log))

    @property
    def limit(self) -> int:
        """The durable limit."""
        return 1 if self._log is None else self._runner.run(_limit(self._log))

    async def refresh(self) -> None:
        """Refresh the log, and check that the directory still contains it."""
        if self._log is None:
            self._log = await Wal.open_readonly(self._path)
        else:
            await self._log.refresh()
            await asyncio.to_thread(self._check_location, self._log)

    def _check_location(self, log: ReadonlyWal) -> None:
        """Check that the path still leads to this log, since tasks read it by its path."""
        path = Path(self._path)
        found = peek_log_id(PosixFileSystem(), path)
        if found is None:
            raise LogNotFoundError(f"there is no log at {path} any more", location=str(path))
        if found.hex() != log.log_id:
            raise CorruptionError(
                "another log has taken this one's place; begin the query again",
                path=str(path),
                expected=log.log_id,
                found=found.hex(),
            )

    def plan(self) -> AbstractContextManager[DirectoryLog]:
        """Return a new snapshot of the directory, for a ``with`` block. Blocking: not on the event loop."""
        return closing(DirectoryLog(self._path, *self.name, use_tier=self._use_tier))

    def cursor(self, name: str) -> LogCursor:
        """Return a cursor of the log; call :meth:`refresh` first. Makes nothing yet."""
        with self.plan() as planned:
            return LogCursor.of_directory(self.wal, planned.tier_url, name)

    async def aclose(self) -> None:
        """Release the thread and the file descriptors."""
        if self._log is not None:
            await self._log.aclose()


PolledLog: TypeAlias = StoreLog | PolledDirectory


def make_polled_log(
    log: NamedLog, runner: SyncRunner, *, use_tier: bool, open_store: StoreOpener
) -> PolledLog:
    """Return a log to poll; nothing is opened yet."""
    if not log.location.is_store:
        return PolledDirectory(log, runner, use_tier=use_tier)
    return StoreLog(
        log.location.text,
        log.topic,
        log.partition,
        may_be_new=log.is_part,
        runner=runner,
        open_store=open_store,
    )


async def _head(log: ReadonlyWal) -> int:
    return log.head


async def _limit(log: ReadonlyWal) -> int:
    return log.limit


class PollPace:
    """When to poll one log again. Times are monotonic seconds. Pure.

    Soon while records arrive, and less and less often while none do, so that an idle stream polls its store
    about once a second, however often Spark asks the stream.
    """

    def __init__(self, *, shortest_seconds: float, longest_seconds: float) -> None:
        """Wait ``shortest_seconds`` after new records, and up to ``longest_seconds`` while idle."""
        longest_seconds = max(shortest_seconds, longest_seconds)
        self._backoff = Backoff(shortest_seconds, longest_seconds, growth=1.5)
        self._attempt = 1
        self._due_at = 0.0
        self._failing_since: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether to poll now."""
        return now >= self._due_at

    def answered(self, now: float, *, is_new: bool) -> None:
        """Record an answer, and whether there were new records."""
        self._failing_since = None
        self._attempt = 1 if is_new else self._attempt + 1
        self._due_at = now + self._backoff.after(self._attempt)

    def failed(self, now: float) -> float:
        """Record a failure; return for how many seconds there has been no answer."""
        if self._failing_since is None:
            self._failing_since = now
        self._attempt += 1
        self._due_at = now + self._backoff.after(self._attempt)
        return now - self._failing_since


logger = logging.getLogger("walstore.spark")

IDLE_SECONDS: Final = 1.0
"""Poll interval of an idle log, multiplied by the number of logs."""
MOST_IDLE_SECONDS: Final = 10.0
"""Upper bound of that interval."""
PATIENCE_SECONDS: Final = 300.0
"""How long a log may be unreachable before the query fails."""

Finder = Callable[[], list[NamedLog]]
"""Returns the logs to follow; blocking."""


class Poller:
    """The logs of one stream. Belongs to one thread; holds connections and threads until closed."""

    def __init__(
        self,
        *,
        find: Finder,
        make_log: Callable[[NamedLog, SyncRunner], PolledLog],
        clock: Clock,
        poll_seconds: float,
        discovery_seconds: float | None,
    ) -> None:
        """Find the logs and open them; raises their errors.

        ``poll_seconds`` is the poll interval of an active log. New logs are discovered every
        ``discovery_seconds``; never if that is None.
        """
        self._find = find
        self._make_log = make_log
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._discovery_seconds = discovery_seconds
        self._runner = SyncRunner()
        self._logs: dict[LogName, PolledLog] = {}
        self._paces: dict[LogName, PollPace] = {}
        try:
            self._add(find())
        except BaseException:
            self.close()
            raise
        self._discovered_at = clock.monotonic()

    @property
    def logs(self) -> Mapping[LogName, PolledLog]:
        """The logs by name."""
        return self._logs

    @property
    def runner(self) -> SyncRunner:
        """The event loop on which they are open."""
        return self._runner

    def limits(self) -> dict[LogName, int]:
        """Return the last known limit of each log; makes no request to a store."""
        return {name: log.limit for name, log in self._logs.items()}

    def poll(self) -> None:
        """Refresh the logs that are due, and discover new ones if that is due.

        A log that does not answer counts as unchanged for :data:`PATIENCE_SECONDS`. Permanent errors are
        raised at once: LogNotFoundError, CorruptionError.
        """
        now = self._clock.monotonic()
        due = [name for name, pace in self._paces.items() if pace.is_due(now)]
        for name, error in self._refresh(due):
            silent_seconds = self._paces[name].failed(self._clock.monotonic())
            if not error.retriable or silent_seconds >= PATIENCE_SECONDS:
                raise error
            logger.warning("%s does not answer and is asked again: %s", show(name), error)
        self._discover(now)

    def refresh_all(self, names: Iterable[LogName] | None = None) -> None:
        """Refresh all logs, or those named, whether due or not; raises the first error."""
        for _, error in self._refresh(self._logs if names is None else names):
            raise error

    def close(self) -> None:
        """Release everything; twice is allowed."""
        try:
            while self._logs:
                _, log = self._logs.popitem()
                self._runner.run(log.aclose())
        finally:
            self._runner.close()

    def _refresh(self, names: Iterable[LogName]) -> list[tuple[LogName, WalError]]:
        asked = list(names)
        if not asked:
            return []
        before = self.limits()
        answers = self._runner.run(_all_of([self._logs[name] for name in asked]))
        now = self._clock.monotonic()
        failed = []
        for name, answer in zip(asked, answers, strict=True):
            if isinstance(answer, WalError):
                failed.append((name, answer))
            elif answer is not None:
                raise answer
            else:
                self._paces[name].answered(now, is_new=self._logs[name].limit != before[name])
        return failed

    def _discover(self, now: float) -> None:
        if self._discovery_seconds is None or now < self._discovered_at + self._discovery_seconds:
            return
        self._discovered_at = now
        try:
            found = self._find()
            self._add([log for log in found if (log.topic, log.partition) not in self._logs])
        except LogNotFoundError:
            return  # all logs of the pattern are gone; reading one of them raises the error
        except WalError as error:
            if not error.retriable:
                raise
            logger.warning("new logs are looked for again later: %s", error)

    def _add(self, found: Iterable[NamedLog]) -> None:
        added = [self._make_log(log, self._runner) for log in found]
        if not added:
            return
        idle_seconds = min(MOST_IDLE_SECONDS, IDLE_SECONDS * (len(self._logs) + len(added)))
        for log in added:
            self._logs[log.name] = log
            self._paces[log.name] = PollPace(
                shortest_seconds=self._poll_seconds, longest_seconds=idle_seconds
            )
        try:
            self.refresh_all([log.name for log in added])
        except BaseException:
            for log in added:
                del self._logs[log.name], self._paces[log.name]
                self._runner.run(log.aclose())
            raise


async def _all_of(logs: list[PolledLog]) -> list[BaseException | None]:
    return await asyncio.gather(*(log.refresh() for log in logs), return_exceptions=True)
