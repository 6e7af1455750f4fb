"""OpenTelemetryMetrics: exports logs through OpenTelemetry's API. Needs ``walstore[otel]`` when it is made.

The API does nothing by itself: the program installs an SDK with an exporter, which reads the values at its
own pace, on its own thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.extras import needs_extra
from walstore.core.runtime.metric import Metric, MetricKind, Scope, Watched
from walstore.core.runtime.statistics import LogObserver, ObservedLog
from walstore.metrics.definitions import HISTOGRAMS, METRICS
from walstore.metrics.metrics_collection import MetricsCollection, MetricsLook, Observation

if TYPE_CHECKING:
    from opentelemetry import metrics as api

_LOOK_SECONDS: Final = 0.2
"""A reading serves all instruments that are asked within this time: an export asks them one by one."""


class OpenTelemetryMetrics:
    """Exports logs to OpenTelemetry; the argument of ``Wal.open(..., metrics=...)``. See docs/metrics.md.

    Make one for a program; it serves any number of logs. The instruments have the names of the metrics for
    Prometheus, without ``_total``, and their labels are attributes.
    """

    def __init__(
        self, meter: api.Meter | None = None, *, log: str | None = None, clock: Clock | None = None
    ) -> None:
        """Make the instruments on ``meter``, by default that of the installed provider.

        ``log`` is the attribute of every log, as for :class:`PrometheusMetrics`. ``clock`` is for tests.
        Raises MissingExtraError if the package is not installed.
        """
        with needs_extra("otel", "OpenTelemetryMetrics"):
            from opentelemetry import metrics
        self._meter = metrics.get_meter("walstore") if meter is None else meter
        self._observation = metrics.Observation
        self._log = log
        self._clock = clock or SystemClock()
        self._collection = MetricsCollection()
        self._lock = threading.Lock()
        self._look: tuple[float, MetricsLook] | None = None
        self._watched: dict[tuple[str, str], weakref.ref[Watched]] = {}
        self._watched_names: set[str] = set()
        self._histograms = [
            self._meter.create_histogram(
                one.name, _unit(one.name), one.help, explicit_bucket_boundaries_advisory=one.bounds
            )
            for one in HISTOGRAMS
        ]
        for metric in METRICS:
            self._observe(metric, self._reader(metric))

    def attach(self, log: ObservedLog, name: str) -> LogObserver:
        """Export a log until its observer is closed."""
        label = (name if self._log is None else self._log).encode(errors="replace").decode()
        return _Recorder(self._collection.attach(label, log), self._histograms)

    def watch(self, watched: Watched, name: str) -> None:
        """Export the figures of an object, as long as it lives; see :meth:`PrometheusMetrics.watch`.

        Its histograms are left out: OpenTelemetry has none that are read on demand.
        """
        metrics = [one for one in watched.metrics if one.kind is not MetricKind.HISTOGRAM]
        subject = watched.metrics[0].subject
        with self._lock:
            self._watched[subject, name] = weakref.ref(watched)
            new = [one for one in metrics if one.name not in self._watched_names]
            self._watched_names.update(one.name for one in new)
        for metric in new:
            self._observe(metric, self._watched_reader(metric))

    # -- inside ------------------------------------------------------------------------------

    def _observe(self, metric: Metric, read: Callable[[], Iterator[Any]]) -> None:
        make = (
            self._meter.create_observable_counter
            if metric.kind is MetricKind.COUNTER
            else self._meter.create_observable_gauge
        )
        make(metric.name, [lambda _: read()], _unit(metric.name), metric.help)

    def _reader(self, metric: Metric) -> Callable[[], Iterator[Any]]:
        def read() -> Iterator[Any]:
            look = self._looked()
            if metric.scope is Scope.PROCESS:
                yield from self._values(metric, "", look.process[metric].items())
            else:
                for log, reading in look.logs.items():
                    yield from self._values(metric, log, reading.values.get(metric, {}).items())

        return read

    def _watched_reader(self, metric: Metric) -> Callable[[], Iterator[Any]]:
        def read() -> Iterator[Any]:
            with self._lock:
                found = [(name, ref()) for (_, name), ref in self._watched.items()]
            for name, watched in found:
                if watched is not None and metric in watched.metrics:
                    yield from self._values(metric, name, metric.read(watched).items())

        return read

    def _values(
        self, metric: Metric, subject: str, values: Iterable[tuple[tuple[str, ...], float]]
    ) -> Iterator[Any]:
        for labels, value in values:
            all_labels = labels if metric.scope is Scope.PROCESS else (subject, *labels)
            yield self._observation(value, dict(zip(metric.label_names, all_labels, strict=True)))

    def _looked(self) -> MetricsLook:
        now = self._clock.monotonic()
        with self._lock:
            if self._look is None or now - self._look[0] > _LOOK_SECONDS:
                self._look = now, self._collection.look()
            return self._look[1]


class _Recorder:
    """The observer of one log: its histograms are told of each commit, all else is read on demand."""

    __slots__ = ("_attributes", "_histograms", "_observation")

    def __init__(self, observation: Observation, histograms: list[api.Histogram]) -> None:
        self._observation = observation
        self._histograms = histograms
        self._attributes = {"log": observation.label}

    def on_commit(
        self, records: int, size_bytes: int, append_seconds: float, commit_seconds: float
    ) -> None:
        """Record a commit."""
        append, commit, _, count, size = self._histograms
        append.record(append_seconds, self._attributes)
        commit.record(commit_seconds, self._attributes)
        count.record(records, self._attributes)
        size.record(size_bytes, self._attributes)

    def on_sync(self, seconds: float) -> None:
        """Record a sync."""
        self._histograms[2].record(seconds, self._attributes)

    def close(self) -> None:
        """Drop the log."""
        self._observation.close()


def _unit(name: str) -> str:
    """Return the unit of a metric in UCUM, by the end of its name."""
    units = {"seconds": "s", "bytes": "By", "records": "{record}"}
    return units.get(name.rpartition("_")[2], "1")
