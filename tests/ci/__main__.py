"""Run steps, each with a limit; run again what failed; report. The exit status is 1 for defects, else 0.

    python -m tests.ci [--began SECONDS] [--minutes 20] [--directory .ci-run] TARGET …

Each TARGET is one of ``make``. The last one has the time that is left.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.ci import choice, report
from tests.ci.step import GRACE_SECONDS, Result, Step, run_step
from tests.ci.verdict import Verdict, judge

LIMIT_SECONDS: Final = {"test": 540, "check": 300, "test-debug": 240}
"""How long a step may take; the others have the time that is left."""
AGAIN_SECONDS: Final = 150
"""How long the failed tests of a step may take, run again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps."""
    given = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the step, too
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    directory: Path = given.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    end = given.began + given.minutes * 60
    results = [
        run_step(_step(target, end - given.again_seconds - GRACE_SECONDS - time.time()), directory)
        for target in given.targets
    ]
    verdict = judge(results, partial(run_again, directory=directory, end=end - GRACE_SECONDS))
    before = report.read_timing()
    now = report.timing(results, directory, before)
    (directory / report.TIMING.name).write_text(json.dumps(now, indent=1) + "\n")
    text = "\n".join(report.lines(results, verdict, now, before))
    (directory / "summary.txt").write_text(text + "\n", "utf-8", errors="backslashreplace")
    print(text)
    _conclude(results, verdict, time.time() - given.began)
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
        has_tests=target.startswith("test"),
        may_stop=chosen is not None,
    )


def run_again(result: Result, selector: str, *, directory: Path, end: float) -> Result:
    """Run a test of a step alone: one process, and nothing beside it."""
    pytest = [sys.executable, "-m", "pytest", "--numprocesses=0", "-p", "no:cacheprovider"]
    step = Step(
        name=f"{result.step.name}-again",
        # The shell is the parent that a test may kill.
        command=["sh", "-c", '"$@"; exit $?', "sh", *pytest, selector],
        seconds=end - time.time(),
        environment=result.record.environment,
    )
    if step.seconds < 1:  # no time is left
        return Result(step, 0.0, 0, was_stopped=True)
    return run_step(step, directory)


def _conclude(results: Sequence[Result], verdict: Verdict, seconds: float) -> None:
    defects, flaky = len(verdict.defects), len(verdict.flaky)
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.record.counts())
    skipped = counts.total() - counts["passed"] - counts["failed"] - counts["stopped"]
    print(f"\nci: {'FAILED' if defects else 'ok'} after {seconds / 60:.1f} minutes")
    print(
        f"{counts['passed']} passed, {defects} failed, {skipped} skipped"
        + (f", {flaky} flaky" if flaky else "")
    )


if __name__ == "__main__":
    sys.exit(main())
