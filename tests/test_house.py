"""The house: names that stand once, and mentions of files that are there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [path for top in ("walstore", "uploader") for path in sorted((ROOT / top).rglob("*.py"))]
MENTION = re.compile(r"``((?:[a-z_]+/)*[a-z_0-9]+\.py)``|\(((?:[a-z_]+/)*[a-z_0-9]+\.py)\)")


def test_no_class_name_stands_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE):
            places[name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("top", ["walstore", "uploader", "bench", "docs"])
def test_mentions_name_files_that_are_there(top: str) -> None:
    folders = ("walstore", "uploader", "tests", "bench", "examples")
    paths = [f"/{path.relative_to(ROOT)}" for one in folders for path in (ROOT / one).rglob("*.py")]
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / top).rglob("*.*"))
        if path.suffix in (".py", ".md")
        for name in (found[0] or found[1] for found in MENTION.findall(path.read_text()))
        if not any(known.endswith(f"/{name}") for known in paths)
    ]
    assert missing == []


def test_every_package_says_what_is_in_it() -> None:
    for path in SOURCES:
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text())), path
