"""Who may import whom: the contracts of pyproject.toml, checked with every test run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

IMPORT_CORE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # importing one of these now fails
import walstore
for name in walstore.__all__:
    getattr(walstore, name)
"""


def test_the_import_contracts_hold() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_core_runs_without_cloud_tier_and_extras() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    absent = next(item["forbidden_modules"] for item in contracts if item["id"] == "core")
    assert {"uploader", "pyarrow"} <= set(absent)
    command = [sys.executable, "-c", IMPORT_CORE, *absent]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


PARSERS = {
    "loads",
    "unpackb",
    "read_document",
    "inspect_fragment",
    "parse_marker",
    "read_metadata",
    "ParquetFile",
}
DOCUMENTS = {
    "CloudCursor",
    "CommitRecord",
    "Fields",
    "Garbage",
    "Hold",
    "Link",
    "Manifest",
    "Snapshot",
}


def test_whole_objects_are_read_with_a_limit_and_parsed_aside() -> None:
    """Of what lies in a bucket: ``uploader/root/stored_document.py`` says why, and does both."""
    found = []
    for path in sorted((ROOT / "uploader").rglob("*.py")):
        place = path.relative_to(ROOT / "uploader")
        if place.parts[0] in {"stores", "testing"} or place.name == "stored_document.py":
            continue
        for call in _calls_on_the_loop(ast.parse(path.read_text(encoding="utf-8"))):
            if _reads_whole(call) or _parses(call):
                found.append(f"{place}:{call.lineno} {ast.unparse(call)}")
    assert found == []


def _calls_on_the_loop(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that coroutines make themselves, and those that they pass on unmade: ``partial``."""
    for function in ast.walk(tree):
        if isinstance(function, ast.AsyncFunctionDef):
            waiting: list[ast.AST] = list(function.body)
            while waiting:
                node = waiting.pop()
                if isinstance(node, ast.Call):
                    yield node
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                    waiting += ast.iter_child_nodes(node)


def _reads_whole(call: ast.Call) -> bool:
    """Return whether a store is asked for an object, at once or by ``partial`` and ``map``."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "get"
        and _last_name(node.value) in {"store", "inner", "source", "target", "log"}
        for node in (call.func, *call.args)
    )


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_")
    return ""


def _parses(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id=name):
            return name in PARSERS
        case ast.Attribute(value=ast.Name(id=owner), attr="parse"):
            return owner in DOCUMENTS
        case ast.Attribute(attr=name):
            return name in PARSERS
    return False


def test_no_group_of_errors_reaches_a_caller() -> None:
    """``task_group`` raises one of their errors. Code that makes a TaskGroup itself also takes it apart."""
    found = []
    for path in sorted((ROOT / "uploader").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        makes_groups = re.search(
            r"asyncio\.TaskGroup\(\)|\(asyncio\.TaskGroup\):", path.read_text()
        )
        if "/testing/" not in place and makes_groups:
            found.append(place)
    assert found == [
        "uploader/runtime/task_groups.py",
        "uploader/write/commit_loop.py",
        "uploader/write/pipeline.py",
    ]
