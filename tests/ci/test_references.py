from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.ci.references import Imported, read_imports, read_product_references, read_references

ROOT = Path(__file__).parents[2]


def imports(text: str) -> set[tuple[str, str | None]]:
    return {(one.module, one.name) for one in read_imports(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import walstore", {("walstore", None)}),
        ("import walstore.log.wal, uploader", {("walstore.log.wal", None), ("uploader", None)}),
        ("from walstore import Wal, Record", {("walstore", "Wal"), ("walstore", "Record")}),
        ("from a import (\n    B,  # noqa: F401 (why)\n    C as D,\n)", {("a", "B"), ("a", "C")}),
        ("def f():\n    from a.b import c\n", {("a.b", "c")}),
        ("from uploader import *  # noqa: F403", {("uploader", "*")}),
        ('PROGRAM = """\nimport sys\nfrom walstore import Wal\n"""', {("sys", None), ("walstore", "Wal")}),
        ('PROGRAM = "import a; from b import c\\\\nimport d"', {("a", None), ("b", "c"), ("d", None)}),
        ("if TYPE_CHECKING:\n    from a import B\n\nimport c", {("c", None)}),
        (
            "if TYPE_CHECKING:\n    from a import B\n\n    import d\nimport c",
            {("c", None)},
        ),
    ],
)  # fmt: skip
def test_imports(text: str, expected: set[tuple[str, str | None]]) -> None:
    assert imports("\n" + text) == expected


def test_names_of_what_is_imported() -> None:
    found = read_imports("import a.b as c\nfrom d import e as f\nimport g\n")
    assert set(found) == {
        Imported("a.b", None, "c"),
        Imported("d", "e", "f"),
        Imported("g", None, "g"),
    }


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ('[sys.executable, "-m", "walstore", "serve"]', {"walstore"}),
        ('[\n    "-m",\n    "walstore.cli",\n]', {"walstore.cli"}),
        ('"python -m tests.storm --kills 5"', {"tests.storm"}),
        ('["walstore", "append", "log"]', {"walstore"}),
        ('("walstore", "uploader")', set()),
        ('logging.getLogger("walstore")', set()),
    ],
)
def test_programs(text: str, programs: set[str]) -> None:
    assert read_references(text).programs == programs


def test_modules_and_files_that_strings_name() -> None:
    text = """
    CHILD = Path(__file__).with_name("kill_child.py")
    PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
    GOLDEN = ROOT / "golden" / f"log_v{version}" / "x"
    monkeypatch.setattr("walstore.log.wal.Wal", None)
    """
    found = read_references(text)
    assert found.siblings == {"kill_child.py"}
    assert found.joined == {"docs/cli.md", "golden"}
    assert "walstore.log.wal.Wal" in found.quoted


@pytest.mark.parametrize(
    "text",
    ['spark.read.format("walstore")', 'format("walstore-collection")', "import pyspark_walstore"],
)
def test_names_of_spark_formats(text: str) -> None:
    assert "walstore.spark.pyspark_walstore" in read_references(text).quoted


def test_of_a_product_module_the_docstrings_do_not_count() -> None:
    text = '''"""Use it: spark.read.format("walstore"), from walstore import Wal."""
from walstore.errors import WalError

def late():
    """Take ``"walstore.cli.app"``."""
    logging.getLogger("walstore.spark")
    import_module("walstore.http.pages")
    child_process(
        "walstore.cli.demo.run", job)
'''
    found = read_product_references(text)
    assert [one.module for one in found.imports] == ["walstore.errors"]
    assert found.quoted == {"walstore.http.pages", "walstore.cli.demo.run"}
    assert found.programs == set()


def _by_syntax(text: str) -> set[tuple[str, str | None]]:
    found: set[tuple[str, str | None]] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", one.name) for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {(one.name, None) for one in node.names}
    return found


def _for_types(text: str) -> set[tuple[str, str | None]]:
    found: set[tuple[str, str | None]] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found |= _by_syntax(ast.unparse(node))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("top", ["walstore", "uploader", "tests", "bench", "tools", "examples"])
def test_no_import_of_this_repository_is_missed(top: str) -> None:
    missed = {}
    for path in (ROOT / top).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        read = read_product_references if top in ("walstore", "uploader") else read_references
        found = {(one.module, one.name) for one in read(text).imports}
        if left := _by_syntax(text) - found - _for_types(text):
            missed[str(path)] = left
    assert missed == {}
