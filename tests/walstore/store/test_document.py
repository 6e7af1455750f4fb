"""docs/store.md tells the truth."""

from __future__ import annotations

import dataclasses
import re

from tests.test_docs import ROOT
from walstore import StoreSettings
from walstore.core.settings import MIB
from walstore.store.directory import directory_of

PAGE = (ROOT / "docs/store.md").read_text()


def test_the_table_has_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d[\w ]*) \|", PAGE, re.MULTILINE))
    defaults = dataclasses.asdict(StoreSettings())
    shown = {
        name: f"{value // MIB} MiB" if name.endswith("_bytes") else str(value)
        for name, value in defaults.items()
    }
    assert rows == shown


def test_the_example_of_a_directory_is_right() -> None:
    assert "`orders/0` is in `orders%2F0`" in PAGE
    assert directory_of("orders/0") == "orders%2F0"
