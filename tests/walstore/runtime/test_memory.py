"""Memory: what a program had in large blocks, it gives back."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import re, sys
from pathlib import Path
if sys.argv[1] == "returns":
    from walstore.runtime.memory import return_large_blocks
    return_large_blocks()

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

before = resident()
del (first := [b"x" * (20 << 20)])[0]
kept = []
large = [(b"x" * (16 << 20), kept.append(b"y" * 100_000)) for _ in range(8)]
del large
print(resident() - before)
"""


@pytest.mark.slow
def test_large_blocks_go_back_to_the_system() -> None:
    grown = {
        how: int(subprocess.check_output([sys.executable, "-c", PROGRAM, how]))
        for how in ("keeps", "returns")
    }
    assert grown["returns"] < 20, grown
