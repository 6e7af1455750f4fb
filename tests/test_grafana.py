"""The board and the alerts in the package ask for metrics that there are."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path

import yaml

from tools import grafana
from tools.metric_tables import OBJECTS
from uploader.versioned.collection_metrics import METRICS as COLLECTION_METRICS
from walstore.core.runtime.metric import Metric, MetricKind
from walstore.metrics.definitions import HISTOGRAMS, METRICS

ALERTS = grafana.BOARD.with_name("alerts.yml")
SELECTOR = re.compile(r"\b(walstore_[a-z_]+)")


def samples() -> dict[str, set[str]]:
    """Labels of each name that Prometheus may be asked for."""
    found: dict[str, set[str]] = {}
    ours: list[Metric] = [*METRICS, *chain.from_iterable(OBJECTS.values())]
    for metric in ours:
        names = [metric.full_name]
        if metric.kind is MetricKind.HISTOGRAM:
            names = [metric.name + suffix for suffix in ("_bucket", "_sum", "_count")]
        found |= {name: {*metric.label_names, "le"} for name in names}
    for histogram in HISTOGRAMS:
        for suffix in ("_bucket", "_sum", "_count"):
            found[histogram.name + suffix] = {"log", "le"}
    return found | {one.full_name: set(one.labels) for one in COLLECTION_METRICS}


def alerts() -> list[dict[str, str]]:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rules: list[dict[str, str]] = group["rules"]
    return rules


def test_the_board_is_up_to_date() -> None:
    """If this fails: python -m tools.grafana."""
    assert grafana.BOARD.read_text(encoding="utf-8") == grafana.text()


def test_each_query_of_the_board_asks_for_metrics_and_labels_that_there_are() -> None:
    known = samples()
    for panel in json.loads(grafana.text())["panels"]:
        for query in panel.get("targets", ()):
            names = SELECTOR.findall(query["expr"])
            assert names, panel["title"]
            shown = set.intersection(*(known[name] for name in names))
            legend = set(re.findall(r"\{\{(\w+)\}\}", query["legendFormat"]))
            assert legend <= shown, panel["title"]
            assert ('log=~"$log"' in query["expr"]) == ("log" in shown), panel["title"]


def test_panels_do_not_overlap() -> None:
    places = set()
    for panel in grafana.board()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & places, panel["title"]
        places |= cells


def test_each_alert_asks_for_metrics_that_there_are_and_says_what_to_do() -> None:
    known = samples()
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        names = SELECTOR.findall(rule["expr"])
        assert names, rule["alert"]
        shown = set.intersection(*(known[name] for name in names))
        notes: dict[str, str] = dict(rule["annotations"])
        assert set(re.findall(r"\$labels\.(\w+)", notes["summary"])) <= shown, rule["alert"]
        assert notes["description"].endswith("."), rule["alert"]


def test_each_metric_of_an_alert_is_in_the_docs() -> None:
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
    for rule in alerts():
        for name in SELECTOR.findall(rule["expr"]):
            assert f"`{name.removesuffix('_bucket')}`" in page
