"""Keeps the list of what is public, with signatures: ``python -m tools.api`` writes tests/golden/api.txt.

A name that is not there any more stays in the list, and tests/test_api.py fails, until ``--forget`` says that
the version which warned of its end is out; docs/api.md has the rules.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.docstrings import is_coroutine, signature_of
from tools.reference_contents import HIDDEN, INSIDE, PAGES

LIST = Path(__file__).parent.parent / "tests" / "golden" / "api.txt"


def signatures() -> dict[str, str]:
    """Return each public name with its signature; attributes and properties with their type or none."""
    found: dict[str, str] = {}
    for page in PAGES:
        for module_name, names in page.names.items():
            module = importlib.import_module(module_name)
            for name in names.split():
                found |= _of(f"{module_name}.{name}", getattr(module, name))
    return dict(sorted(found.items()))


def listed() -> dict[str, str]:
    """Return the list as it is kept."""
    lines = LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []
    return {re.split(r"[(: ]", line, maxsplit=1)[0]: line for line in lines}


def _of(path: str, shown: Any) -> dict[str, str]:
    if not inspect.isclass(shown):
        return {path: f"{path}{_signature(shown)}"}
    is_made = shown.__init__.__doc__ or dataclasses.is_dataclass(shown)
    is_hidden = (shown.__init__.__doc__ or "").startswith(INSIDE) or issubclass(shown, enum.Enum)
    found = {path: path if is_hidden or not is_made else f"{path}{_signature(shown)}"}
    for name, member in _members(shown):
        found[f"{path}.{name}"] = f"{path}.{name}{_signature(member)}"
    return found


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members that a class of ours has, inherited ones included."""
    for name in dir(kind):
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if name.startswith("_") or owner is None:
            continue
        if owner.__module__.split(".")[0] not in {"walstore", "uploader"} or name in HIDDEN:
            continue
        member = inspect.getattr_static(kind, name)
        is_shown = callable(member) or hasattr(member, "__get__") or issubclass(kind, enum.Enum)
        if is_shown and not (getattr(member, "__doc__", None) or "").startswith(INSIDE):
            yield name, member


def _signature(shown: Any) -> str:
    if isinstance(shown, property):
        result = getattr(shown.fget, "__annotations__", {}).get("return", "")
        return f": {result}" if result else ""
    function = getattr(shown, "__func__", shown)
    if not callable(function):
        return ""
    try:
        after = ", awaited" if is_coroutine(function) else ""
        return re.sub(r" at 0x[0-9a-f]+", "", str(signature_of(function))) + after
    except (TypeError, ValueError):
        return ""


def main() -> None:
    """Write the list: what is new and what changed; with ``--forget`` also without what is gone."""
    now = signatures()
    kept = {} if "--forget" in sys.argv[1:] else listed()
    lines = sorted((kept | now).values())
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in sorted(set(kept) - set(now)):
        sys.stdout.write(f"not there any more: {name}\n")


if __name__ == "__main__":
    main()
