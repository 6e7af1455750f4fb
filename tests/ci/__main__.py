"""Run steps, each with a limit; run again what failed; report. The exit status is 1 for defects, else 0.

    python -m tests.ci [--began SECONDS] [--minutes 20] [--directory .ci-run] TARGET …

Each TARGET is one of ``make``. The last one has the time that is left.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.ci import choice, report
from tests.ci.step import Result, Step, run_step
from tests.ci.verdict import judge

LIMIT_SECONDS: Final = {"test": 540, "check": 300, "test-debug": 240}
"""How long a step may take; the others have the time that is left."""
AGAIN_SECONDS: Final = 150
"""How long the failed tests of a step may take, run again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps."""
    given = _parse(arguments)
    directory: Path = given.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    end = given.began + given.minutes * 60
    results = [
        run_step(_step(target, end - given.again_seconds - time.time()), directory)
        for target in given.targets
    ]
    verdict = judge(results, partial(_run_again, directory=directory, seconds=given.again_seconds))
    before = report.read_timing()
    now = report.timing(results, directory, before)
    (directory / report.TIMING.name).write_text(json.dumps(now, indent=1) + "\n")
    text = "\n".join(report.lines(results, verdict, now, before))
    (directory / "summary.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    _conclude(results, len(verdict.defects), time.time() - given.began)
    return 1 if verdict.defects else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.ci", description=__doc__)
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="a target of make")
    parser.add_argument("--began", type=float, default=time.time(), help="when the time began")
    parser.add_argument("--minutes", type=float, default=20, help="the limit of the whole run")
    parser.add_argument(
        "--again-seconds", type=float, default=AGAIN_SECONDS, help="the part for what failed"
    )
    parser.add_argument("--directory", type=Path, default=Path(".ci-run"), help="for the records")
    return parser.parse_args(arguments)


def _step(target: str, left_seconds: float) -> Step:
    seconds = max(1.0, min(LIMIT_SECONDS.get(target, left_seconds), left_seconds))
    chosen = choice.files(target, seconds)
    return Step(
        name=target,
        command=["make", target],
        seconds=seconds,
        files=chosen.run if chosen else None,
        left_out=chosen.left_out if chosen else (),
        may_stop=chosen is not None,
    )


def _run_again(result: Result, nodes: Sequence[str], *, directory: Path, seconds: float) -> Result:
    """Run some tests of a step alone: one process, and nothing beside it."""
    command = [sys.executable, "-m", "pytest", "--numprocesses=0", "-p", "no:cacheprovider", *nodes]
    step = Step(
        name=f"{result.step.name}-again",
        command=command,
        seconds=seconds,
        environment=result.record.environment,
    )
    return run_step(step, directory)


def _conclude(results: Sequence[Result], defects: int, seconds: float) -> None:
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.record.counts())
    skipped = counts.total() - counts["passed"] - counts["failed"] - counts["stopped"]
    print(f"\nci: {'FAILED' if defects else 'ok'} after {seconds / 60:.1f} minutes")
    print(f"{counts['passed']} passed, {defects} failed, {skipped} skipped")


if __name__ == "__main__":
    sys.exit(main())
