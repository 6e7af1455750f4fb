"""Writes the golden documents beside this file, from the example log of ``tests/golden/wal3``.

Run from the root of the repository::

    python -m tests.golden.wal3_garbage.regenerate

It writes only files that are missing and fails if one that is there would change.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from tests.golden.wal3.regenerate import TIME_US, ZERO, pointer, setsum_of, snapshot

DIRECTORY: Final = Path(__file__).parent


def garbage(**changes: Any) -> dict[str, Any]:
    """Return a document in the order of wal3's fields."""
    empty = {
        "snapshots_to_drop": [],
        "snapshots_to_make": [],
        "snapshot_for_root": None,
        "fragments_to_drop_start": 0,
        "fragments_to_drop_limit": 0,
        "fragments_are_uuids": False,
        "setsum_to_discard": ZERO,
        "first_to_keep": {"offset": 1},
    }
    return empty | changes


def documents() -> dict[str, dict[str, Any]]:
    """Return each document by its name."""
    return {
        "garbage-empty": garbage(),
        "garbage-snapshot-split": garbage(
            snapshots_to_drop=[pointer(range(1, 3), depth=1)],
            snapshots_to_make=[snapshot(range(2, 3), writer="garbage collection")],
            snapshot_for_root=pointer(range(2, 3), depth=1),
            fragments_to_drop_start=1,
            fragments_to_drop_limit=2,
            setsum_to_discard=setsum_of(range(1, 2)),
            first_to_keep={"offset": 2},
        ),
        "cursor": {"position": {"offset": 3}, "epoch_us": TIME_US, "writer": "w"},
    }


def main() -> None:
    """Write what is missing; exit with an error if something would change."""
    for name, document in documents().items():
        path = DIRECTORY / f"{name}.json"
        data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        if not path.exists():
            path.write_bytes(data)
        elif path.read_bytes() != data:
            sys.exit(f"{path} would change")


if __name__ == "__main__":
    main()
