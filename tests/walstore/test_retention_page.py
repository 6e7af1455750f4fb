"""docs/retention.md tells the truth: its programs print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import ROOT, run, snippets

FOUND = snippets((ROOT / "docs" / "retention.md").read_text())


@pytest.mark.slow
def test_the_programs_of_the_page_run_in_order(tmp_path: Path) -> None:
    """Each runs on what the ones before left."""
    assert len(FOUND) == 2
    for code, output in FOUND:
        printed = run(code, tmp_path)
        assert printed == output
