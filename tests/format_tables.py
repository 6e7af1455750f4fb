"""The tables of docs/format.md as values, so that tests can hold the code against them."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parent.parent / "docs" / "format.md"
_CODES: Final = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}

Row = dict[str, str]


def table(title: str, page: Path = PAGE) -> list[Row]:
    """Return the rows of the only table in the section with that title, by column name."""
    sections = re.split(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    body = sections[sections.index(title) + 1]
    lines = [_cells(line) for line in body.splitlines() if line.startswith("|")]
    names, rules, *rows = lines
    assert set("".join(rules)) == {"-"}, f"section {title!r} has no table"
    assert all(len(row) == len(names) for row in rows), f"uneven table in {title!r}"
    return [dict(zip(names, row, strict=True)) for row in rows]


def struct_format(rows: list[Row]) -> str:
    """Return the struct format of a byte table, having checked its positions and sizes.

    Types are u8 to u64, and ``bytes`` of the given size.
    """
    codes = ""
    at = 0
    for row in rows:
        assert int(row["at"]) == at, f"field {row['field']} is at {at}, not {row['at']}"
        size = int(row["size"])
        code = f"{size}s" if row["type"] == "bytes" else _CODES[row["type"]]
        assert struct.calcsize(f"<{code}") == size, f"size of field {row['field']}"
        codes += code
        at += size
    return f"<{codes}"


def field_names(rows: list[Row]) -> list[str]:
    """Return the names of the fields of a byte table."""
    return [row["field"].strip("`") for row in rows]


def magic(rows: list[Row], field: str = "magic") -> tuple[int, bytes]:
    """Return a magic number of a byte table and the bytes it says they are."""
    meaning = next(row["meaning"] for row in rows if row["field"] == f"`{field}`")
    number, text = re.findall(r"`([^`]+)`", meaning)[:2]
    return int(number, 16), text.encode()


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
