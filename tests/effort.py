"""How much those tests do that could go on for ever, and what: random programs, damaged files, kills.

``make test-slow`` does a tenth of what their numbers say, so that it ends in time on a slow machine, too.
``WALSTORE_EFFORT=1 make test-slow`` does all of it, a larger number more.

What they draw follows from ``WALSTORE_SEED``. Unless it is given, it is made from the hash of the commit:
each commit tries something new, and a failure comes again at the same commit.
"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SEEDS_EACH: Final = 12_000
"""So many seeds has each name for itself. Divisible by 24 and 5: kinds follow from remainders."""
_NAMES: Final = 100_000


def _seed_of_the_commit() -> str:
    """Return a seed made from the hash of the commit; 0 where there is none."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "0"
    return str(int(done.stdout[:7], 16))


EFFORT: Final = float(os.environ.get("WALSTORE_EFFORT", "0.1"))
# Processes that tests start have the same one, pytest's workers, too, even if there is a commit meanwhile.
SEED: Final = int(os.environ.get("WALSTORE_SEED") or _seed_of_the_commit())
os.environ["WALSTORE_SEED"] = str(SEED)


def some(count: int, *, least: int = 1) -> int:
    """Return how many of so many to do."""
    return max(least, math.ceil(count * EFFORT))


def every(step: int = 1) -> int:
    """Return the distance from one to the next of a series, instead of ``step``."""
    return max(1, round(step / math.sqrt(min(EFFORT, 1.0))))


def first_seed(name: str) -> int:
    """Return the first of the seeds of a name, a multiple of :data:`SEEDS_EACH`."""
    digest = hashlib.sha256(f"{SEED} {name}".encode()).digest()
    return (1 + int.from_bytes(digest[:8]) % _NAMES) * SEEDS_EACH


def again(test: str) -> str:
    """Return the command that repeats a test."""
    return f"WALSTORE_SEED={SEED} WALSTORE_EFFORT={EFFORT:g} .venv/bin/python -m pytest '{test}'"
