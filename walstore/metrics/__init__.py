"""Metrics of logs: the definitions (definitions.py) and the adapter for Prometheus."""

from __future__ import annotations

from walstore.metrics.prometheus import PrometheusMetrics

__all__ = ["PrometheusMetrics"]
