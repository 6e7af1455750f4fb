"""Page: an HTML page that contains all it needs, dark or light as the reader's system is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

_STYLE: Final = """\
:root { color-scheme: light dark; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 960px; padding: 16px; }
h1 { font-size: 22px; } h2 { font-size: 17px; margin: 32px 0 8px; }
p { max-width: 720px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid #8884; padding: 4px 16px 4px 0; text-align: left; }
th { font-weight: 600; white-space: nowrap; }
tbody th { font-weight: normal; }
td { overflow-wrap: anywhere; }
td.number, th.number { overflow-wrap: normal; text-align: right; white-space: nowrap; }
"""


def html_page(title: str, parts: Iterable[str], *, style: str = "") -> str:
    """Return a page of parts, which are HTML. ``style`` is added to the common one."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_STYLE}{style}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>",
            *parts,
            "</body>\n</html>\n",
        ]
    )


def html_table(
    names: Sequence[str], rows: Iterable[Sequence[str]], *, is_text: bool = False
) -> str:
    """Return a table whose rows begin with their names; with names of columns the other cells are numbers,
    unless ``is_text``."""
    kind = ' class="number"' if names and not is_text else ""
    lines = ['<div class="wide"><table>']
    if names:
        cells = "".join(f"<th{kind}>{escape(name)}</th>" for name in names[1:])
        lines += [f"<thead><tr><th>{escape(names[0])}</th>{cells}</tr></thead>"]
    lines += ["<tbody>"]
    for first, *others in rows:
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell in others)
        lines += [f"<tr><th>{escape(first)}</th>{cells}</tr>"]
    return "\n".join([*lines, "</tbody></table></div>"])
