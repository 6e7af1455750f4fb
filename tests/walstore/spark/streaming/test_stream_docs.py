"""docs/spark_streaming.md tells of every option. ``test_docs.py`` runs its program."""

from __future__ import annotations

import re

from tests.test_docs import ROOT
from walstore.spark.options import STREAM_KNOWN

PAGE = (ROOT / "docs" / "spark_streaming.md").read_text()


def test_every_option_is_told():
    table = PAGE.partition("## Options")[2].partition("\n## ")[0]
    told = set(re.findall(r"`(\w+)`", table))
    assert set(STREAM_KNOWN) - {"path"} <= told
