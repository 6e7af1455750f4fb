"""The generated pages are current and complete, and every page has its place."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import tomllib

import pytest

from tests.test_docs import ROOT
from tools.reference import DOCS, pages, public_errors
from tools.reference_contents import PAGES, SECTIONS

MODULES = ["walstore", "uploader", "uploader.stores", "walstore.messages", "walstore.metrics"]
MODULES += [
    "walstore.serve",
    "walstore.sync",
    "walstore.spark",
    "walstore.kits.fastapi",
    "walstore.kits.taskiq",
    "walstore.kits.typed",
    "walstore.testing",
    "uploader.testing",
]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The pages, made once a test needs them: each process of the tests collects this module."""
    return pages()


def test_every_generated_page_is_current(made: dict[str, str]) -> None:
    outdated = [name for name, text in made.items() if (DOCS / name).read_text() != text]
    assert not outdated, "run: python -m tools.reference"


def test_no_generated_page_is_left_over(made: dict[str, str]) -> None:
    assert {f"reference/{path.name}" for path in (DOCS / "reference").iterdir()} == {
        name for name in made if name.startswith("reference/")
    }


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name(module: str) -> None:
    found = importlib.import_module(module)
    shown = {name for page in PAGES for names in page.names.values() for name in names.split()}
    shown |= {error.__name__ for error in public_errors()}
    assert {name for name in found.__all__ if not inspect.ismodule(getattr(found, name))} <= shown


def test_help_shows_every_field_of_settings() -> None:
    settings = next(page for page in PAGES if page.name == "settings")
    for module, names in settings.names.items():
        for name in names.split():
            kind = getattr(importlib.import_module(module), name)
            listed = re.findall(r"^(\w+):$", inspect.getdoc(kind) or "", re.MULTILINE)
            assert set(listed) - {"Fields"} == {field.name for field in dataclasses.fields(kind)}, (
                name
            )


def test_every_page_is_in_a_section_and_in_the_navigation(made: dict[str, str]) -> None:
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    sections = {f"{name}.md" for names in SECTIONS.values() for name in names.split()}
    assert sections | {name for name in made if name.endswith(".md")} == there
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    assert set(re.findall(r"[\w/]+\.md", str(project["nav"]))) == there


def test_the_index_links_to_every_page() -> None:
    """But for the pages of the reference, which has an index of its own."""
    text = (DOCS / "index.md").read_text()
    linked = set(re.findall(r"\]\(([\w/]+\.md)\)", text))
    assert {f"{path.stem}.md" for path in DOCS.glob("*.md")} - {"index.md"} <= linked
