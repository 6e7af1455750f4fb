"""The program of docs/metrics.md runs and prints what the page says."""

from __future__ import annotations

from pathlib import Path

from tests.test_docs import run, snippets

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    """In a process of its own, since it uses the default registry and a thread."""
    found = snippets(PAGE.read_text(encoding="utf-8"))
    assert len(found) == 1
    for code, output in found:
        assert run(code, tmp_path) == output
