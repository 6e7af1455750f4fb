"""Finding tests by the names under which tables of cases mention them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the functions of a module."""
    tree = ast.parse(path.read_text())
    found = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, found))


def is_there(name: str) -> bool:
    """Return whether ``module.py::test`` below tests/ is there."""
    module, _, function = name.partition("::")
    path = ROOT / module
    return path.is_file() and function.startswith("test_") and function in functions(path)
