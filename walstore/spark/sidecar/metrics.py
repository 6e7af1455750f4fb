"""Metrics of a sidecar for Prometheus. Needs prometheus_client, so it is imported only on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from walstore import InvalidSettingsError
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.extras import needs_extra
from walstore.spark.bounds import Offsets, show
from walstore.spark.sidecar.landing import Landed, Started

with needs_extra("metrics", "--metrics-port"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server


_LOG: Final = ("log",)
_GAUGES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "landed_offset": ("Next offset that will land in the table.", _LOG),
    "cursor_offset": ("Where the sidecar's cursor stands.", _LOG),
    "tail_offset": ("How far the log reaches, as last reported to Spark.", _LOG),
    "lag_records": ("Records in the log that have not landed.", _LOG),
    "batch_seconds": ("How long the last batch took.", ()),
    "landed_timestamp_seconds": ("When a batch landed last, since 1970; 0 if none did.", ()),
}
_COUNTERS: Final[Mapping[str, str]] = {
    "records": "Records landed since the sidecar was started.",
    "batches": "Batches seen to land since the sidecar was started.",
    "warnings": "What went wrong and was tried again, as cursors that stayed.",
}
NAMES: Final = (
    *(f"walstore_sidecar_{name}" for name in _GAUGES),
    *(f"walstore_sidecar_{name}_total" for name in _COUNTERS),
)
"""The names of all metrics; docs/spark_sidecar.md has a table."""


class SidecarMetrics:
    """An :class:`~walstore.spark.sidecar.landing.Observer` that exports metrics to Prometheus."""

    def __init__(self, registry: CollectorRegistry, *, clock: Clock | None = None) -> None:
        """Show the metrics in ``registry``."""
        self.registry = registry
        self._clock = clock or SystemClock()
        self._gauges = {
            name: Gauge(f"walstore_sidecar_{name}", text, labels, registry=registry)
            for name, (text, labels) in _GAUGES.items()
        }
        self._counters = {
            name: Counter(f"walstore_sidecar_{name}", text, registry=registry)
            for name, text in _COUNTERS.items()
        }

    def started(self, report: Started) -> None:
        """Show where it begins."""
        self._show("landed_offset", report.positions)
        self._show("cursor_offset", report.positions)

    def landed(self, report: Landed) -> None:
        """Show what has landed."""
        self._show("landed_offset", report.positions)
        self._show("cursor_offset", report.cursors)
        self._show("tail_offset", report.tails)
        behind = {
            name: max(tail - report.positions[name], 0)
            for name, tail in report.tails.items()
            if name in report.positions
        }
        self._show("lag_records", behind)
        if report.seconds is not None:
            self._gauges["batch_seconds"].set(report.seconds)
        self._gauges["landed_timestamp_seconds"].set(self._clock.now_us() / 1e6)
        self._counters["records"].inc(report.records)
        self._counters["batches"].inc()

    def warned(self, text: str) -> None:
        """Count it."""
        self._counters["warnings"].inc()

    def _show(self, gauge: str, values: Offsets) -> None:
        for name, value in values.items():
            self._gauges[gauge].labels(show(name)).set(value)


@contextmanager
def serving(port: int) -> Iterator[tuple[SidecarMetrics, int]]:
    """Serve metrics over HTTP on all addresses of this machine while the block runs; 0 takes a free port.

    Yields the observer, and the port. InvalidSettingsError if the port is taken.
    """
    registry = CollectorRegistry()
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise InvalidSettingsError(
            f"cannot serve metrics at port {port}: {error.strerror}"
        ) from None
    try:
        yield SidecarMetrics(registry), server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
