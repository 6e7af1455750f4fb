"""Polls the logs of a stream: which logs exist, and the limit of each. Blocking.

Spark asks for the offsets some fifty times a second and gets what is known. The logs themselves are polled at
the pace of :class:`PollPace`, all that are due concurrently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from walstore import LogNotFoundError, WalError
from walstore.ports import Clock
from walstore.spark.bounds import LogName
from walstore.spark.logs import NamedLog
from walstore.spark.store import SyncRunner
from walstore.spark.streaming.offsets import show
from walstore.spark.streaming.polled_log import PolledLog

_SLOWER: Final = 1.5


class PollPace:
    """When to poll one log again. Times are monotonic seconds. Pure.

    Soon while records arrive, and less and less often while none do, so that an idle stream polls its store
    about once a second, however often Spark asks the stream.
    """

    def __init__(self, *, shortest_seconds: float, longest_seconds: float) -> None:
        """Wait ``shortest_seconds`` after new records, and up to ``longest_seconds`` while idle."""
        self._shortest_seconds = shortest_seconds
        self._longest_seconds = max(shortest_seconds, longest_seconds)
        self._pause_seconds = shortest_seconds
        self._due_at = 0.0
        self._failing_since: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether to poll now."""
        return now >= self._due_at

    def answered(self, now: float, *, is_new: bool) -> None:
        """Record an answer, and whether there were new records."""
        self._failing_since = None
        if is_new:
            self._pause_seconds = self._shortest_seconds
        else:
            self._slow_down()
        self._due_at = now + self._pause_seconds

    def failed(self, now: float) -> float:
        """Record a failure; return for how many seconds there has been no answer."""
        if self._failing_since is None:
            self._failing_since = now
        self._slow_down()
        self._due_at = now + self._pause_seconds
        return now - self._failing_since

    def _slow_down(self) -> None:
        self._pause_seconds = min(self._pause_seconds * _SLOWER, self._longest_seconds)


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
