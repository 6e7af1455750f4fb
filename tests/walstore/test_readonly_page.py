"""docs/readonly.md tells the truth: its programs print what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_docs import ROOT, run, snippets
from walstore.log_watch import LONGEST_POLL_SECONDS, SHORTEST_POLL_SECONDS

PAGE = (ROOT / "docs" / "readonly.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_the_programs_of_the_page_run(tmp_path: Path, number: int) -> None:
    code, output = snippets(PAGE)[number]
    assert run(code, tmp_path) == output


def test_the_defaults_are_those_of_the_page() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert rows == {
        "shortest_poll_seconds": str(SHORTEST_POLL_SECONDS),
        "longest_poll_seconds": str(LONGEST_POLL_SECONDS),
    }
