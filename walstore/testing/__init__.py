"""A clock and file systems under a test's control, for tests of walstore and of programs that use it.

Of the rest of the package only ``walstore prove`` imports it, and nothing needs a test framework.
"""

from __future__ import annotations

from walstore.testing.calls import Call
from walstore.testing.clock import ManualClock
from walstore.testing.faults import FaultyFileSystem, Hold
from walstore.testing.memory import MemoryFileSystem
from walstore.testing.power import PowerLossFileSystem

__all__ = [
    "Call",
    "FaultyFileSystem",
    "Hold",
    "ManualClock",
    "MemoryFileSystem",
    "PowerLossFileSystem",
]
