"""How much those tests do that could go on for ever: random programs, damaged files, kills, calls that fail.

``make test-slow`` does a fifth of what their numbers say, so that it ends in time on a slow machine, too.
``WALSTORE_EFFORT=1 make test-slow`` does all of it, a larger number more.
"""

from __future__ import annotations

import math
import os
from typing import Final

EFFORT: Final = float(os.environ.get("WALSTORE_EFFORT", "0.2"))


def some(count: int, *, least: int = 1) -> int:
    """Return how many of so many to do."""
    return max(least, math.ceil(count * EFFORT))


def every(step: int = 1) -> int:
    """Return the distance from one to the next of a series, instead of ``step``."""
    return max(1, round(step / math.sqrt(min(EFFORT, 1.0))))
