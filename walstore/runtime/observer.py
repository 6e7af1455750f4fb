"""What a log tells whoever measures it. Protocols and a silent default; never knows who listens.

Counters and sizes are not told: a log counts them anyway, and ``statistics()`` shows them when somebody
looks. Told is only what cannot be looked up afterwards, how long each commit took and how large it was,
once per commit or sync and never per record. ``walstore.metrics`` holds the adapter for Prometheus.
"""

from __future__ import annotations

from typing import Final, Protocol

from walstore.runtime.statistics import Statistics


class ObservedLog(Protocol):
    """A log as its metrics see it."""

    def statistics(self) -> Statistics:
        """Return the log's counters now. May be called on any thread, also after closing."""


class LogObserver(Protocol):
    """Listens to one log. All calls come on the log's event loop; they must not block or raise."""

    def on_commit(
        self, records: int, size_bytes: int, append_seconds: float, commit_seconds: float
    ) -> None:
        """A batch of accepted records was written, and synced unless the log's policy syncs later.

        Called once per commit, positionally. ``size_bytes`` counts the frames. ``append_seconds`` is
        the time since the oldest of the records was accepted, ``commit_seconds`` that of laying out,
        writing and syncing with the way to the writer thread and back.
        """

    def on_sync(self, seconds: float) -> None:
        """A sync took that long: that of the commit told just before, or one by itself."""

    def close(self) -> None:
        """The log is closed; it makes no further calls but may call this twice."""


class Metrics(Protocol):
    """Makes an observer for each log; what ``Wal.open(..., metrics=...)`` takes."""

    def attach(self, log: ObservedLog, name: str) -> LogObserver:
        """Begin to observe a log that was just opened, and return what it shall call.

        ``name`` is the last part of the log's directory, or its name in its store. Called on the log's
        event loop; must not block. What it raises closes the log again.
        """


class Unobserved:
    """The observer of a log that nobody measures."""

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
