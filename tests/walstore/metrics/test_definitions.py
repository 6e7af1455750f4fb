"""The metrics are named as Prometheus and this project want it, and show what statistics hold."""

from __future__ import annotations

import dataclasses
import re

from tests.observed import COPY, GROUP, SCRUB, UPLOAD, NumbersLog
from walstore import Statistics
from walstore.core.runtime.metric import MetricKind, Scope
from walstore.metrics.definitions import HISTOGRAMS, METRICS

UNITS = ("_seconds", "_bytes", "_records", "_offset")


def test_names_follow_the_conventions() -> None:
    names = [metric.name for metric in (*METRICS, *HISTOGRAMS)]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"walstore(_[a-z]+)+", name)
        assert not name.endswith("_total"), "the adapter adds it"
        assert not any(unit + "_" in name for unit in UNITS), f"the unit of {name} is not last"
    assert all(metric.name.endswith(UNITS) for metric in HISTOGRAMS)


def test_help_is_a_sentence_that_fits_a_table() -> None:
    for metric in (*METRICS, *HISTOGRAMS):
        assert metric.help.endswith(".")
        assert "|" not in metric.help
        assert "\n" not in metric.help


def test_every_field_of_the_statistics_is_shown() -> None:
    """Changing any field changes what is shown."""
    plain = NumbersLog()
    hidden = {"epoch"}  # how often a log was opened is nothing to watch
    for field in dataclasses.fields(Statistics):
        if field.name in hidden:
            continue
        other: object = 7
        if field.name in ("errors", "cursor_lag_records"):
            other = {"name": 7}
        if field.name == "groups":
            other = {"workers": GROUP}
        if field.name == "upload":
            other = UPLOAD
        if field.name in ("scrub", "last_scrub"):
            other = SCRUB
        if field.name == "copies":
            other = (COPY,)
        if field.name.endswith(("failure", "trouble")):
            other = "no space left"
        changed = NumbersLog(**{field.name: other}).statistics()
        shown = [metric.read(changed) != metric.read(plain.statistics()) for metric in METRICS]
        assert any(shown), field.name


def test_values_have_as_many_labels_as_names() -> None:
    statistics = NumbersLog(
        errors={"DiskFullError": 1},
        cursor_lag_records={"billing": 1},
        groups={"workers": GROUP},
        upload=UPLOAD,
        copies=(COPY,),
        replicated_limit=3,
        scrub=SCRUB,
        last_scrub=SCRUB,
    ).statistics()
    for metric in METRICS:
        values = metric.read(statistics)
        assert values
        assert all(len(labels) == len(metric.labels) for labels in values)


def test_what_survives_a_log_is_counted() -> None:
    """All but the number of open logs."""
    gauges = [m.name for m in METRICS if m.scope is Scope.PROCESS and m.kind is MetricKind.GAUGE]
    assert gauges == ["walstore_logs"]
