"""Memory: what a program had in large blocks, it gives back."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import re, sys
from pathlib import Path
if sys.argv[1] == "returns":
    from walstore.core.runtime.memory import return_large_blocks
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


GARBAGE = """
import gc, sys
from walstore.core.runtime.memory import collect_rarely
collect_rarely()
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))

def waiting(count):  # as requests, of many objects each, that are there for some time
    return [[[] for _ in range(25)] for _ in range(count)]

kept = waiting(20_000)
full = looks.count(2)
del kept
most = 0
for _ in range(200):  # cycles that have become old
    for one in (part := waiting(1_000)):
        one.append(one)
    del one, part
    most = max(most, len(gc.get_objects()))
print(full, most)
"""


def test_full_collections_are_rare_and_cycles_do_not_stay() -> None:
    full, most = map(int, subprocess.check_output([sys.executable, "-c", GARBAGE]).split())
    assert full <= 2
    assert most < 1_500_000
