"""The section of a class in the reference: its attributes, methods and properties."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from tools.docstrings import annotation_text, code, inline, prefix_of, signature_text, text_of
from tools.reference_contents import HIDDEN, INSIDE, MADE_HERE, PORTS

PACKAGES = ("walstore", "uploader")


def class_section(module: str, kind: type) -> Iterator[str]:
    """Yield what follows the heading of a class of a module."""
    is_plain = not issubclass(kind, enum.Enum) and "__init__" in vars(kind)
    settings = kind.__doc__ is not None and "\nFields:\n" in kind.__doc__
    is_made_here = kind.__name__ in MADE_HERE or INSIDE in (kind.__init__.__doc__ or "")
    is_plain &= not (dataclasses.is_dataclass(kind) or is_made_here or inspect.isabstract(kind))
    is_plain &= not getattr(kind, "_is_protocol", False)
    arguments = signature_text(kind) if is_plain else ""
    yield from (*code(module, f"class {kind.__name__}{arguments}"), "")
    yield from text_of(kind.__doc__ if not _is_made(kind) else None)
    if is_plain:
        yield from text_of(kind.__init__.__doc__)
    if not settings:
        yield from _attributes(kind)
    port = next((port for port in PORTS if kind is not port and _has_all(kind, port)), None)
    if port:
        yield from (f"It has the methods of `{port.__module__}.{port.__name__}`, and these:", "")
    for name, member in members_of(kind):
        if port and name in vars(port):
            continue
        yield from (f"### {kind.__name__}.{name}", "")
        function, before = function_of(member)
        if function is None:
            continue
        if before == "property":
            result = inspect.signature(function).return_annotation
            yield from (*code("", f"{name}: {annotation_text(result)}"), "")
        else:
            yield from (
                *code("", f"{before}{prefix_of(function)}{name}{signature_text(function)}"),
                "",
            )
        yield from text_of(_doc_of(kind, name, function))


def _has_all(kind: type, port: type) -> bool:
    return all(hasattr(kind, name) for name in vars(port) if not name.startswith("_"))


def _is_made(kind: type) -> bool:
    """Whether a docstring is what dataclasses make up: the signature."""
    return (kind.__doc__ or "").startswith(f"{kind.__name__}(")


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield public methods and properties, also of mixins of ours, in the order of the source."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.split(".")[0] not in PACKAGES or issubclass(base, enum.Enum):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen or name in HIDDEN:
                continue
            seen.add(name)
            function = function_of(member)[0]
            if function is not None and not (function.__doc__ or "").startswith(INSIDE):
                yield name, member


def function_of(member: Any) -> tuple[Any, str]:
    """Return the function behind a member of a class, and what stands before it; None if there is none."""
    if isinstance(member, property):
        return member.fget, "property"
    if isinstance(member, functools.cached_property):
        return member.func, "property"
    if isinstance(member, classmethod):
        return member.__func__, "@classmethod\n"
    if isinstance(member, staticmethod):
        return member.__func__, "@staticmethod\n"
    return (member, "") if isinstance(member, types.FunctionType) else (None, "")


def _doc_of(kind: type, name: str, function: Any) -> str | None:
    if function.__doc__:
        return str(function.__doc__)
    for base in kind.__mro__[1:]:
        inherited, _ = function_of(vars(base).get(name))
        if inherited is not None and inherited.__doc__:
            return str(inherited.__doc__)
    return None


def _attributes(kind: type) -> Iterator[str]:
    """Yield fields, members of enumerations, and attributes, with the strings that follow them."""
    rows = [row for base in reversed(kind.__mro__) for row in _stated(base)]
    rows = [row for row in rows if not row[2].startswith(INSIDE)]
    if rows:
        yield from ("| attribute | type | meaning |", "|---|---|---|")
        for name, annotation, meaning in {row[0]: row for row in rows}.values():
            text = " ".join(inline(meaning).split()).replace("|", "\\|")
            shown = annotation.replace("|", "\\|")
            yield f"| `{name}` | {f'`{shown}`' if shown else ''} | {text} |"
        yield ""


def _stated(kind: type) -> Iterator[tuple[str, str, str]]:
    if kind.__module__.split(".")[0] not in PACKAGES:
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    is_value = dataclasses.is_dataclass(kind) or issubclass(kind, tuple | enum.Enum)
    makers = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    for body in (tree.body, *(maker.body for maker in makers)):
        for node, after in zip(body, [*body[1:], None], strict=True):
            name, annotation = _assigned(node)
            if not name or name.startswith("_"):
                continue
            meaning = _string(after)
            if (meaning or is_value) and not meaning.startswith(INSIDE):
                yield name, annotation, meaning


def _assigned(node: ast.stmt) -> tuple[str, str]:
    target: ast.expr | None = None
    annotation = ""
    if isinstance(node, ast.AnnAssign):
        target, annotation = node.target, ast.unparse(node.annotation)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    if isinstance(target, ast.Name):
        return target.id, annotation
    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
        return target.attr, annotation
    return "", ""


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else ""
    return ""
