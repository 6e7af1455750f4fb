"""Metrics for Prometheus. The only module that imports prometheus_client, and only when it is used."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from walstore.core.runtime.extras import needs_extra
from walstore.core.runtime.metric import Histogram, Metric, MetricKind, Scope, Watched
from walstore.core.runtime.statistics import LogObserver, ObservedLog
from walstore.metrics.definitions import HISTOGRAMS, METRICS, HistogramMetric
from walstore.metrics.metrics_collection import MetricsCollection

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import HistogramMetricFamily
    from prometheus_client.metrics_core import Metric as Family

_collectors: Final[weakref.WeakKeyDictionary[CollectorRegistry, _Collector]] = (
    weakref.WeakKeyDictionary()
)
_collectors_lock: Final = threading.Lock()


class PrometheusMetrics:
    """Exports logs to Prometheus; the argument of ``Wal.open(..., metrics=...)``. See docs/metrics.md.

    One object may serve any number of logs, and any number of objects may share a registry: the metrics
    are registered there once. Each log has the label ``log``; the metrics of a label are removed as
    soon as all logs with it are closed.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, log: str | None = None
    ) -> None:
        """Register with ``registry``, by default the one that prometheus_client serves.

        ``log`` is the label of every log opened with this object; None takes each log's own name: the
        last part of its directory, or its name in its store. Logs with the same label are merged:
        counts and sizes are added, the largest of the lags is taken, and offsets are left out while
        there are several. Raises MissingExtraError if prometheus_client is not installed.
        """
        with needs_extra("metrics", "PrometheusMetrics"):
            import prometheus_client
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._log = log
        with _collectors_lock:
            found = _collectors.get(self._registry)
            if found is None:
                found = _Collector()
                self._registry.register(found)
                _collectors[self._registry] = found
        self._collector = found
        self._collection = found.collection

    def attach(self, log: ObservedLog, name: str) -> LogObserver:
        """Export a log until its observer is closed."""
        return self._collection.attach(_valid(name if self._log is None else self._log), log)

    def watch(self, watched: Watched, name: str) -> None:
        """Export the figures of an object that has some, as long as it lives, with ``name`` for its label.

        Those are ``Server``, ``HttpServer``, ``MeteredStore`` and ``CloudWriter``. Of two with the same
        figures and the same name, the one given last is shown.
        """
        self._collector.watch(watched, _valid(name))


class _Collector:
    """Returns the families to a registry, which calls it on any thread."""

    def __init__(self) -> None:
        self.collection = MetricsCollection()
        self._lock = threading.Lock()
        self._watched: dict[tuple[str, str], weakref.ref[Watched]] = {}
        """By subject and name."""

    def watch(self, watched: Watched, name: str) -> None:
        """Show the figures of an object, too."""
        subject = watched.metrics[0].subject
        with self._lock:
            self._watched[subject, name] = weakref.ref(watched)

    def describe(self) -> Iterator[Family]:
        """Yield the families without samples, for the check for duplicate names."""
        for metric in METRICS:
            yield _family(metric)
        for histogram in HISTOGRAMS:
            yield _histogram_family(histogram)

    def collect(self) -> Iterator[Family]:
        """Yield the families with the samples of all logs."""
        look = self.collection.look()
        for metric in METRICS:
            family = _family(metric)
            if metric.scope is Scope.PROCESS:
                for labels, value in look.process[metric].items():
                    family.add_metric(labels, value)
            else:
                for log, reading in look.logs.items():
                    for labels, value in reading.values.get(metric, {}).items():
                        family.add_metric((log, *labels), value)
            yield family
        for at, histogram in enumerate(HISTOGRAMS):
            shown = _histogram_family(histogram)
            for log, reading in look.logs.items():
                counts = reading.histograms[at]
                shown.add_metric((log,), counts.accumulated(), counts.total)
            yield shown
        yield from self._collect_watched()

    def _collect_watched(self) -> Iterator[Family]:
        """Yield the families of objects that are watched."""
        with self._lock:
            alive = {
                key: found for key, ref in self._watched.items() if (found := ref()) is not None
            }
            self._watched = {key: self._watched[key] for key in alive}
        families: dict[str, Any] = {}
        for (_, name), watched in alive.items():
            for metric in watched.metrics:
                family = families.get(metric.name)
                if family is None:
                    families[metric.name] = family = _family(metric)
                for labels, value in metric.read(watched).items():
                    if isinstance(value, Histogram):
                        family.add_metric((name, *labels), value.accumulated(), value.total)
                    else:
                        family.add_metric((name, *labels), value)
        yield from families.values()


def _family(metric: Metric) -> Any:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    makers = {
        MetricKind.COUNTER: CounterMetricFamily,
        MetricKind.GAUGE: GaugeMetricFamily,
        MetricKind.HISTOGRAM: HistogramMetricFamily,
    }
    return makers[metric.kind](metric.name, metric.help, labels=metric.label_names)


def _valid(label: str) -> str:
    """Return a label that any system takes: a directory's name may not be valid text."""
    return label.encode(errors="replace").decode()


def _histogram_family(metric: HistogramMetric) -> HistogramMetricFamily:
    from prometheus_client.metrics_core import HistogramMetricFamily

    return HistogramMetricFamily(metric.name, metric.help, labels=("log",))
