"""docs/readonly.md names the defaults as they are."""

from __future__ import annotations

import re

from tests.test_docs import ROOT
from walstore.core.read.log_watch import LONGEST_POLL_SECONDS, SHORTEST_POLL_SECONDS

PAGE = (ROOT / "docs" / "readonly.md").read_text()


def test_the_defaults_are_those_of_the_page() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert rows == {
        "shortest_poll_seconds": str(SHORTEST_POLL_SECONDS),
        "longest_poll_seconds": str(LONGEST_POLL_SECONDS),
    }
