"""Which file needs which others: the graph that tells what a change can break.

A file needs what it imports, the programs that it runs and the files that it names. Two things are finer than
files. A package exports names of its modules: who imports such a name needs the module that has it, not all
modules that the package exports. A test needs of a ``conftest.py`` the fixtures that it names, and what
applies to every test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.ci.references import (
    Imported,
    References,
    read_imports,
    read_product_references,
    read_references,
)

Graph = dict[str, set[str]]
"""What each file needs. ``text_of(file)`` is the file alone, without what it needs itself."""

FOR_SPARK: Final = {
    ("tests/conftest.py", "tests/spark_classes.py"),
    ("tests/conftest.py", "walstore/spark/environment.py"),
}
"""What a conftest prepares for tests on Spark alone: those that have ``spark`` among their words."""


def text_of(path: str) -> str:
    """Return the node of a file alone: what an ``__init__.py`` is for the modules of its package."""
    return f"{path}#text"


def make_graph(files: Mapping[str, str]) -> Graph:
    """Find what each file needs. The text of files that are no Python may be left empty."""
    return _Maker(files).make()


class _Maker:
    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._modules = {_module(path): path for path in files if path.endswith(".py")}
        self._packages = {name for name, path in self._modules.items() if _is_package(path)}
        self._below: dict[str, list[str]] = {}
        for path in files:
            for parent in _parents(path):
                self._below.setdefault(parent, []).append(path)
        self._exports = {
            name: {found.bound: found for found in read_imports(files[self._modules[name]])}
            for name in self._packages
        }
        self._conftests: dict[str, _Conftest] = {}
        for path, text in files.items():
            if path.endswith("/conftest.py"):
                self._conftests[path] = _Conftest(text)

    def make(self) -> Graph:
        graph: Graph = {}
        for path, text in self._files.items():
            needed = {text_of(path)}
            if path.endswith(".py"):
                needed |= set(self._needed(path, text))
            graph[path] = needed - {path}
        self._add_data(graph)
        return graph

    def _needed(self, path: str, text: str) -> Iterator[str]:
        is_product = path.startswith(("walstore/", "uploader/"))
        found = read_product_references(text) if is_product else read_references(text)
        for one in found.imports:
            yield from self._imported(one, text)
        for program in found.programs:
            yield from self._run(program)
        for quoted in found.quoted:
            yield from self._quoted(quoted)
        yield from self._named_files(path, found)
        if is_test(path):
            yield from self._of_conftests(path, text)

    # Modules.

    def _imported(self, one: Imported, text: str) -> Iterator[str]:
        if one.name is not None:
            yield from self._name(one.module, one.name, set())
        elif one.module in self._packages and one.bound == one.module:
            yield from self._attributes(one.module, text)
        else:
            yield from self._whole(one.module)
            yield from self._used_names(one.module.partition(".")[0], text)

    def _name(self, module: str, name: str, seen: set[tuple[str, str]]) -> Iterator[str]:
        """Follow a name through the packages that export it."""
        if (module, name) in seen:
            return
        seen.add((module, name))
        if f"{module}.{name}" in self._modules:
            yield from self._whole(f"{module}.{name}")
        if module not in self._packages:
            yield from self._whole(module)
            return
        exports = self._exports[module]
        if name in exports and exports[name].module != module:
            yield from self._alone(module)
            one = exports[name]
            if one.name is None:
                yield from self._whole(one.module)
            else:
                yield from self._name(one.module, one.name, seen)
        elif "*" in exports and name != "*":
            yield from self._alone(module)
            yield from self._name(exports["*"].module, name, seen)
        elif f"{module}.{name}" not in self._modules:
            yield from self._whole(module)

    def _attributes(self, package: str, text: str) -> Iterator[str]:
        """Follow what is taken from a package after ``import package``; all of it, if that is not clear."""
        name = re.escape(package)
        is_used = re.search(rf"(?<![\w.]){name}\.\w", text)
        is_passed_on = re.search(rf"[(\[,=]\s*{name}\s*[),\]\n]|{name}\.__all__", text)
        if not is_used or is_passed_on:
            yield from self._whole(package)
        yield from self._alone(package)
        yield from self._used_names(package, text)

    def _used_names(self, package: str, text: str) -> Iterator[str]:
        if package in self._packages:
            for name in set(re.findall(rf"(?<![\w.]){re.escape(package)}\.(\w+)", text)):
                if not name.startswith("__"):
                    yield from self._name(package, name, set())

    def _whole(self, module: str) -> Iterator[str]:
        """Yield a module's file, or that of the nearest package if there is no such module."""
        parts = module.split(".")
        if module in self._modules:
            yield self._modules[module]
        yield from self._alone(*(".".join(parts[:end]) for end in range(1, len(parts))))

    def _alone(self, *packages: str) -> Iterator[str]:
        for package in packages:
            if package in self._modules:
                yield text_of(self._modules[package])
            if "." in package:
                yield from self._alone(package.rpartition(".")[0])

    def _run(self, module: str) -> Iterator[str]:
        yield from self._whole(f"{module}.__main__" if module in self._packages else module)

    def _quoted(self, name: str) -> Iterator[str]:
        """Follow a string such as ``walstore.log.wal.Wal``."""
        parts = name.split(".")
        for end in range(len(parts), 1, -1):
            module = ".".join(parts[:end])
            if module in self._modules:
                if end < len(parts):
                    yield from self._name(module, parts[end], set())
                else:
                    yield from self._whole(module)
                    yield from self._run(module)
                return
        if len(parts) == 2 and parts[1] in self._exports.get(parts[0], ()):
            yield from self._name(*parts, set())

    # Files.

    def _named_files(self, path: str, found: References) -> Iterator[str]:
        here = _directory(path)
        for name in found.siblings:
            yield from self._at(f"{here}/{name}")
        for name in found.joined | {one for one in found.quoted if one != "__init__.py"}:
            for base in (here, "tests", ""):
                at = f"{base}/{name}".lstrip("/").rstrip("/")
                if name in found.joined or at in self._files:
                    yield from self._at(at)

    def _at(self, path: str) -> Iterator[str]:
        """Yield a file, or all files below a directory. Of tests the text is read; they are not run."""
        for found in [path] if path in self._files else self._below.get(path, ()):
            yield text_of(found) if is_test(found) else found

    def _add_data(self, graph: Graph) -> None:
        """Let the Python files next to and above a file that is no Python need it."""
        readers: dict[str, list[str]] = {}
        for path in self._files:
            if path.endswith(".py"):
                readers.setdefault(_directory(path), []).append(path)
        for path in self._files:
            if path.endswith(".py"):
                continue
            for parent in _parents(path):
                if parent == "tests":
                    break
                for reader in readers.get(parent, ()):
                    graph[reader].add(path)
                if parent in readers and not parent.startswith("tests/"):
                    break

    # Fixtures.

    def _of_conftests(self, path: str, text: str) -> Iterator[str]:
        words = set(re.findall(r"\w+", text))
        for parent in _parents(path):
            at = f"{parent}/conftest.py"
            if at not in self._conftests or at == path:
                continue
            yield text_of(at)
            is_on_spark = "spark" in words
            imports, names = self._conftests[at].used_by(words)
            words |= names
            for one in imports:
                for needed in self._imported(one, self._files[at]):
                    is_whole = is_on_spark or (at, needed) not in FOR_SPARK
                    yield needed if is_whole else text_of(needed)


class _Conftest:
    """The top-level statements of a ``conftest.py``, and what each uses."""

    def __init__(self, text: str) -> None:
        self._imports: list[Imported] = read_imports(text)
        self._names: dict[str, set[str]] = {}
        """What each function, class and constant uses."""
        self._always: set[str] = set()
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                continue
            source = ast.unparse(statement)
            words = set(re.findall(r"\w+", source))
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._names[statement.name] = words
                if statement.name.startswith("pytest_") or "autouse" in words:
                    self._always.add(statement.name)
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                for name in _assigned(statement):
                    self._names[name] = words
            else:
                self._always |= words

    def used_by(self, words: Iterable[str]) -> tuple[list[Imported], set[str]]:
        """Return the imports that a test with these words needs, and the names that they are used for."""
        names = set(words) | self._always
        waiting = [name for name in names if name in self._names]
        reached: set[str] = set(self._always)
        bound = {one.bound for one in self._imports}
        while waiting:
            name = waiting.pop()
            new = self._names[name] - reached
            reached |= new
            waiting += [one for one in new if one in self._names]
        wanted = reached | (set(words) & bound)
        return [one for one in self._imports if one.bound in wanted], reached


def _assigned(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node.id


def is_test(path: str) -> bool:
    """Return whether pytest collects the file with the tests."""
    name = path.rpartition("/")[2]
    return path.startswith("tests/") and name.startswith("test_") and name.endswith(".py")


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_package(path: str) -> bool:
    return path.endswith("/__init__.py")


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _parents(path: str) -> Iterator[str]:
    """Yield the directories above a file, nearest first, without the root."""
    while path := _directory(path):
        yield path
