"""Metrics of logs: the definitions (definitions.py) and the adapters for Prometheus and OpenTelemetry."""

from __future__ import annotations

from walstore.core.runtime.statistics import LogObserver, Metrics, ObservedLog
from walstore.metrics.otel import OpenTelemetryMetrics
from walstore.metrics.prometheus import PrometheusMetrics

__all__ = ["LogObserver", "Metrics", "ObservedLog", "OpenTelemetryMetrics", "PrometheusMetrics"]
