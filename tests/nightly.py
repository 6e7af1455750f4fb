"""Run everything at full effort, with other seeds than in CI: ``make nightly``.

    python -m tests.nightly                  all parts, one after the other
    python -m tests.nightly crash storm      only these

A part is a target of the Makefile. What it prints goes into a file of .nightly; of a part that fails the end
is shown. At the end there is a line for each part. Exit status: 0 if none failed, 1 otherwise.

The seeds follow from ``WALSTORE_SEED``, which ``make nightly`` makes from the date: see ``effort.py``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.effort import ROOT, SEED, first_seed

DIRECTORY: Final = ROOT / ".nightly"
MAKE: Final = ("make", "--no-print-directory")
SHOWN_LINES: Final = 200
"""Of the output of a part that failed."""


class Part(NamedTuple):
    """A target of the Makefile."""

    name: str
    words: tuple[str, ...] = ()
    """What its command line says besides."""
    missing: str = ""
    """What it cannot run without, and nobody gave."""


class Result(NamedTuple):
    """What became of a part."""

    name: str
    outcome: str
    """``passed``, ``FAILED``, or ``skipped`` and why."""
    seconds: float = 0.0

    def describe(self) -> str:
        """Return the line of the part."""
        return f"{self.name:20} {self.seconds / 60:6.1f} min  {self.outcome}"


def parts(chroma: str = "") -> list[Part]:
    """Return all parts in order; ``chroma`` is where its repository is."""
    return [
        Part("test-all"),
        Part("crash", (f"ARGS=--seed {first_seed('make crash')}",)),
        Part("storm", (f"ARGS=--seed {first_seed('make storm')}",)),
        Part("fuzz", (f"ARGS=--first {first_seed('make fuzz')}",)),
        Part("fuzz-frames", (f"ARGS=--first {first_seed('make fuzz-frames')}",)),
        Part("sim", (f"ARGS=--first {first_seed('make sim')}",)),
        Part("test-s3"),
        Part("test-azure"),
        Part("test-durable-streams"),
        Part("test-page"),
        Part("test-cluster"),
        Part("test-spark-versions", ("--keep-going",)),
        Part("test-wal3", (f"CHROMA={chroma}",), "" if chroma else "CHROMA=path is not given"),
    ]


def run(part: Part, directory: Path, make: Sequence[str] = MAKE) -> Result:
    """Run a part; its output goes into a file of the directory."""
    if part.missing:
        return Result(part.name, f"skipped: {part.missing}")
    directory.mkdir(exist_ok=True)
    path, began = directory / f"{part.name}.txt", time.monotonic()
    environment = {**os.environ, "WALSTORE_EFFORT": "1", "WALSTORE_SEED": str(SEED)}
    with path.open("w") as output:
        done = subprocess.run(
            [*make, part.name, *part.words],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    seconds, said = time.monotonic() - began, path.read_text(errors="replace")
    if done.returncode:
        print(
            f"\n{part.name} failed; the end of {path}:", *said.splitlines()[-SHOWN_LINES:], sep="\n"
        )
        return Result(part.name, "FAILED", seconds)
    skipped = re.search(rf"(.*)\n{part.name}: skipped, see above$", said, re.MULTILINE)
    return Result(part.name, f"skipped: {skipped[1]}" if skipped else "passed", seconds)


def run_all(chosen: Sequence[Part], directory: Path, make: Sequence[str] = MAKE) -> int:
    """Run parts, whatever becomes of each; return the exit status."""
    again = f"make nightly SEED={SEED}"
    print(f"nightly: seed {SEED}, output in {directory}; again: {again}", flush=True)
    results = []
    for part in chosen:
        print(f"… {part.name} {' '.join(part.words)}".rstrip(), flush=True)
        results.append(run(part, directory, make))
    print(*("", *(result.describe() for result in results)), sep="\n")
    failed = [result.name for result in results if result.outcome == "FAILED"]
    if failed:
        print(f'\nagain: {again} PARTS="{" ".join(failed)}"')
    return 1 if failed else 0


def main() -> int:
    """Run what the command line says."""
    known = {part.name: part for part in parts(os.environ.get("CHROMA", ""))}
    parser = argparse.ArgumentParser(prog="python -m tests.nightly")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(known)}")
    names = parser.parse_args().parts or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(known)}")
    return run_all([known[name] for name in names], DIRECTORY)


if __name__ == "__main__":
    sys.exit(main())
