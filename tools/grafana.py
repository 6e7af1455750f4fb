"""Write the Grafana board that the package contains: ``python -m tools.grafana``.

The board is a table of panels here, and JSON for Grafana there. tests/test_grafana.py compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

BOARD: Final = Path(__file__).parents[1] / "walstore" / "metrics" / "grafana_dashboard.json"
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


class Panel(NamedTuple):
    """One graph."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Expression and legend of each line."""


def _rate(metric: str, labels: str = "$log") -> str:
    return f"rate({metric}{_of(labels)}[$__rate_interval])"


def _of(labels: str) -> str:
    return '{log=~"$log"}' if labels == "$log" else labels


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    by = f"sum by (log, le) ({_rate(metric + '_bucket')})"
    return tuple(
        (f"histogram_quantile({fraction}, {by})", f"{{{{log}}}} {name}")
        for fraction, name in ((0.5, "p50"), (0.99, "p99"))
    )


def _log(metric: str, legend: str = "{{log}}") -> tuple[str, str]:
    return f"{metric}{_of('$log')}", legend


ROWS: Final = {
    "Appends": (
        Panel("Records", "wps", ((_rate("walstore_appended_records_total"), "{{log}}"),)),
        Panel("Bytes", "Bps", ((_rate("walstore_appended_bytes_total"), "{{log}}"),)),
        Panel("Commits", "ops", ((_rate("walstore_commits_total"), "{{log}}"),)),
        Panel("Time of the oldest append of a commit", "s", _quantiles("walstore_append_seconds")),
        Panel("Time of a sync", "s", _quantiles("walstore_sync_seconds")),
        Panel(
            "Waiting",
            "short",
            (
                _log("walstore_waiting_records", "{{log}} records"),
                _log("walstore_blocked_appends", "{{log}} callers without room"),
            ),
        ),
    ),
    "Readers, cursors and groups": (
        Panel("Lag of the slowest reader", "short", (_log("walstore_reader_lag_records"),)),
        Panel(
            "Lag of cursors", "short", (_log("walstore_cursor_lag_records", "{{log}} {{cursor}}"),)
        ),
        Panel(
            "Reads by tier",
            "ops",
            ((_rate("walstore_reads_total"), "{{log}} {{tier}}"),),
        ),
        Panel(
            "Groups: records not read yet",
            "short",
            (_log("walstore_group_lag_records", "{{log}} {{group}}"),),
        ),
        Panel(
            "Groups: records with members",
            "short",
            (_log("walstore_group_pending_records", "{{log}} {{group}}"),),
        ),
        Panel(
            "Groups: deliveries",
            "ops",
            (
                (_rate("walstore_group_deliveries_total"), "{{log}} {{group}}"),
                (_rate("walstore_group_redeliveries_total"), "{{log}} {{group}} again"),
                (_rate("walstore_group_dead_letters_total"), "{{log}} {{group}} dead"),
            ),
        ),
    ),
    "Shipping and stores": (
        Panel(
            "Records not shipped",
            "short",
            (
                (
                    _log("walstore_durable_limit_offset")[0]
                    + " - "
                    + _log("walstore_uploaded_limit_offset")[0],
                    "{{log}}",
                ),
            ),
        ),
        Panel("Shipped", "Bps", ((_rate("walstore_upload_bytes_total"), "{{log}}"),)),
        Panel(
            "Shipping: time of a put, and to publish",
            "s",
            (
                _log("walstore_upload_put_seconds", "{{log}} put"),
                _log("walstore_upload_publish_seconds", "{{log}} publish"),
            ),
        ),
        Panel(
            "Requests to stores",
            "reqps",
            ((_rate("walstore_store_requests_total", ""), "{{store}} {{kind}}"),),
        ),
        Panel(
            "Faults of stores",
            "ops",
            (
                (_rate("walstore_store_failures_total", ""), "{{store}} {{kind}}"),
                (_rate("walstore_upload_retries_total"), "{{log}} repeated"),
            ),
        ),
        Panel(
            "Cost of requests at list prices, a day",
            "currencyUSD",
            ((f"86400 * {_rate('walstore_store_cost_total', '')}", "{{store}}"),),
        ),
    ),
    "Servers": (
        Panel(
            "Connections",
            "short",
            (
                ("walstore_server_connections", "{{server}}"),
                ("walstore_http_requests_in_progress", "{{http}} over HTTP"),
            ),
        ),
        Panel(
            "Requests",
            "reqps",
            (
                (_rate("walstore_server_requests_total", ""), "{{server}} {{kind}}"),
                (
                    f"sum by (http, status) ({_rate('walstore_http_requests_total', '')})",
                    "{{http}} {{status}}",
                ),
            ),
        ),
        Panel(
            "Errors",
            "ops",
            (
                (_rate("walstore_server_errors_total", ""), "{{server}} {{type}}"),
                (_rate("walstore_errors_total", ""), "{{type}}"),
            ),
        ),
    ),
    "Collections": (
        Panel(
            "Behind",
            "short",
            (
                ("walstore_collection_behind", "{{collection}}"),
                ("walstore_collection_reader_behind", "{{collection}} {{reader}}"),
            ),
        ),
        Panel(
            "Batches that are not merged",
            "short",
            (("walstore_collection_pending_batches", "{{collection}}"),),
        ),
        Panel("Size", "bytes", (("walstore_collection_bytes", "{{collection}}"),)),
    ),
}


def board() -> dict[str, Any]:
    """Return the board."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": top, "w": _WIDTH * _COLUMNS, "h": 1}
        panels.append({"type": "row", "title": title, "gridPos": place, "collapsed": False})
        top += 1
        for at, panel in enumerate(row):
            x, y = at % _COLUMNS * _WIDTH, top + at // _COLUMNS * _HEIGHT
            panels.append(_panel(panel, {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}))
        top += -(-len(row) // _COLUMNS) * _HEIGHT
    for number, shown in enumerate(panels, 1):
        shown["id"] = number
    return {
        "title": "walstore",
        "uid": "walstore",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _logs()]},
        "panels": panels,
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}


def _logs() -> dict[str, Any]:
    return {
        "name": "log",
        "label": "Log",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": "label_values(walstore_segments, log)",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """Return the board as the package contains it."""
    return json.dumps(board(), indent=1) + "\n"


if __name__ == "__main__":
    BOARD.write_text(text(), encoding="utf-8")
