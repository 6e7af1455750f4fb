"""What messages and docstrings tell a caller to call is there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from tests.cases import case

ROOT = Path(__file__).parent.parent
FILES = [path for package in ("walstore", "uploader") for path in (ROOT / package).rglob("*.py")]
CALL = re.compile(r"(?:\b(\w+)\.)?\b([a-z_]\w*)\(")
ROLE = re.compile(r":(?:meth|class|func|data|attr|mod):`~?([\w.]+)`")


ELSEWHERE = {
    "expanduser",
    "http",
    "mode",
    "now",
    "outputMode",
    "run_coroutine_threadsafe",
    "struct",
    "trigger",
}
"""Spark's and Python's; and what looks like a call in ``http(s)``."""


def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in FILES]


def texts_of(raised: ast.Raise) -> str:
    """The constant parts of the message that a statement raises."""
    parts = [node for node in ast.walk(raised) if isinstance(node, ast.Constant)]
    return " ".join(part.value for part in parts if isinstance(part.value, str))


@pytest.mark.slow
def test_messages_name_methods_that_exist() -> None:
    """With a class before the name: of that class. Without: of something here."""
    methods: dict[str, set[str]] = {}
    known = set(ELSEWHERE)
    found = trees()
    for _, tree in found:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = {item.name for item in node.body if hasattr(item, "name")}
                methods.setdefault(node.name, set()).update(names)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known.add(node.name)
    wrong = []
    for path, tree in found:
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise):
                for owner, name in CALL.findall(texts_of(node)):
                    if name not in methods.get(owner, known):
                        wrong.append((path.name, owner, name))
    assert not wrong


def resolve(name: str, module: object) -> bool:
    """Whether a role's name is there: in full, or as seen from the module or one of its classes."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        return _has(found, parts[cut:])
    classes = [member for _, member in inspect.getmembers(module, inspect.isclass)]
    return any(_has(place, parts) for place in (module, *classes))


def _has(place: object, parts: list[str]) -> bool:
    for part in parts:
        slots = getattr(place, "__annotations__", {})
        if not hasattr(place, part):
            return part in slots or part in inspect.getsource(place)
        place = getattr(place, part)
    return True


MODULES = [
    "walstore.log.wal",
    "walstore.core.read.reader",
    "walstore.core.batches.conditions",
    "walstore.core.batches.append_request",
    "walstore.records",
    "walstore.core.settings",
    "walstore.log.log",
    "walstore.core.faces.append_face",
    "walstore.core.faces.append_backend",
    "walstore.core.faces.fence",
    "walstore.core.faces.producer",
    "walstore.core.faces.readable_log",
    "walstore.core.faces.transaction",
    "walstore.core.read.uncommitted",
    "walstore.core.runtime.resource",
    "walstore.core.validation.arguments",
    "walstore.core.validation.fields",
    "walstore.store.store_settings",
    "walstore.positions.change",
    "walstore.positions.cursor",
    "walstore.positions.queue",
    "walstore.positions.cursor_state",
    "walstore.positions.cursors.cursor_mixin",
    "walstore.positions.cursors.directory",
    "walstore.positions.cursors.store",
    "walstore.positions.cursors.queue",
    "walstore.positions.cursors.consumer",
    "walstore.positions.cursors.consumer_transaction",
]


def test_docstrings_refer_to_what_exists() -> None:
    for name in MODULES:
        with case(name):
            module = importlib.import_module(name)
            for target in ROLE.findall(inspect.getsource(module)):
                assert resolve(target, module), target
