"""The golden cursors: what is in ``cursor_v1``, and the program that wrote it.

Version 1 must stay readable for good, so the files are never written again.
``python -m tests.golden.regenerate_cursor`` made them; it refuses to run while they are there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors.directory import encode_cursor

DIRECTORY: Final = Path(__file__).parent / "cursor_v1"
TIME_US: Final = 1_760_000_000_000_000
HOUR_US: Final = 3_600_000_000

EXPECTED: Final = {
    "billing": CursorState(42, 7, b"handle-1", TIME_US, 0, 0, "process 12 on somewhere"),
    "dashboard.v2": CursorState(
        2**63, 2**40, bytes(range(8)), TIME_US, HOUR_US, TIME_US + HOUR_US, "später"
    ),
    "new": CursorState(1, 1, bytes(8), TIME_US, 0, 0, ""),
}


def main() -> int:
    """Write the golden cursors once."""
    if DIRECTORY.exists():
        sys.stderr.write(f"{DIRECTORY} is there and must not change\n")
        return 1
    DIRECTORY.mkdir()
    for name, state in EXPECTED.items():
        (DIRECTORY / name).write_bytes(encode_cursor(state))
    return 0


if __name__ == "__main__":
    sys.exit(main())
