"""Metrics of logs, with adapters for Prometheus and OpenTelemetry, and traces."""

from __future__ import annotations

from walstore.core.runtime.statistics import LogObserver, Metrics, ObservedLog
from walstore.metrics.otel import OpenTelemetryMetrics
from walstore.metrics.prometheus import PrometheusMetrics
from walstore.metrics.tracing import Tracing

__all__ = [
    "LogObserver",
    "Metrics",
    "ObservedLog",
    "OpenTelemetryMetrics",
    "PrometheusMetrics",
    "Tracing",
]
