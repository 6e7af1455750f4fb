"""What ``make nightly`` says of parts that pass, fail and are skipped, with a program instead of make."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.effort import ROOT, SEED
from tests.nightly import Part, parts, run_all

MAKE = """
import os, sys
name, *words = sys.argv[1:]
print(f"effort {os.environ['WALSTORE_EFFORT']}, seed {os.environ['WALSTORE_SEED']}, {words}")
if name == "lacking":
    print("there is no strace\\nlacking: skipped, see above")
sys.exit(2 if name == "broken" else 0)
"""
PROGRAM = (sys.executable, "-c", MAKE)


def test_one_line_for_each_part_whatever_becomes_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [
        Part("broken", ("ARGS=--seed 7",)),
        Part("whole"),
        Part("lacking"),
        Part("far", missing="CHROMA=path is not given"),
    ]
    assert run_all(chosen, tmp_path / "out", PROGRAM) == 1
    said = capsys.readouterr().out
    assert f"effort 1, seed {SEED}, ['ARGS=--seed 7']" in said, "what a part that failed had said"
    assert re.findall(r"^(\w+) +[\d.]+ min  (.*)$", said, re.MULTILINE) == [
        ("broken", "FAILED"),
        ("whole", "passed"),
        ("lacking", "skipped: there is no strace"),
        ("far", "skipped: CHROMA=path is not given"),
    ]
    assert said.endswith(f'\nagain: make nightly SEED={SEED} PARTS="broken"\n')
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "broken.txt",
        "lacking.txt",
        "whole.txt",
    ]


def test_it_ends_well_if_nothing_failed(tmp_path: Path) -> None:
    assert run_all([Part("whole"), Part("lacking")], tmp_path, PROGRAM) == 0


def test_each_part_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {part.name for part in parts()} <= targets
    assert [part.name for part in parts() if part.missing] == ["test-wal3"]
    assert not any(part.missing for part in parts("a/checkout"))
