from __future__ import annotations

import functools
from pathlib import Path

import grimp
import pytest

from tests.ci.dependencies import Graph, make_graph, text_of
from tests.ci.selection import read_graph

FILES = {
    "walstore/__init__.py": "from walstore.log.wal import Wal\nfrom walstore.errors import WalError\n",
    "walstore/__main__.py": "from walstore.cli.app import run\n",
    "walstore/cli/__init__.py": "",
    "walstore/cli/app.py": "import walstore\nwalstore.Wal\n",
    "walstore/errors.py": "",
    "walstore/http/__init__.py": "",
    "walstore/http/pages.py": "",
    "walstore/http/page/index.html": "",
    "walstore/log/__init__.py": "",
    "walstore/log/wal.py": "from walstore.errors import WalError\n",
    "walstore/cloud/__init__.py": "from walstore import *\n",
}


def needs(path: str, text: str) -> set[str]:
    """Return what a file with this text needs."""
    return make_graph(FILES | {path: text})[path] - {text_of(path)}


TEST = "tests/log/test_wal.py"
FACADE = text_of("walstore/__init__.py")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from walstore import Wal", {"walstore/log/wal.py", text_of("walstore/log/__init__.py")}),
        ("from walstore import WalError", {"walstore/errors.py"}),
        ("from walstore import errors", {"walstore/errors.py"}),
        ("import walstore.errors", {"walstore/errors.py"}),
        ("import walstore\nwalstore.WalError", {"walstore/errors.py"}),
        ("import walstore\nwalstore.__version__", set()),
        ("import walstore\nfor name in walstore.__all__: ...", {"walstore/__init__.py"}),
        ("import walstore\nprint(walstore)", {"walstore/__init__.py"}),
        ("import walstore.errors\nwalstore.cli", {"walstore/errors.py", "walstore/cli/__init__.py"}),
        ("import walstore as w", {"walstore/__init__.py"}),
        ("from walstore import nowhere", {"walstore/__init__.py"}),
        ("from walstore.nowhere import x", set()),
        ('run("-m", "walstore")', {"walstore/__main__.py"}),
        ('patch("walstore.errors.WalError")', {"walstore/errors.py"}),
        ('patch("walstore.Wal")', {"walstore/log/wal.py", text_of("walstore/log/__init__.py")}),
        ('HEADER = "walstore.stamp"', set()),
        ("import os", set()),
    ],
)  # fmt: skip
def test_what_a_test_imports(text: str, expected: set[str]) -> None:
    assert needs(TEST, text) - {FACADE} == expected


@pytest.mark.parametrize("text", ["from walstore import Wal", "import walstore.log.wal"])
def test_who_imports_from_a_package_needs_its_text_but_not_what_it_imports(text: str) -> None:
    assert {FACADE, "walstore/log/wal.py"} <= needs(TEST, text)
    assert "walstore/errors.py" not in needs(TEST, text)


def test_a_name_is_followed_through_two_packages() -> None:
    assert needs(TEST, "from walstore.cloud import WalError") == {
        "walstore/errors.py",
        text_of("walstore/cloud/__init__.py"),
        FACADE,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Path(__file__).with_name("child.py")', "tests/log/child.py"),
        ('ROOT / "walstore" / "errors.py"', "walstore/errors.py"),
        ('ROOT / "walstore"', "walstore/errors.py"),
        ('GOLDEN / "data" / name', "tests/log/data/one.json"),
        ('"walstore/errors.py"', "walstore/errors.py"),
        ("from tests.log import child", "tests/log/child.py"),
    ],
)
def test_files_that_a_test_names(text: str, expected: str) -> None:
    files = FILES | {"tests/log/child.py": "", "tests/log/data/one.json": "", TEST: text}
    assert expected in make_graph(files)[TEST]


def test_data_is_needed_by_the_code_next_to_it_and_above_it() -> None:
    files = FILES | {
        "tests/golden/test_golden.py": "",
        "tests/golden/v1/made/one.bin": "",
        "tests/log/test_wal.py": "",
        "tests/helper.py": "",
    }
    graph = make_graph(files)
    assert {path for path, needed in graph.items() if "tests/golden/v1/made/one.bin" in needed} - {
        "tests/golden/v1/made/one.bin"
    } == {"tests/golden/test_golden.py"}
    assert "walstore/http/page/index.html" in graph["walstore/http/pages.py"]
    assert "walstore/http/page/index.html" not in graph["walstore/errors.py"]


CONFTEST = """
import pytest
from walstore import Wal
from walstore.errors import WalError
from walstore.http import pages
SIZE = Wal.size

@pytest.fixture
def log(place):
    return SIZE

@pytest.fixture(autouse=True)
def _watch():
    yield WalError
"""


def test_of_a_conftest_a_test_needs_what_it_uses_and_what_is_always_there() -> None:
    upper = "import pytest\nfrom walstore.cli import app\n@pytest.fixture\ndef place():\n    app\n"
    files = FILES | {"tests/log/conftest.py": CONFTEST, "tests/conftest.py": upper}
    log = {text_of("tests/log/conftest.py"), text_of("tests/conftest.py"), "walstore/errors.py"}
    unused = make_graph(files | {TEST: "def test_it(): ..."})[TEST]
    used = make_graph(files | {TEST: "def test_it(log): ..."})[TEST]
    assert log <= unused
    assert not {"walstore/log/wal.py", "walstore/cli/app.py"} & unused
    assert {"walstore/log/wal.py", "walstore/cli/app.py"} <= used
    assert "walstore/http/pages.py" not in used


def test_what_a_conftest_prepares_for_spark_is_for_tests_on_spark() -> None:
    files = {
        "tests/conftest.py": "from tests.spark_classes import options\nOPTIONS = options()\nprint(OPTIONS)\n",
        "tests/spark_classes.py": "import walstore",
        "tests/a/test_a.py": "@pytest.mark.spark\ndef test_a(): ...",
        "tests/a/test_b.py": "def test_b(): ...",
    }
    graph = make_graph(FILES | files)
    assert "tests/spark_classes.py" in graph["tests/a/test_a.py"]
    assert "tests/spark_classes.py" not in graph["tests/a/test_b.py"]
    assert text_of("tests/spark_classes.py") in graph["tests/a/test_b.py"]


@functools.cache
def own_graph() -> Graph:
    return read_graph()


def test_every_import_that_the_import_linter_sees_is_in_the_graph() -> None:
    """Except of packages: here, an import of a name that a package exports leads to its module."""
    graph = own_graph()
    seen = grimp.build_graph(
        "walstore", "uploader", exclude_type_checking_imports=True, cache_dir=None
    )
    missed = []
    for importer in seen.modules:
        for imported in seen.find_modules_directly_imported_by(importer):
            user, needed = _file(graph, importer), _file(graph, imported)
            if not needed.endswith("__init__.py") and needed not in graph[user]:
                missed.append((importer, imported))
    assert missed == []


def _file(graph: Graph, module: str) -> str:
    path = Path(*module.split("."))
    package = f"{path}/__init__.py"
    return package if package in graph else f"{path}.py"
