"""docs/guarantees.md is right about tests: those that it names exist, and it defines ids in their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cases import case
from tests.named import ROOT, functions, is_there
from tests.sim.rules import RULES

PAGE = ROOT.parent / "docs" / "guarantees.md"
CLASSES = "Classes of defects"
"""Section of ids that tests of any file may have in their names; others belong to the files of their row."""
AWAITED: set[str] = set()
"""Files that are on their way; a name here goes once its file is there."""


class Row(NamedTuple):
    """A row of a table that names tests."""

    section: str
    id: str
    tests: tuple[str, ...]


def rows() -> Iterator[Row]:
    """Return all rows of the page that name tests, with the id in their first cell or an empty one."""
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("##"):
            section = line.lstrip("#").strip()
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or cells[-1] == "proved by" or section == "Assumptions":
            continue
        named = re.fullmatch(r"([A-Z]\d+)|`([a-z-]+)`", cells[0])
        yield Row(section, named[1] or named[2] if named else "", tuple(_tests(cells[-1])))


def _tests(cell: str) -> Iterator[str]:
    """Return the tests that a cell names; one without a file is in the file named before it."""
    file = ""
    for name in re.findall(r"`([\w/.:]*test_[\w/.:]+)`", cell):
        path, _, test = name.partition("::")
        file = path or file
        yield f"{file}::{test}" if test else file


ROWS = list(rows())


def file_of(test: str) -> str:
    return test.partition("::")[0]


def test_the_tests_of_a_row_are_there() -> None:
    for row in ROWS:
        with case(row):
            assert row.tests
            for test in row.tests:
                if "::" in test:
                    assert is_there(test), test
                else:
                    assert (ROOT / test).is_file() or test in AWAITED, test


def test_what_is_awaited_has_not_come() -> None:
    assert {name for name in AWAITED if (ROOT / name).is_file()} == set()


def test_prose_names_tests_that_are_there() -> None:
    text = re.sub(r"^\|.*$", "", PAGE.read_text(), flags=re.MULTILINE)
    for name in re.findall(r"`(?:tests/)?(\w+/test_\w+\.py(?:::\w+)?)`", text):
        assert is_there(name) if "::" in name else (ROOT / name).is_file(), name


def test_ids_are_defined_once_in_a_section() -> None:
    ids = [(row.section, row.id) for row in ROWS if row.id]
    assert len(ids) == len(set(ids))


def cited() -> set[tuple[str, str]]:
    """Return each id in the name of a test, with the test's file."""
    found = set()
    for path in ROOT.rglob("test_*.py"):
        if not re.search(r"def test_[A-Z]\d", path.read_text()):
            continue  # most files: parsing is slow
        for name in functions(path):
            ids = re.match(r"test((?:_[A-Z]\d+)+)_", name)
            for one in ids[1].strip("_").split("_") if ids else ():
                found.add((one, path.relative_to(ROOT).as_posix()))
    return found


def test_every_id_in_the_name_of_a_test_is_defined() -> None:
    anywhere = {row.id for row in ROWS if row.section == CLASSES}
    defined = {(row.id, file_of(test)) for row in ROWS for test in row.tests}
    missing = {(one, file) for one, file in cited() - defined if one not in anywhere}
    assert not missing


def test_all_ids_are_there() -> None:
    """Those of the local log and of the classes of defects have no gaps."""
    by_section: dict[str, list[str]] = {}
    for row in ROWS:
        by_section.setdefault(row.section, []).append(row.id)
    assert by_section["Local log"] == [f"L{at}" for at in range(1, 17)]
    assert by_section[CLASSES] == [
        *(f"S{at}" for at in range(1, 18)),
        *(f"U{at}" for at in range(1, 7)),
    ]


def test_the_rules_are_those_of_the_simulation() -> None:
    assert [row.id for row in ROWS if row.section == "Rules of a log"] == list(RULES)


def modules() -> dict[str, Path]:
    """Return which module each section is about."""
    links = re.findall(r"^### (.+)\n\n`(\w+/\S+\.py)`", PAGE.read_text(), re.MULTILINE)
    return {section: ROOT.parent / module for section, module in links}


def test_invariants_are_those_of_the_docstring() -> None:
    for section in modules():
        with case(section):
            text = ast.get_docstring(ast.parse(modules()[section].read_text())) or ""
            stated = re.findall(r"^  ([A-Z]\d+)  ", text, re.MULTILINE)
            assert stated
            assert [row.id for row in ROWS if row.section == section] == stated
