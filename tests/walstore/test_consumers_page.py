"""docs/consumers.md tells the truth: its snippets run in order and print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import run, snippets
from walstore import Wal

PAGE = Path(__file__).parents[2] / "docs" / "consumers.md"


@pytest.mark.skipif(not hasattr(Wal, "consumer"), reason="Wal.consumer is not there yet")
@pytest.mark.slow
def test_the_snippets_run_in_order(tmp_path: Path) -> None:
    found = snippets(PAGE.read_text())
    assert len(found) == 4
    for code, output in found:
        assert run(code, tmp_path) == output
