"""Shares of the tests that CI runs in turn: each file once in so many turns.

The turn is made from the name of the commit. The count of commits would visit each share in order, but one
submission has any number of them: with four at a time the same quarter would run for ever. The time has the
like, if submissions keep to the clock. Names of commits have no such pattern: after ``n`` runs a share still
waits with a probability of ``(1 - 1 / of) ** n``, which for quarters is 1 % after sixteen runs. The same
commit runs the same tests every time.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def share(name: str, *, of: int, turn: int) -> bool:
    """Return whether a test file is in the share of this turn; it is in one of ``of`` consecutive turns."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return number % of == turn % of


def turn_of(commit: str) -> int:
    """Return the turn that belongs to the full name of a commit."""
    return int(commit, 16)


def turn_of_head() -> int:
    """Return the turn of the commit that is checked out."""
    command = ("git", "rev-parse", "HEAD")
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return turn_of(found.strip())
