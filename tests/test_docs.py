"""The documentation tells the truth: its snippets run, and its tables name what exists."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import programs
from uploader import UploadSettings
from walstore import Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def snippets(text: str) -> list[tuple[str, str | None]]:
    """Return each Python block with the plain block that follows it directly, if any."""
    found = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", text, re.DOTALL)
    return [(code, output or None) for code, output in found]


def run(
    code: str,
    directory: Path,
    *,
    timeout_seconds: float = 120,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program as a reader of the page would; return what it prints."""
    done = programs.run(
        code,
        directory=directory,
        imports=programs.CLOUD,
        environment=environment,
        seconds=timeout_seconds,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_readme_snippets_run_in_order(tmp_path: Path) -> None:
    """Each snippet runs on what the ones before left, and prints what the page says."""
    found = snippets(README)
    assert len(found) == 3
    for code, output in found:
        if "spark" in code and shutil.which("java") is None:
            continue
        printed = run(code, tmp_path)
        if output is not None:
            assert printed == output


PAGES = {
    "chain": 1,
    "cloud_reading": 1,
    "cloud_writer": 2,
    "collection": 1,
    "concepts": 1,
    "consumers": 5,
    "integrity": 6,
    "kits": 2,
    "messages": 2,
    "metrics": 5,
    "open_tables": 1,
    "operations": 2,
    "query": 3,
    "readonly": 2,
    "restore": 1,
    "retention": 2,
    "several_processes": 3,
    "store": 2,
    "stores": 1,
    "streams": 1,
    "testing": 3,
    "transactions": 5,
    "tutorial": 6,
    "versioned_collections": 2,
    "web_application": 1,
    "work_queue": 2,
    "replication": 1,
    "cluster": 1,
}
"""How many programs each page has."""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    """Each runs on what the ones before left, and prints what the page says."""
    found = snippets((ROOT / "docs" / f"{page}.md").read_text())
    assert len(found) == PAGES[page]
    for number, (code, output) in enumerate(found):
        directory = tmp_path if page != "readonly" else tmp_path / str(number)
        directory.mkdir(exist_ok=True)
        assert run(code, directory) == output


def test_no_page_with_programs_is_forgotten() -> None:
    """All but those whose commands are run by tests of their own."""
    found = {path.stem for path in (ROOT / "docs").glob("*.md") if "```python" in path.read_text()}
    elsewhere = {"repair", *(page for page in found if page.startswith("spark"))}
    assert found - elsewhere == PAGES.keys()


def test_readme_is_short() -> None:
    """A newcomer reads it to its end."""
    assert len(README.splitlines()) <= 100


def test_the_package_index_shows_no_link_that_leads_nowhere() -> None:
    """What is built has no links relative to the repository."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = config["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    shown = README
    for change in hook["substitutions"]:
        shown = re.sub(change["pattern"], change["replacement"], shown)
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
    ids=lambda path: path.name,
)
def test_links_lead_somewhere(path: Path) -> None:
    """Relative links name files of the repository."""
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
    ids=lambda path: path.name,
)
def test_the_modules_that_a_page_names_exist(path: Path) -> None:
    """By their path; or by their name alone, wherever they are."""
    for name in re.findall(r"`((?:[\w.]+/)*\w+\.py)`", path.read_text()):
        found = (ROOT / name).exists() or (ROOT / "tests" / name).exists()
        assert found or any(
            next((ROOT / top).rglob(name), None) for top in ("walstore", "uploader", "tests")
        ), name


def test_design_has_every_package() -> None:
    """Its tree has a line for each package and each module next to them."""
    tree = (ROOT / "docs/design.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    for top in ("walstore", "uploader"):
        part = tree.partition(f"\n{top}/")[2].partition("\n\n")[0]
        listed = set(re.findall(r"^  (\w+(?:/|\.py)) ", part, re.MULTILINE))
        there = {f"{path.parent.name}/" for path in (ROOT / top).glob("*/__init__.py")}
        there |= {path.name for path in (ROOT / top).glob("[a-z]*.py")}
        assert listed == there


def test_operations_lists_every_setting() -> None:
    """The tables have a row for each field, and no other."""
    page = (ROOT / "docs/operations.md").read_text().partition("## What each level")[0]
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    fields = {
        field.name for kind in (Settings, UploadSettings) for field in dataclasses.fields(kind)
    }
    assert rows == fields
