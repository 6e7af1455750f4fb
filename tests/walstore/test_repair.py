"""walstore.repair has the public names of what repairs a log."""

from __future__ import annotations

import importlib
import sys

import pytest

import walstore.repair
from walstore.care import repair


def test_it_has_the_public_names() -> None:
    assert walstore.repair.__all__ == repair.__all__
    for name in repair.__all__:
        assert getattr(walstore.repair, name) is getattr(repair, name)


def test_the_old_module_says_where_they_are() -> None:
    sys.modules.pop("walstore.repair.repairing", None)
    with pytest.warns(DeprecationWarning, match="import apply_repair and plan_repair from there"):
        old = importlib.import_module("walstore.repair.repairing")
    assert old.plan_repair is walstore.repair.plan_repair
