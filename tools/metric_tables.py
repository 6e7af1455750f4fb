"""Print the tables of docs/metrics.md, or update them in given pages: ``python -m tools.metric_tables``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from uploader.stores.metering import METRICS as STORE_METRICS
from uploader.write.writer_settings import WRITER_METRICS
from walstore.core.runtime.metric import Metric, MetricKind, Scope
from walstore.http.http_server import HTTP_METRICS
from walstore.metrics.definitions import HISTOGRAMS, METRICS, HistogramMetric
from walstore.serve.figures import SERVER_METRICS

Row = tuple[str, str, str, str]
"""Cells: metric, type, labels, meaning."""

BEGIN: Final = "<!-- made by python -m tools.metric_tables: begin -->"
END: Final = "<!-- made by python -m tools.metric_tables: end -->"

OBJECTS: Final = {
    "`Server`": SERVER_METRICS,
    "`HttpServer`": HTTP_METRICS,
    "`MeteredStore`": STORE_METRICS,
    "`CloudWriter`": WRITER_METRICS,
}
"""Objects that are watched."""


def render() -> str:
    """Return the tables: one about each log, one about the process, and one for each kind of object."""
    logs = [_histogram_row(metric) for metric in HISTOGRAMS]
    logs += [_row(metric) for metric in METRICS if metric.scope is Scope.LOG]
    process = [_row(metric) for metric in METRICS if metric.scope is Scope.PROCESS]
    lines = ["### Each log", "", *_table(logs), "", "### The process", "", *_table(process)]
    for title, metrics in OBJECTS.items():
        lines += ["", f"### {title}", "", *_table([_row(metric) for metric in metrics])]
    return "\n".join(lines)


def replace(page: str) -> str:
    """Return the page with new tables between the markers; ValueError without markers."""
    pattern = re.compile(f"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", re.DOTALL)
    found, count = pattern.subn(lambda _: f"\n{render()}\n\n", page)
    if count != 1:
        raise ValueError(f"the page must have the line {BEGIN!r} and after it {END!r}, once")
    return found


def _histogram_row(metric: HistogramMetric) -> Row:
    bounds = ", ".join(_number(bound) for bound in metric.bounds)
    text = f"{metric.help} Bounds: {bounds}."
    return f"`{metric.name}`", str(MetricKind.HISTOGRAM), "`log`", text


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:.5f}".rstrip("0").rstrip(".")


def _row(metric: Metric) -> Row:
    names = ", ".join(f"`{name}`" for name in metric.label_names)
    return f"`{metric.full_name}`", str(metric.kind), names, metric.help


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [("metric", "type", "labels", "meaning"), ("---",) * 4, *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def main(pages: list[str]) -> None:
    """Update the tables of each page, or print them if none is given."""
    if not pages:
        sys.stdout.write(f"{render()}\n")
    for name in pages:
        page = Path(name)
        page.write_text(replace(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
