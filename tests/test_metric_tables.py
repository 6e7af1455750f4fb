"""docs/metrics.md shows the metrics that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import metric_tables as table
from walstore.metrics.definitions import HISTOGRAMS, METRICS

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def test_the_page_is_up_to_date() -> None:
    """If this fails: python -m tools.metric_tables docs/metrics.md."""
    page = PAGE.read_text(encoding="utf-8")
    assert table.replace(page) == page


def test_every_metric_has_a_row() -> None:
    rows = table.render().splitlines()
    many = [METRICS, *table.OBJECTS.values()]
    names = [metric.full_name for metrics in many for metric in metrics]
    for name in (*names, *(metric.name for metric in HISTOGRAMS)):
        assert sum(row.startswith(f"| `{name}` |") for row in rows) == 1
    cells = [row for row in rows if row.startswith("|")]
    assert all(row.count("|") == 5 for row in cells)


def test_replacing_changes_only_what_is_between_the_markers() -> None:
    page = f"before\n{table.BEGIN}\nstale\n{table.END}\nafter\n"
    renewed = table.replace(page)
    assert renewed.startswith(f"before\n{table.BEGIN}\n")
    assert renewed.endswith(f"{table.END}\nafter\n")
    assert "stale" not in renewed
    assert table.replace(renewed) == renewed


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="the page must have"):
        table.replace("no markers\n")


def test_the_command_prints_or_renews(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{table.BEGIN}\nold\n{table.END}\n")
    table.main([str(page)])
    assert table.render() in page.read_text()
    assert capsys.readouterr().out == ""
    table.main([])
    assert capsys.readouterr().out == f"{table.render()}\n"
