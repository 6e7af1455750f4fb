"""``python -m tests.fuzz``: opens thousands of damaged and forged logs, and buckets; ``make fuzz`` runs it.

A seed whose input is answered wrongly is printed with the command that opens it again, and its files are
kept. Ends with code 1 if there was any.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.fuzz import worker

KEPT: Final = Path(".fuzz")
INPUTS: Final = {"log": 5_000, "bucket": 1_500}
_SHOWN: Final = 20


class Totals:
    """What all workers found."""

    def __init__(self, kind: str) -> None:
        """``kind`` is what is damaged."""
        self.kind = kind
        self.inputs = 0
        self.kinds: Counter[str] = Counter()
        self.failed: dict[int, tuple[str, list[str]]] = {}
        self._lock = threading.Lock()

    def add(self, line: dict[str, Any]) -> None:
        """Take what a worker said of an input."""
        with self._lock:
            if line["seed"] >= 0:
                self.inputs += 1
                self.kinds.update(line["kinds"])
            if line["problems"]:
                self.fail(line["seed"], line["what"], line["problems"])

    def fail(self, seed: int, what: str, problems: list[str]) -> None:
        """Note an input that was answered wrongly."""
        self.failed[seed] = (what, problems)
        if len(self.failed) <= _SHOWN:
            kept = KEPT / self.kind / str(seed)
            print(f"seed {seed}: {what}", *problems, sep="\n    ")
            print(f"    again: {sys.executable} -m tests.fuzz --replay {kept}", flush=True)


def _work(totals: Totals, first: int, limit: int, step: int) -> None:
    """Run one worker after the other, until the seeds of one share are done."""
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "PYTHONPATH": os.getcwd()}
    while first < limit:
        arguments = [totals.kind, *map(str, (first, limit, step)), str(KEPT)]
        command = [sys.executable, "-m", "tests.fuzz.worker", *arguments]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=environment
            ) as child,
        ):
            assert child.stdout is not None
            begun = None
            for text in child.stdout:
                line = json.loads(text)
                begun = line["seed"] if "problems" not in line else None
                if "problems" in line:
                    totals.add(line)
                    first = max(first, line["seed"] + step)
            if child.wait() == 0:
                return
            errors.seek(0)
            why = errors.read().decode("utf-8", "replace")[-6000:]
        totals.fail(first if begun is None else begun, "hangs, or ends the process", [why])
        first = (first if begun is None else begun) + step


def main() -> int:
    """Run what the command line says; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kind", choices=[*INPUTS, "both"], default="both", help="what is opened")
    parser.add_argument("--inputs", type=int, help="of each kind")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", type=Path, help="a directory that was kept")
    options = parser.parse_args()
    if options.replay is not None:
        worker.prepare()
        problems = worker.replay(options.replay)
        print(*problems or ["nothing is wrong"], sep="\n")
        return 1 if problems else 0
    kinds = INPUTS if options.kind == "both" else [options.kind]
    return max(
        _run(kind, options.first, options.inputs or INPUTS[kind], options.workers) for kind in kinds
    )


def _run(kind: str, first: int, inputs: int, workers: int) -> int:
    """Open so many inputs of one kind, and print what was found; return the exit code."""
    began, totals = time.monotonic(), Totals(kind)
    limit = first + inputs
    threads = [
        threading.Thread(target=_work, args=(totals, first + at, limit, workers))
        for at in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for what, count in sorted(totals.kinds.items()):
        print(f"{count:6}  {what}")
    print(
        f"{totals.inputs} inputs of kind {kind}, {len(totals.kinds)} kinds of damage to files, "
        f"{len(totals.failed)} answered wrongly, {time.monotonic() - began:.0f} s"
    )
    return 1 if totals.failed or totals.inputs < inputs else 0


if __name__ == "__main__":
    sys.exit(main())
