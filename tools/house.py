"""Print the numbers of the house beside their targets: ``python -m tools.house``.

What each number counts is what ``docs/decisions.md`` says. ``tests/test_house.py`` keeps them from growing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("walstore", "uploader")
SHORT_LINES: Final = 60
LOGS: Final = re.compile(
    r"Wal|ReadonlyWal|RemoteWal|RemoteReadonlyWal|CopyLog|StoredLog|CloudLog|CloudWriter|PartitionedLog"
    r"|StoreLog|DirectoryLog|WalStore"
)
"""Classes that are a log, or a directory of logs."""
_OFFSET_ERRORS: Final = frozenset(("OffsetTrimmedError", "OffsetNotWrittenError"))
_TESTED: Final = frozenset(("isinstance", "issubclass"))


class Number(NamedTuple):
    """Something that is counted."""

    name: str
    now: int
    target: int
    """At most so many, once the house is in order."""


def numbers() -> list[Number]:
    """Count everything."""
    product, tests = _sources(*PRODUCT), _sources("tests")
    lengths = {name: text.count("\n") for name, text in product.items()}
    calls = [call for name in product for call in _calls(_tree(name))]
    return [
        Number("product lines", sum(lengths.values()), 96_000),
        Number("product files", len(product), 340),
        Number("product files under 60 lines", sum(n < SHORT_LINES for n in lengths.values()), 14),
        Number("isinstance on log classes", sum(map(_asks_for_log, calls)), 0),
        Number(
            "places that make an offset error",
            sum(_called(one) in _OFFSET_ERRORS for one in calls),
            8,
        ),
        Number("circles of imports", len(circles()), 0),
        Number("protocols", sum(map(_protocols, product)), 35),
        Number("test lines", sum(text.count("\n") for text in tests.values()), 125_000),
    ]


def circles() -> list[list[str]]:
    """Return the groups of modules that import each other, lazy imports and those for types included."""
    modules = {_module(name): name for name in _sources(*PRODUCT)}
    edges = {one: set(_imports(one, name, modules)) for one, name in modules.items()}
    return [sorted(group) for group in _components(edges) if len(group) > 1]


@cache
def _sources(*tops: str) -> Mapping[str, str]:
    """Return the text of each source file, by its path from the root."""
    found = (path for top in tops for path in sorted((ROOT / top).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text() for path in found}


@cache
def _tree(name: str) -> ast.Module:
    return ast.parse(_sources(*PRODUCT)[name])


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _called(call: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return getattr(call.func, "id", None) or getattr(call.func, "attr", "")


def _asks_for_log(call: ast.Call) -> bool:
    if _called(call) not in _TESTED or len(call.args) != 2:
        return False
    return any(
        isinstance(one, ast.Name) and LOGS.fullmatch(one.id) for one in ast.walk(call.args[1])
    )


def _protocols(name: str) -> int:
    """Return how many protocols a file defines."""
    return len(
        re.findall(
            r"^ *class \w+\((?:[^)]*\W)?(?<!asyncio\.)Protocol\b",
            _sources(*PRODUCT)[name],
            re.MULTILINE,
        )
    )


def _module(name: str) -> str:
    return re.sub(r"(/__init__)?\.py$", "", name).replace("/", ".")


def _imports(module: str, name: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield which of the modules one imports: the one that has the name, not the packages above it."""
    for node in ast.walk(_tree(name)):
        wanted: Iterable[str] = ()
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted = [
                full if (full := f"{node.module}.{alias.name}") in modules else node.module
                for alias in node.names
            ]
        yield from (one for one in wanted if one in modules and one != module)


def _components(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of a graph (Tarjan's algorithm, without recursion)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    held: list[str] = []
    found: list[list[str]] = []
    for root in edges:
        if root in order:
            continue
        path = [(root, iter(sorted(edges[root])))]
        order[root] = low[root] = len(order)
        held.append(root)
        while path:
            node, following = path[-1]
            for other in following:
                if other not in order:
                    order[other] = low[other] = len(order)
                    held.append(other)
                    path.append((other, iter(sorted(edges[other]))))
                    break
                if other in held:
                    low[node] = min(low[node], order[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    at = held.index(node)
                    found.append(held[at:])
                    del held[at:]
    return found


def main() -> int:
    """Print the table, and with ``--circles`` the modules of each circle."""
    lines = [f"{name:36} {now:8} of at most {target}" for name, now, target in numbers()]
    if "--circles" in sys.argv[1:]:
        lines += ["\n".join(("", *group)) for group in circles()]
    sys.stdout.write("\n".join((*lines, "")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
