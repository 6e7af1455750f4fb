"""Observer: the interface between a log and its metrics. Protocols and a default that does nothing.

Counters and sizes are not reported: a log counts them anyway, and ``statistics()`` returns them. Only
what cannot be read afterwards is reported, the duration and size of each commit or sync, and never
anything per record. ``walstore.metrics`` contains the adapter for Prometheus.
"""

from __future__ import annotations

from typing import Final, Protocol

from walstore.runtime.statistics import Statistics


class ObservedLog(Protocol):
    """The part of a log that metrics use."""

    def statistics(self) -> Statistics:
        """Return the log's counters now. May be called on any thread, also after closing."""


class LogObserver(Protocol):
    """Observes one log. All calls come on the log's event loop; they must not block or raise."""

    def on_commit(
        self, records: int, size_bytes: int, append_seconds: float, commit_seconds: float
    ) -> None:
        """A batch of accepted records was written, and synced unless the log's policy syncs later.

        Called once per commit, positionally. ``size_bytes`` counts the frames. ``append_seconds`` is
        the time since the oldest of the records was accepted, ``commit_seconds`` that of framing,
        writing and syncing, including the round trip to the writer thread.
        """

    def on_sync(self, seconds: float) -> None:
        """Duration of a sync: that of the commit reported just before, or of a separate one."""

    def close(self) -> None:
        """The log is closed; it makes no further calls but may call this twice."""


class Metrics(Protocol):
    """Makes an observer for each log; what ``Wal.open(..., metrics=...)`` takes."""

    def attach(self, log: ObservedLog, name: str) -> LogObserver:
        """Begin to observe a log that was just opened, and return its observer.

        ``name`` is the last part of the log's directory, or its name in its store. Called on the log's
        event loop; must not block. If it raises, the log is closed again.
        """


class Unobserved:
    """The observer of a log without metrics."""

    def on_commit(
        self, records: int, size_bytes: int, append_seconds: float, commit_seconds: float
    ) -> None:
        """Do nothing."""

    def on_sync(self, seconds: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


UNOBSERVED: Final[LogObserver] = Unobserved()
"""Shared by all logs without metrics."""
