"""Metrics of logs: what there is to know (definitions.py), and showing it to Prometheus."""

from __future__ import annotations

from walstore.metrics.prometheus import PrometheusMetrics

__all__ = ["PrometheusMetrics"]
