"""What is public, as docs/api.md promises: the list of names and signatures is changed on purpose only."""

from __future__ import annotations

import sys
import warnings

import pytest

from tests.test_docs import ROOT
from tools.api import listed, signatures
from tools.reference_contents import PAGES


@pytest.fixture(scope="module")
def now() -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old names are public yet
        return signatures()


def test_no_public_name_is_gone(now: dict[str, str]) -> None:
    """An old name lives for one version, with a DeprecationWarning that says what to write."""
    assert not set(listed()) - set(now), "python -m tools.api --forget once its version is over"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="signatures are shown as by 3.11")
def test_signatures_are_those_of_the_list(now: dict[str, str]) -> None:
    changed = {name for name, line in now.items() if listed().get(name) != line}
    assert not changed, "python -m tools.api, and say it in CHANGELOG.md"


def test_the_page_names_every_module_of_the_list() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    modules = {module for shown in PAGES for module in shown.names}
    assert {name for name in modules if f"`{name}`" not in page} == set()
