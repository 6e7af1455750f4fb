"""Metrics of a sidecar: what they show, how they are served, and that the page has them all."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from walstore.errors import InvalidSettingsError
from walstore.spark.sidecar import Landed, Started
from walstore.spark.sidecar.metrics import NAMES, SidecarMetrics, serving
from walstore.testing import ManualClock

A, B = ("orders", 0), ("orders", 1)
PAGE = Path(__file__).parents[4] / "docs" / "spark_sidecar.md"


def landed(**changes) -> Landed:
    report = {
        "batch": 3,
        "records": 40,
        "positions": {A: 41, B: 9},
        "cursors": {A: 41, B: 1},
        "tails": {A: 50, B: 9},
        "seconds": 1.5,
    }
    return Landed(**{**report, **changes})


def test_what_they_show():
    registry = CollectorRegistry()
    metrics = SidecarMetrics(registry, clock=ManualClock(now_us=7_000_000))
    metrics.started(Started({A: 1, B: 1}, is_resumed=False, cursor="c", checkpoint="/c"))
    metrics.landed(landed())
    metrics.landed(landed(records=2, seconds=None))
    metrics.warned("no")
    shown = set(generate_latest(registry).decode().splitlines())
    assert {
        'walstore_sidecar_landed_offset{log="orders"} 41.0',
        'walstore_sidecar_cursor_offset{log="orders/1"} 1.0',
        'walstore_sidecar_tail_offset{log="orders"} 50.0',
        'walstore_sidecar_lag_records{log="orders"} 9.0',
        'walstore_sidecar_lag_records{log="orders/1"} 0.0',
        "walstore_sidecar_batch_seconds 1.5",
        "walstore_sidecar_landed_timestamp_seconds 7.0",
        "walstore_sidecar_records_total 42.0",
        "walstore_sidecar_batches_total 2.0",
        "walstore_sidecar_warnings_total 1.0",
    } <= shown


def test_the_lag_of_a_report():
    assert landed().lag_records == 9
    assert landed(tails={}).lag_records == 0
    assert landed(tails={("new", 0): 5}).lag_records == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default::ResourceWarning")
def test_served_over_http():
    with serving(0) as (metrics, port):
        metrics.warned("no")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"walstore_sidecar_warnings_total 1.0" in answer.read()
        with pytest.raises(InvalidSettingsError, match=f"at port {port}"), serving(port):
            pass
    with serving(port):
        pass


def test_the_page_has_them_all():
    rows = re.findall(r"^\| `(walstore_sidecar_\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == list(NAMES)
