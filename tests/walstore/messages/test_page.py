"""docs/messages.md: its programs run and print what the page says."""

from __future__ import annotations

from pathlib import Path

from tests.test_docs import run, snippets

PAGE = Path(__file__).parents[3] / "docs" / "messages.md"


def test_programs_of_the_page(tmp_path: Path) -> None:
    found = snippets(PAGE.read_text())
    assert len(found) == 2
    for code, output in found:
        assert run(code, tmp_path) == output


def test_the_pipeline_may_run_again(tmp_path: Path) -> None:
    code, output = snippets(PAGE.read_text())[0]
    assert run(code, tmp_path) == run(code, tmp_path) == output
