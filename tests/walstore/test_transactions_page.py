"""docs/transactions.md tells the truth: its programs run in order and print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import ROOT, run, snippets


@pytest.mark.slow
def test_the_programs_of_the_page_run_in_order(tmp_path: Path) -> None:
    found = snippets((ROOT / "docs/transactions.md").read_text())
    assert len(found) == 5
    for code, output in found:
        assert run(code, tmp_path) == output
