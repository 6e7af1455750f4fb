"""Whether a run is red: what failed runs once more, alone, and only what fails again is a defect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.ci.record import TestRun
from tests.ci.step import Result

MOST_REPEATED: Final = 20
"""More failures than these are one defect, not chance; none of them runs again."""

Rerun = Callable[[Result, Sequence[str]], Result]
"""Runs some tests of a step again, alone."""


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
        if result.has_unexplained_failure:
            verdict.defects += [f"{result.step.name}: {line}" for line in _unexplained(result)]
        suspects = [*result.record.by_outcome("failed"), *_running(result)]
        if len(suspects) > MOST_REPEATED:
            verdict.defects += [f"{result.step.name}: {_line(test)}" for test in suspects]
        elif suspects:
            _judge_again(result, suspects, rerun, verdict)
    return verdict


def _judge_again(
    result: Result, suspects: Sequence[TestRun], rerun: Rerun, verdict: Verdict
) -> None:
    again = rerun(result, [_plain(test.node) for test in suspects]).record.tests
    for test in suspects:
        second = again.get(_plain(test.node))
        if second and second.outcome == "passed":
            verdict.flaky.append(test)
        else:
            verdict.defects.append(f"{result.step.name}: {_line(second or test)}")


def _running(result: Result) -> list[TestRun]:
    """Return the tests that had begun when the run ended before its time."""
    return result.record.by_outcome(None)


def _unexplained(result: Result) -> list[str]:
    if result.record.broken:
        return result.record.broken
    if result.was_stopped:
        return [f"stopped after {result.seconds:.0f} s, while no test was running"]
    return [f"ended with {result.status}"]


def _plain(node: str) -> str:
    """Return the id of a test without the group that pytest-xdist appends."""
    name, at, group = node.rpartition("@")
    return name if at and "]" not in group and "/" not in group else node


def _line(test: TestRun) -> str:
    return f"{test.node}: {test.message or 'was running when the step was stopped'}"
