"""What a report leaves: a page, the figures as JSON, and plots."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from bench import peer_servers
from bench.report.figures import Report, markdown, tables
from walstore.cli.machine import file_system, processor

PLOTS: Final = {
    "lone": ("A lone append of 1 KiB", "µs", "share of appends", "log"),
    "producers": ("Durable appends by producers", "tasks that append", "appends/s", "log"),
    "latency": ("Latency under load, open loop", "appends/s", "µs", "linear"),
    "recovery": ("Opening after a kill", "MiB written", "ms", "linear"),
    "memory": ("Memory of open logs", "logs", "MiB", "linear"),
    "cost": ("Requests for a GB of 1 KiB records, list prices", "appends/s", "US dollars", "log"),
}
"""Of each plot: title, names of the axes, and the scale of the first."""


def machine(directory: Path) -> dict[str, str]:
    """Return what the figures depend on."""
    versions = {}
    for name in (
        "aiosqlite",
        "uvloop",
        "lmdb",
        "rocksdict",
        "persist-queue",
        "redis",
        "nats-py",
        "pyspark",
    ):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    versions |= peer_servers.versions()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "disk": file_system(directory),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        **versions,
    }


def page(report: Report) -> str:
    """Return the report as a page."""
    lines = ["# walstore compared with its peers", ""]
    lines += [
        "Made by `make bench-report`: rounds interleaved, medians; latencies count from the moment"
    ]
    lines += [
        "at which an append was due, which its timer misses by up to a millisecond. Compare ratios:"
    ]
    lines += ["machines differ by a factor.", ""]
    lines += [
        markdown([["machine", ""], *([name, value] for name, value in report.machine.items())])
    ]
    for title, rows in tables(report):
        lines += [f"## {title}", "", markdown(rows)]
    lines += [f"![{PLOTS[name][0]}]({name}.svg)\n" for name in report.curves if name in PLOTS]
    if report.skipped:
        lines += ["## Not measured", ""]
        lines += [f"* {name}: needs {what}" for name, what in report.skipped.items()]
    return "\n".join(lines).rstrip() + "\n"


def machine_table(report: Report) -> str:
    """Return what the figures depend on, as a table."""
    return markdown([["machine", ""], *([name, value] for name, value in report.machine.items())])


def write(report: Report, output: Path) -> list[Path]:
    """Write page, figures and, where matplotlib is, plots; return the files."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "report.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
    plots = []
    try:
        plots = _plot(report, output)
    except ImportError:
        report.skipped["plots"] = "the module matplotlib for Python"
    (output / "report.md").write_text(page(report))
    return [output / "report.md", output / "report.json", *plots]


def _plot(report: Report, output: Path) -> list[Path]:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "walstore"
    from matplotlib import pyplot as plt

    made = []
    for name, lines in report.curves.items():
        if name not in PLOTS:
            continue
        title, across, up, scale = PLOTS[name]
        figure: Any
        figure, axes = plt.subplots(figsize=(7, 4))
        for label, points in lines.items():
            xs, ys = zip(*sorted(points), strict=True)
            axes.plot(xs, ys, label=label, marker="" if len(xs) > 20 else "o")
        axes.set(title=title, xlabel=across, ylabel=up, xscale=scale)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        figure.tight_layout()
        path = output / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        made.append(path)
    return made
