"""Writes the pages of docs/ that are made from code: ``python -m tools.reference``.

docs/reference/*.md from signatures and docstrings, docs/errors.md from the error classes, and docs/llms.txt
from the titles of all pages. tests/test_docs_reference.py checks that they are current.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.class_section import class_section
from tools.docstrings import code, inline, joined, prefix_of, signature_text, text_of
from tools.reference_contents import ERRORS, PAGES, SECTIONS, Page
from walstore.errors import WalError

DOCS = Path(__file__).parent.parent / "docs"
MARK = "<!-- Made by python -m tools.reference; do not edit. -->"


def pages() -> dict[str, str]:
    """Return the content of all generated pages, by their path below docs/."""
    made = {f"reference/{page.name}.md": _page(page) for page in PAGES}
    made["reference/index.md"] = _index()
    made["errors.md"] = _errors()
    made["llms.txt"] = _llms(made)
    return made


def public_errors() -> list[type[WalError]]:
    """Return the errors that have a public name, parents before their children."""
    walstore = importlib.import_module("walstore")
    named = {name: getattr(walstore, name) for name in walstore.__all__}
    for module, names in ERRORS.items():
        named |= {name: getattr(importlib.import_module(module), name) for name in names.split()}
    known = {
        kind for kind in named.values() if inspect.isclass(kind) and issubclass(kind, WalError)
    }
    return [kind for kind in _below(WalError) if kind in known]


def _below(kind: type[WalError]) -> Iterator[type[WalError]]:
    """Yield a class and those below it: ours in the order of errors.py, the others by module and name."""
    yield kind

    def place(child: type[WalError]) -> tuple[str, str]:
        is_here = child.__module__ == "walstore.errors"
        return ("", "") if is_here else (child.__module__, child.__name__)

    for child in sorted(kind.__subclasses__(), key=place):
        yield from _below(child)


# -- pages -----------------------------------------------------------------------------------


def _index() -> str:
    lines = [MARK, "# Reference", "", "| | |", "|---|---|"]
    lines += [f"| [{page.title}]({page.name}.md) | {page.summary} |" for page in PAGES]
    lines += [
        "| [Errors](../errors.md) | What each means, and the outcome for the data. |",
        "| [Command line](../cli.md) | Every verb, option and exit code. |",
    ]
    return "\n".join(lines) + "\n"


def _page(page: Page) -> str:
    lines = [MARK, f"# {page.title}", "", page.summary, ""]
    for module, names in page.names.items():
        found = importlib.import_module(module)
        for name in names.split():
            lines += _named(module, name, getattr(found, name))
    return joined(lines)


def _named(module: str, name: str, value: Any) -> Iterator[str]:
    yield from (f"## {name}", "")
    if inspect.isclass(value):
        yield from class_section(module, value)
    elif inspect.isfunction(value):
        yield from (*code(module, f"{prefix_of(value)}{name}{signature_text(value)}"), "")
        yield from text_of(value.__doc__)
    else:
        shown = repr(value).replace("typing.", "").replace("'", '"')
        yield from (*code(module, f"{name} = {shown}"), "")


# -- errors ----------------------------------------------------------------------------------


_ERRORS_INTRODUCTION = """\
# Errors

All errors are `WalError`. Each has two attributes that a program can act on:

* `outcome`: the outcome for the records of the failed call. `"not_written"`: safe to submit again.
  `"durable"`: they are in the log. `"unknown"`: open the log again and read before submitting again.
* `retriable`: whether the same call may succeed later without intervention.

The table shows the values of the class; an error object may have others. Wrong arguments raise `TypeError`
or `ValueError`. [operations.md](operations.md#when-something-is-wrong) explains what to do about an error,
and [cli.md](cli.md) lists the exit codes of the command line.
"""


def _errors() -> str:
    found = public_errors()
    lines = [
        MARK,
        _ERRORS_INTRODUCTION,
        "| error | kind of | outcome | retriable | meaning |",
        "|---|---|---|---|---|",
    ]
    for kind in found:
        parents = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        first = " ".join(inline(inspect.getdoc(kind) or "").partition("\n\n")[0].split())
        lines.append(
            f"| [{kind.__name__}](#{kind.__name__.lower()}) | {parents} | `{kind.outcome}` | "
            f"{'yes' if kind.retriable else 'no'} | {first} |"
        )
    lines.append("")
    for kind in found:
        lines += [f"## {kind.__name__}", ""]
        module = next(
            (name for name, names in ERRORS.items() if kind.__name__ in names.split()), "walstore"
        )
        lines += [*code(module, f"class {kind.__name__}({kind.__bases__[0].__name__})"), ""]
        lines += text_of(kind.__doc__)
        facts = _facts(kind)
        if facts:
            lines += [f"Attributes: {', '.join(f'`{name}`' for name in facts)}.", ""]
    return joined(lines)


def _facts(kind: type[WalError]) -> list[str]:
    """Return the attributes that the constructor sets."""
    found: list[str] = []
    for base in reversed(kind.__mro__):
        init = vars(base).get("__init__")
        if isinstance(init, types.FunctionType):
            stores = re.findall(r"^\s+self\.([a-z]\w*) = ", inspect.getsource(init), re.MULTILINE)
            found += [name for name in stores if name not in found]
    return found


# -- llms.txt --------------------------------------------------------------------------------


_LLMS_INTRODUCTION = """\
# walstore

> A write-ahead log for asyncio programs in Python, shipped to object storage as wal3 fragments.

One process writes a local log; any number of tasks and processes read it. You choose per append what it
waits for: "memory", "disk" (the default), "replicated" or "cloud". A log can also exist in object storage
alone, with several writers. Spark reads and writes logs.
"""


def _llms(made: dict[str, str]) -> str:
    lines = [_LLMS_INTRODUCTION]
    for section, names in SECTIONS.items():
        lines += [f"## {section}", ""]
        paths = [f"{name}.md" for name in names.split()]
        if section == "Reference":
            paths += ["reference/index.md", *(f"reference/{page.name}.md" for page in PAGES)]
        for path in paths:
            text = made.get(path) or (DOCS / path).read_text()
            lines.append(f"- [{_title(text)}]({path}){_summary(text)}")
        lines.append("")
    return joined(lines)


def _title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert found
    return found[1]


def _summary(text: str) -> str:
    """Return the first sentence under the title, if there is one."""
    body = text.partition("\n# ")[2] if text.startswith("<!--") else text.removeprefix("# ")
    paragraph = " ".join(body.partition("\n\n")[2].partition("\n\n")[0].split())
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", paragraph)
    found = re.match(r"[A-Z`].+?[.:](?= |$)", plain)
    return f": {found[0].rstrip(':.')}" if found else ""


def main() -> None:
    """Write the pages that changed, and name them."""
    for name, text in pages().items():
        path = DOCS / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            sys.stdout.write(f"wrote docs/{name}\n")


if __name__ == "__main__":
    main()
