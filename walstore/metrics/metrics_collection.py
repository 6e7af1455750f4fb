"""MetricsCollection: all logs observed for one registry. Counts events, reads statistics on demand.

It has one lock, no I/O and no dependency on Prometheus. Logs attach, commit and close on their event
loops, of which there may be several; reads come from any thread, mostly that of an HTTP server. So that
neither waits for the other, a read takes the lock only to copy the list of logs, and then reads each
log without stopping it.

Invariants (tests/walstore/metrics/test_metrics_collection.py)
  M1  Counters never go back while a log with their label is open, also when others with it are closed.
  M2  Counters about the process never go back.
  M3  Nothing is kept for a label whose logs are all closed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from walstore.core.runtime.metric import Histogram, Labels, Merge, Metric, MetricKind, Scope
from walstore.core.runtime.statistics import ObservedLog
from walstore.metrics.definitions import HISTOGRAMS, METRICS

Values = dict[Metric, dict[Labels, float]]
"""Values of each metric by its own labels."""


class MetricsReading(NamedTuple):
    """A snapshot of one log, or of several merged."""

    values: Values
    histograms: Sequence[Histogram]
    """One for each of ``HISTOGRAMS``, in the same order."""


class MetricsLook(NamedTuple):
    """A snapshot of a collection."""

    process: Values
    """Metrics about all logs."""
    logs: dict[str, MetricsReading]
    """The others, by label."""


class _Group(NamedTuple):
    """The logs with one label. Replaced as a whole, so that a read may continue with an old one."""

    live: tuple[Observation, ...]
    retired: tuple[MetricsReading, ...]
    """Sum of the counters of closed logs: one reading, or none yet."""


class Observation:
    """The observer of one log."""

    __slots__ = ("_collection", "_log", "_samples", "label")

    def __init__(self, collection: MetricsCollection, label: str, log: ObservedLog) -> None:
        self._collection = collection
        self._log = log
        self._samples = tuple(Histogram(metric.bounds) for metric in HISTOGRAMS)
        self.label = label
        """Value of the label ``log``."""

    def on_commit(
        self, records: int, size_bytes: int, append_seconds: float, commit_seconds: float
    ) -> None:
        """Count a commit; see :class:`walstore.core.runtime.statistics.LogObserver`."""
        append, commit, _, count, size = self._samples
        append.observe(append_seconds)
        commit.observe(commit_seconds)
        count.observe(records)
        size.observe(size_bytes)

    def on_sync(self, seconds: float) -> None:
        """Count a sync."""
        self._samples[2].observe(seconds)

    def close(self) -> None:
        """Drop the log, except for its part in the counters about the process."""
        self._collection.detach(self)

    def read(self) -> MetricsReading:
        """Read the log. May be called on any thread."""
        statistics = self._log.statistics()
        return MetricsReading(
            {metric: dict(metric.read(statistics)) for metric in METRICS},
            [histogram.copy() for histogram in self._samples],
        )


class MetricsCollection:
    """Logs by label."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._retired: tuple[MetricsReading, ...] = ()

    def attach(self, label: str, log: ObservedLog) -> Observation:
        """Begin to observe a log. Several may have the same label; then their values are merged."""
        found = Observation(self, label, log)
        with self._lock:
            live, retired = self._groups.get(label, _Group((), ()))
            self._groups[label] = _Group((*live, found), retired)
        return found

    def detach(self, observation: Observation) -> None:
        """End an observation; twice is allowed."""
        last = _retire(observation.read())
        label = observation.label
        with self._lock:
            live, retired = self._groups.get(label, _Group((), ()))
            if observation not in live:
                return
            left = tuple(other for other in live if other is not observation)
            if left:
                self._groups[label] = _Group(left, (_retire(_merge((*retired, last))),))
            else:
                del self._groups[label]
            self._retired = (_retire(_merge((*self._retired, last))),)

    def look(self) -> MetricsLook:
        """Read all logs without stopping them. May be called on any thread."""
        with self._lock:
            groups = list(self._groups.items())
            retired = self._retired
        logs: dict[str, MetricsReading] = {}
        live: list[MetricsReading] = []
        for label, group in groups:
            readings = [observation.read() for observation in group.live]
            live += readings
            together = (*group.retired, *readings)
            logs[label] = readings[0] if len(together) == 1 else _merge(together)
        process = [metric for metric in METRICS if metric.scope is Scope.PROCESS]
        return MetricsLook(_merge_metrics(process, (*retired, *live)), logs)


def _merge(readings: Sequence[MetricsReading]) -> MetricsReading:
    """Merge several readings by the rule of each metric."""
    histograms = [Histogram(metric.bounds) for metric in HISTOGRAMS]
    for at, histogram in enumerate(histograms):
        histogram.merge(reading.histograms[at] for reading in readings)
    return MetricsReading(_merge_metrics(METRICS, readings), histograms)


def _merge_metrics(metrics: Iterable[Metric], readings: Sequence[MetricsReading]) -> Values:
    return {
        metric: _merge_values(metric, [reading.values.get(metric, {}) for reading in readings])
        for metric in metrics
    }


def _merge_values(metric: Metric, many: Sequence[dict[Labels, float]]) -> dict[Labels, float]:
    merged: dict[Labels, float] = {}
    if metric.merge is Merge.LEAVE_OUT and sum(map(bool, many)) > 1:
        return merged
    for values in many:
        for labels, value in values.items():
            if labels not in merged:
                merged[labels] = value
            elif metric.merge is Merge.SUM:
                merged[labels] += value
            else:
                merged[labels] = max(merged[labels], value)
    return merged


def _retire(reading: MetricsReading) -> MetricsReading:
    """Return the part of a reading that outlives its log: counters and histograms."""
    counters = {m: values for m, values in reading.values.items() if m.kind is MetricKind.COUNTER}
    return MetricsReading(counters, reading.histograms)
