"""The report of benchmarks: its arithmetic, its tables, and a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.report.__main__ import LATEST, ROOT, pages
from bench.report.figures import (
    Report,
    format_value,
    markdown,
    percentile,
    schedule,
    short_table,
    tables,
)

GROUP = "a group"


def report() -> Report:
    made = Report({"cores": "2"})
    for own, raw, peer in ((100.0, 200.0, 50.0), (90.0, 100.0, 30.0), (80.0, 100.0, 45.0)):
        made.add(GROUP, "walstore", "records/s", "/s", own, "synced")
        made.add(GROUP, "raw: write + fdatasync", "records/s", "/s", raw, "synced")
        made.add(GROUP, "SQLite", "records/s", "/s", peer, "synced")
    made.add("lone", "walstore", "p50", "us", 300.0, "synced")
    made.add("lone", "walstore", "p99", "us", 1234.0, "synced")
    made.add("lone", "raw: write", "p50", "us", 200.0, "synced")
    made.curves["latency"] = {"p50": [(1.0, 2.0)]}
    made.skipped["LMDB"] = "the module lmdb"
    return made


def test_ratios_are_those_of_the_rounds() -> None:
    found = dict(tables(report()))
    head, *rows = found[GROUP]
    assert head[1] == "records/s"
    assert [row[:3] for row in rows] == [
        ["walstore", "90/s", ""],
        ["raw: write + fdatasync", "100/s", "0.80 ×"],
        ["SQLite", "45/s", "2.00 ×"],
    ]
    assert found["lone"][2][:4] == ["raw: write", "200 µs", "", "1.50 × as long"]


def test_the_short_table() -> None:
    lines = short_table(report()).splitlines()
    assert lines[2:] == [
        "| a group | 90/s | write + fdatasync 100/s | SQLite 45/s |",
        "| lone | p50 300 µs, p99 1.23 ms | write 200 µs |  |",
    ]


def test_a_report_is_stored_and_read() -> None:
    made = report()
    assert Report.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_percentiles_are_values_of_the_sample() -> None:
    sample = [float(number) for number in range(1, 101)]
    assert [percentile(sample, share) for share in (0.0, 0.5, 0.99, 0.999, 1.0)] == [
        1,
        50,
        99,
        100,
        100,
    ]
    assert percentile([7.0], 0.5) == 7


def test_an_open_loop_keeps_its_rate() -> None:
    assert list(schedule(4, 1.0)) == [0.0, 0.25, 0.5, 0.75]
    assert len(list(schedule(10_000, 0.5))) == 5000


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1234, "us", "1.23 ms"),
        (12.34, "us", "12.3 µs"),
        (1.5e6, "/s", "1.5 M/s"),
        (2e3, "/s", "2 k/s"),
        (3, "KiB", "3 KiB"),
    ],
)
def test_numbers_for_people(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_a_table() -> None:
    assert markdown([["a", "b"], ["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"


def test_the_documentation_shows_the_latest_run() -> None:
    for path, text in pages(Report.from_json(json.loads(LATEST.read_text()))).items():
        assert path.read_text() == text, "python -m bench.report --readme docs/benchmarks.json"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run(tmp_path: Path) -> None:
    """All suites but those with servers and Spark; it is no measurement."""
    names = ("groups", "lone", "latency", "catching_up", "recovery", "memory")
    command = [sys.executable, "-m", "bench.report", "--quick", "--output", str(tmp_path)]
    subprocess.run([*command, *(f"--suite={name}" for name in names)], check=True, cwd=ROOT)
    found = Report.from_json(json.loads((tmp_path / "report.json").read_text()))
    assert {one.system for one in found.figures} >= {"walstore", "SQLite"}
    assert all(value > 0 for one in found.figures for value in one.values)
    page = (tmp_path / "report.md").read_text()
    assert "## a lone `append` of 1 KiB" in page
    assert set(found.curves) == {"lone", "latency", "recovery", "memory"}
