"""docs/streams.md tells the truth: its program runs and prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import ROOT, run, snippets


@pytest.mark.slow
def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    ((code, output),) = snippets((ROOT / "docs/streams.md").read_text())
    assert run(code, tmp_path) == output
