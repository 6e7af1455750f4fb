"""Print the tables of docs/metrics.md, or update them in the given pages: ``python -m
walstore.metrics``."""

from __future__ import annotations

import sys
from pathlib import Path

from walstore.metrics import table


def main(pages: list[str]) -> None:
    """Update the tables of each page, or print them if none is given."""
    if not pages:
        sys.stdout.write(f"{table.render()}\n")
    for name in pages:
        page = Path(name)
        page.write_text(table.replace(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
