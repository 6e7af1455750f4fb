"""Metrics of a sidecar for Prometheus. Needs prometheus_client, so it is imported only on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from walstore import InvalidSettingsError
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.extras import needs_extra
from walstore.spark.bounds import Offsets, show
from walstore.spark.sidecar.sidecar import Landed, Started

with needs_extra("metrics", "--metrics-port"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


LANDED: Final = Definition(
    "walstore_sidecar_landed_offset", "Next offset that will land in the table.", ("log",)
)
CURSOR: Final = Definition(
    "walstore_sidecar_cursor_offset", "Where the sidecar's cursor stands.", ("log",)
)
TAIL: Final = Definition(
    "walstore_sidecar_tail_offset", "How far the log reaches, as last reported to Spark.", ("log",)
)
LAG: Final = Definition(
    "walstore_sidecar_lag_records", "Records in the log that have not landed.", ("log",)
)
BATCH_SECONDS: Final = Definition("walstore_sidecar_batch_seconds", "How long the last batch took.")
LANDED_AT: Final = Definition(
    "walstore_sidecar_landed_timestamp_seconds",
    "When a batch landed last, since 1970; 0 if none did.",
)
RECORDS: Final = Definition(
    "walstore_sidecar_records_total", "Records landed since the sidecar was started."
)
BATCHES: Final = Definition(
    "walstore_sidecar_batches_total", "Batches seen to land since the sidecar was started."
)
WARNINGS: Final = Definition(
    "walstore_sidecar_warnings_total",
    "What went wrong and was tried again, as cursors that stayed.",
)
DEFINITIONS: Final = (
    *(LANDED, CURSOR, TAIL, LAG, BATCH_SECONDS, LANDED_AT),
    *(RECORDS, BATCHES, WARNINGS),
)
"""All of them; docs/spark_sidecar.md has a table."""


class SidecarMetrics:
    """An :class:`~walstore.spark.sidecar.sidecar.Observer` that exports metrics to Prometheus."""

    def __init__(self, registry: CollectorRegistry, *, clock: Clock | None = None) -> None:
        """Show the metrics in ``registry``."""
        self.registry = registry
        self._clock = clock or SystemClock()
        self._gauges = {
            one: Gauge(one.name, one.help, one.labels, registry=registry)
            for one in (LANDED, CURSOR, TAIL, LAG, BATCH_SECONDS, LANDED_AT)
        }
        self._counters = {
            one: Counter(one.name.removesuffix("_total"), one.help, one.labels, registry=registry)
            for one in (RECORDS, BATCHES, WARNINGS)
        }

    def started(self, report: Started) -> None:
        """Show where it begins."""
        self._show(LANDED, report.positions)
        self._show(CURSOR, report.positions)

    def landed(self, report: Landed) -> None:
        """Show what has landed."""
        self._show(LANDED, report.positions)
        self._show(CURSOR, report.cursors)
        self._show(TAIL, report.tails)
        behind = {
            name: max(tail - report.positions[name], 0)
            for name, tail in report.tails.items()
            if name in report.positions
        }
        self._show(LAG, behind)
        if report.seconds is not None:
            self._gauges[BATCH_SECONDS].set(report.seconds)
        self._gauges[LANDED_AT].set(self._clock.now_us() / 1e6)
        self._counters[RECORDS].inc(report.records)
        self._counters[BATCHES].inc()

    def warned(self, text: str) -> None:
        """Count it."""
        self._counters[WARNINGS].inc()

    def _show(self, definition: Definition, values: Offsets) -> None:
        for name, value in values.items():
            self._gauges[definition].labels(show(name)).set(value)


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
