"""What a file refers to: modules, programs and files, read from its text.

The text is searched, not the syntax tree: that takes a second for all files instead of fifteen, and it also
finds the imports of programs that a test contains as strings. What is found by mistake only selects more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Each begins with fixed characters where it can: that makes a search fast.
_FOR_TYPES: Final = re.compile(r"\nif TYPE_CHECKING:\n(?:[ \t]+[^\n]*\n|\n)+")
_DOCSTRING: Final = re.compile(r'"""(?:[^"]|"(?!""))*"""')
_COMMENT: Final = re.compile(r"#[^\n]*")
_FROM: Final = re.compile(r"from\s+([\w.]+)\s+import\s+(\([^)]*\)|\*|[\w ,]+)")
_IMPORT: Final = re.compile(r"import\s+([\w., ]+)")
_QUOTED: Final = (re.compile(r'"([\w./-]+)"'), re.compile(r"'([\w./-]+)'"))
_RUN: Final = re.compile(r"-m[\s\"',]+([A-Za-z_][\w.]*)")
_JOINED: Final = re.compile(r"/\s*f?\"[^\"\n]*\"(?:\s*/\s*f?\"[^\"\n]*\")*")
_PART: Final = re.compile(r"f?\"([^\"\n]*)\"")
_SIBLING: Final = re.compile(r"with_name\(\s*f?[\"']([^\"'{]+)[\"']")
_PROGRAM: Final = re.compile(r"[\[(]\s*[\"']walstore[\"'],\s*[\"'](?!uploader)")
_MODULE_ARGUMENT: Final = re.compile(r"(?:import_module|child_process)\(\s*\"([\w.]+)\"")
_SPARK_FORMATS: Final = ('format("walstore', "using walstore", "USING walstore", "pyspark_walstore")
_SPARK_MODULES: Final = (
    "walstore.spark.pyspark_walstore",
    "walstore.spark.pyspark_walstore_collection",
)


class Imported(NamedTuple):
    """A module, or one of its names."""

    module: str
    name: str | None = None
    """None means all of the module; ``*`` all of its public names."""
    bound: str = ""
    """The name that the importer gives it."""


@dataclass(frozen=True)
class References:
    """What the text of a Python file refers to."""

    imports: list[Imported] = field(default_factory=list)
    programs: set[str] = field(default_factory=set)
    """Modules that are run: ``-m walstore``."""
    quoted: set[str] = field(default_factory=set)
    """Strings that may name a module or a file."""
    joined: set[str] = field(default_factory=set)
    """Paths put together with ``/``, up to the first part that is not constant."""
    siblings: set[str] = field(default_factory=set)
    """Files and directories next to this file."""


def read_references(text: str) -> References:
    """Find what a test or a tool refers to."""
    programs = set(_RUN.findall(text))
    if 'which("walstore' in text or _PROGRAM.search(text):
        programs.add("walstore")
    quoted = {one for form in _QUOTED for one in form.findall(text) if "." in one or "/" in one}
    if any(one in text for one in _SPARK_FORMATS):
        quoted.update(_SPARK_MODULES)
    joined = {_join(found) for found in _JOINED.findall(text)} - {""}
    return References(read_imports(text), programs, quoted, joined, set(_SIBLING.findall(text)))


def read_product_references(text: str) -> References:
    """Find the modules that a module of the product imports or runs. Its docstrings do not count."""
    code = _DOCSTRING.sub("", text)
    return References(read_imports(code), quoted=set(_MODULE_ARGUMENT.findall(code)))


def read_imports(text: str) -> list[Imported]:
    """Find the imports of a program, also those in functions and in strings."""
    code = _COMMENT.sub("", text.replace("\\n", "\n"))
    if "TYPE_CHECKING:" in code:
        code = _FOR_TYPES.sub("\n", code)
    found = []
    for module, names in _FROM.findall(code):
        for clause in names.strip("()").split(","):
            words = clause.split()
            if words:
                found.append(Imported(module, words[0], words[-1]))
    for match in _IMPORT.finditer(_FROM.sub("", code)):
        for clause in match[1].split(","):
            words = clause.split()
            if words:
                bound = words[2] if words[1:2] == ["as"] and len(words) > 2 else words[0]
                found.append(Imported(words[0], None, bound))
    return found


def _join(chain: str) -> str:
    parts: list[str] = []
    for part in _PART.findall(chain):
        if "{" in part:
            break
        parts.append(part)
    return "/".join(parts)
