"""docs/messages.md: its pipeline may run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import run, snippets

PAGE = Path(__file__).parents[3] / "docs" / "messages.md"


@pytest.mark.slow
def test_the_pipeline_may_run_again(tmp_path: Path) -> None:
    code, output = snippets(PAGE.read_text())[0]
    assert run(code, tmp_path) == run(code, tmp_path) == output
