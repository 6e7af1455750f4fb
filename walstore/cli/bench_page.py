"""Bench page: what ``walstore bench`` found, as one HTML page without anything from elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Final

from walstore.cli.measurement import BenchResults, Measured, MeasurePlan
from walstore.cli.output import format_count
from walstore.cli.page import html_page, html_table
from walstore.cli.plot import STYLE, Plot, PlotLine

COLUMNS: Final = ("measured", "records", "records/s", "MB/s", "p50 ms", "p99 ms")
_RATIO_COLUMNS: Final = ("rate / disk", "p50 / disk", "p99 / disk")
_OURS: Final = "walstore"
_DISK: Final = "write + fdatasync alone"

_ABOUT: Final = """\
How fast this disk is, and a log on it. Figures of a busy machine say little. Machines differ by a factor, so
compare the ratios."""
_ABOUT_FIGURES: Final = """\
Every append waits until it is on disk. The last three columns divide a figure by that of the first row, a
write + fdatasync of one record without a log: a rate above 1 is faster than the disk alone, a latency above 1
is slower. A log reserves the blocks of its segments, as the first row does; with retention it goes on in
blocks that were written before. A call of <code>append_many</code> appends all of its records. Catching up
reads, so it is not compared."""


def bench_page(plan: MeasurePlan, results: BenchResults, machine: Mapping[str, str]) -> str:
    """Return the page. ``machine`` names what the figures depend on, in the order of its rows."""
    facts = {
        **machine,
        "measured for": f"{plan.seconds:g} s",
        "producers": format_count(plan.producers),
        "size of a record": f"{format_count(plan.record_bytes)} B",
    }
    parts = [
        f"<p>{_ABOUT}</p>",
        "<h2>Machine</h2>",
        html_table((), facts.items()),
        "<h2>Figures</h2>",
        html_table((*COLUMNS, *_RATIO_COLUMNS), _rows_with_ratios(plan, results)),
        f"<p>{_ABOUT_FIGURES}</p>",
        *(part for plot in _plots(plan, results) for part in _section(plot)),
    ]
    return html_page("walstore bench", parts, style=STYLE)


def result_rows(plan: MeasurePlan, results: BenchResults) -> list[tuple[str, ...]]:
    """Return a row of text for each part, in the order of :data:`COLUMNS`."""
    return [
        (
            one.name,
            format_count(one.records),
            format_count(one.per_second),
            f"{one.per_second * plan.record_bytes / 1e6:.1f}",
            _milliseconds(one.p50_ms),
            _milliseconds(one.p99_ms),
        )
        for one in results.rows
    ]


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _rows_with_ratios(plan: MeasurePlan, results: BenchResults) -> Iterator[tuple[str, ...]]:
    raw = results.parts[0]
    for one, row in zip(results.rows, result_rows(plan, results), strict=True):
        rate = one.per_second if one.latency_ms else None
        pairs = ((rate, raw.per_second), (one.p50_ms, raw.p50_ms), (one.p99_ms, raw.p99_ms))
        yield (*row, *(_ratio(value, base) for value, base in pairs))


def _ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.2f}" if value is not None and base else "-"


def _plots(plan: MeasurePlan, results: BenchResults) -> Iterator[Plot]:
    raw, lone = results.parts[:2]
    rates = sorted(
        (producers, one.per_second)
        for (producers, size), one in results.appends.items()
        if size == plan.record_bytes
    )
    disk = [(producers, raw.per_second) for producers, _ in (rates[0], rates[-1])]
    yield Plot(
        f"Durable appends by number of producers, {plan.record_bytes} B each",
        "producers",
        "durable appends/s",
        (PlotLine(_OURS, rates), PlotLine(_DISK, disk)),
    )
    yield Plot(
        f"Latency of a lone append, {plan.record_bytes} B",
        "latency in ms",
        "% of calls that took no longer",
        (PlotLine(f"{_OURS}, 1 producer", _shares(lone)), PlotLine(_DISK, _shares(raw))),
    )
    speeds = sorted(
        (size, one.per_second * size / 1e6)
        for (producers, size), one in results.appends.items()
        if producers == plan.producers
    )
    yield Plot(
        f"Throughput by size of a record, producers: {plan.producers}",
        "bytes of a record",
        "MB/s of durable appends",
        (PlotLine(_OURS, speeds),),
    )


def _shares(one: Measured) -> list[tuple[float, float]]:
    """Return the points of a distribution: a latency, and how many percent are not slower."""
    last = max(len(one.latency_ms) - 1, 1)
    return [(value, 100 * at / last) for at, value in enumerate(one.latency_ms)]


def _section(plot: Plot) -> tuple[str, str]:
    return f"<h2>{escape(plot.title)}</h2>", plot.to_svg()
