"""Whether a run is red: what failed runs once more, alone, and only what fails again is a defect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.ci.record import TestRun
from tests.ci.step import Result

MOST_REPEATED: Final = 20
"""More failures than these are one defect, not chance; none of them runs again."""

Rerun = Callable[[Result, str], Result]
"""Runs a test of a step again, alone, or all tests of a file."""


@dataclass
class Verdict:
    """What the run found."""

    flaky: list[TestRun] = field(default_factory=list)
    """Failed, and passed alone. With the message of the failure."""
    defects: list[str] = field(default_factory=list)
    """Each a line; the run is red if there is one."""


def judge(results: Iterable[Result], rerun: Rerun) -> Verdict:
    """Return what failed twice, and what failed once."""
    verdict = Verdict()
    for result in results:
        verdict.defects += [f"{result.step.name}: {line}" for line in result.unexplained()]
        suspects = result.suspects()
        if len(suspects) > MOST_REPEATED:
            verdict.defects += [f"{result.step.name}: {_line(test)}" for test in suspects]
        elif suspects:
            _judge_again(result, suspects, rerun, verdict)
    return verdict


def _judge_again(
    result: Result, suspects: Sequence[TestRun], rerun: Rerun, verdict: Verdict
) -> None:
    for test in suspects:
        again = rerun(result, test.selector)
        failed = again.suspects()
        second = failed[0] if failed else again.record.tests.get(test.plain_node)
        if second and second.outcome == "passed" and not again.unexplained():
            verdict.flaky.append(test)
        else:
            verdict.defects.append(f"{result.step.name}: {_line(second or test)}")


def _line(test: TestRun) -> str:
    message = test.message or "began and did not end" if test.outcome is None else test.message
    return f"{test.node}: {message or test.outcome}"
