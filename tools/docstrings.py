"""Docstrings and signatures as Markdown."""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from walstore.core.runtime.old_names import unrenamed

_ROLE = re.compile(r":(meth|class|func|data|attr|mod|exc):`(~?)([\w.]+)`")
_HEADS = {"Args", "Returns", "Raises", "Yields", "Fields", "Attributes"}


def inline(text: str) -> str:
    """Return text in which roles and literals of docstrings are Markdown's."""

    def role(found: re.Match[str]) -> str:
        name = found[3].rpartition(".")[2] if found[2] or found[1] != "mod" else found[3]
        return f"`{name}()`" if found[1] in {"meth", "func"} else f"`{name}`"

    text = _ROLE.sub(role, text).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([<*_])(?=\w)", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def text_of(doc: str | None) -> Iterator[str]:
    """Yield a docstring as Markdown, with an empty line behind each block."""
    section = ""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc or "")):
        head, _, rest = block.partition("\n")
        if head.rstrip(":") in _HEADS and head.endswith(":"):
            section, block = head, textwrap.dedent(rest)
            yield from (f"**{head}**", "")
            if not block:
                continue
        if section:
            yield from (*_items(textwrap.dedent(block)), "")
        elif block.startswith("  ") and not block.lstrip().startswith("*"):
            yield from ("```text", *textwrap.dedent(block).splitlines(), "```", "")
        elif block:
            yield from (*_paragraph(block), "")


def _paragraph(block: str) -> Iterator[str]:
    """Yield a block whose lines may turn into a list on the way, which Markdown wants apart."""
    in_list = False
    for line in block.splitlines():
        stripped = line.strip()
        if stripped.startswith("* ") and not in_list:
            in_list = True
            yield ""
        text = inline(stripped.removeprefix("* "))
        yield f"* {text}" if stripped.startswith("* ") else (f"  {text}" if in_list else text)


def _items(block: str) -> Iterator[str]:
    """Yield ``name: meaning`` lines of a section as a list."""
    for line in block.splitlines():
        found = re.match(r"(\*{0,2}\w+):(?: (.*))?$", line)
        if found:
            yield f"* `{found[1]}`: {inline(found[2] or '')}".rstrip()
        else:
            yield f"  {inline(line.strip())}"


def code(module: str, line: str) -> list[str]:
    """Return a fenced signature, with the import of what it begins with if there is a module."""
    name = re.sub(r"^(async |class )", "", line)
    before = [f"from {module} import {re.split('[ (=]', name)[0]}", ""]
    return ["```py", *(before if module else []), *line.splitlines(), "```"]


def is_coroutine(function: Any) -> bool:
    """Return whether a function is a coroutine function, also if arguments of it were renamed."""
    return inspect.iscoroutinefunction(unrenamed(function)[0])


def prefix_of(function: Any) -> str:
    """Return what stands before the name of a function."""
    return "async " if is_coroutine(function) else ""


def signature_text(function: Any) -> str:
    """Return arguments and result, on several lines if they are long."""
    signature = signature_of(function)
    shown: list[str] = []
    for parameter in signature.parameters.values():
        is_star = any(part.startswith("*") for part in shown)
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_star:
            shown.append("*")
        shown.append(_parameter(parameter))
    result = signature.return_annotation
    after = (
        ""
        if result is signature.empty or inspect.isclass(function)
        else f" -> {annotation_text(result)}"
    )
    line = f"({', '.join(shown)}){after}"
    if len(line) <= 88:
        return line
    return "(\n" + "".join(f"    {part},\n" for part in shown) + f"){after}"


def signature_of(function: Any) -> inspect.Signature:
    """Return a signature in which options that a ``TypedDict`` lists stand one by one."""
    found = inspect.signature(function)
    parameters: list[inspect.Parameter] = []
    for parameter in found.parameters.values():
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if unpacked is None:
            parameters.append(parameter)
            continue
        options = inspect.unwrap(function).__globals__[unpacked[1]].__annotations__
        parameters += [
            inspect.Parameter(
                name, parameter.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__
            )
            for name, kind in options.items()
        ]
    return found.replace(parameters=parameters)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {annotation_text(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        default = parameter.default
        shown = str(default) if isinstance(default, enum.Enum) else repr(default)
        if isinstance(default, enum.StrEnum):
            shown = repr(default.value)
        elif callable(default):
            shown = getattr(default, "__name__", "…")
        elif " at 0x" in shown:
            shown = "…"
        text += f" = {shown}"
    return text


def annotation_text(annotation: Any) -> str:
    """Return a type as it is written."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def joined(lines: list[str]) -> str:
    """Return lines as a file: no more than one empty line in a row, and one end."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
