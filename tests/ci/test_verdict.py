"""Which failures make a run red."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.ci.__main__ import run_again
from tests.ci.record import Record, TestRun
from tests.ci.step import Result, Step
from tests.ci.verdict import MOST_REPEATED, judge

STEP = Step("test", ["make", "test"], seconds=60)
NODE = "tests/test_a.py::test_one"


def result(*tests: TestRun, status: int = 0) -> Result:
    """Return how pytest ended with some tests."""
    tests_by_node = {test.node: test for test in tests}
    record = Record(True, list(tests_by_node), tests_by_node, exit_status=min(status, 1))
    return Result(STEP, 1.0, status, was_stopped=False, record=record)


def stopped(*tests: TestRun, may_stop: bool) -> Result:
    """Return how a step ended that was stopped among some tests."""
    record = Record(has_begun=True, tests={test.node: test for test in tests})
    return Result(replace(STEP, may_stop=may_stop), 1.0, -15, was_stopped=True, record=record)


class Rerun:
    """Ends each test that runs again as it is told to, and remembers which ran."""

    def __init__(self, outcome: str | None) -> None:
        self.outcome = outcome
        self.nodes: list[str] = []

    def __call__(self, first: Result, selector: str) -> Result:
        self.nodes.append(selector)
        node = selector if "::" in selector else NODE
        return result(TestRun(node, self.outcome, message="again"))


def failed(node: str = NODE) -> TestRun:
    return TestRun(node, "failed", message="assert 1 == 2")


def test_a_run_without_failures_repeats_nothing() -> None:
    rerun = Rerun("passed")
    verdict = judge([result(TestRun(NODE, "passed"), TestRun("b", "skipped"))], rerun)
    assert (verdict.flaky, verdict.defects, rerun.nodes) == ([], [], [])


def test_what_passes_alone_is_flaky_and_named_with_its_first_message() -> None:
    verdict = judge([result(failed(), status=1)], Rerun("passed"))
    assert verdict.defects == []
    assert [(test.node, test.message) for test in verdict.flaky] == [(NODE, "assert 1 == 2")]


def test_what_fails_twice_is_a_defect() -> None:
    verdict = judge([result(failed(), status=1)], Rerun("failed"))
    assert verdict.defects == [f"test: {NODE}: again"]


def test_what_does_not_end_the_second_time_is_a_defect() -> None:
    assert judge([result(failed(), status=1)], Rerun(None)).defects


def test_what_cannot_run_again_because_the_time_is_over_is_a_defect(tmp_path: Path) -> None:
    """However many steps had failures, and however long these take."""
    rerun = partial(run_again, directory=tmp_path, end=0.0)
    verdict = judge([result(failed(), status=1)], rerun)
    assert verdict.defects == [f"test: {NODE}: assert 1 == 2"]
    assert list(tmp_path.iterdir()) == []


def test_what_is_skipped_the_second_time_has_not_passed() -> None:
    assert judge([result(failed(), status=1)], Rerun("skipped")).defects


def test_what_was_running_when_a_step_was_stopped_that_may_leave_tests_out_runs_again() -> None:
    rerun = Rerun("passed")
    verdict = judge([stopped(TestRun(NODE), may_stop=True)], rerun)
    assert rerun.nodes == [NODE]
    assert verdict.defects == []
    assert [test.node for test in verdict.flaky] == [NODE]


def test_a_step_that_must_run_all_is_red_if_it_is_stopped_whatever_passes_alone() -> None:
    verdict = judge([stopped(failed(f"{NODE}2"), TestRun(NODE), may_stop=False)], Rerun("passed"))
    assert verdict.defects == ["test: stopped after 1 s, among tests; what comes after did not run"]


@pytest.mark.parametrize("may_stop", [False, True])
def test_a_step_that_is_stopped_between_tests_is_red(may_stop: bool) -> None:
    verdict = judge([stopped(TestRun(NODE, "passed"), may_stop=may_stop)], Rerun("passed"))
    assert verdict.defects == [
        "test: stopped after 1 s, between tests; what comes after did not run"
    ]


@pytest.mark.parametrize(
    ("exit_status", "how"), [(None, "died"), (2, "ended with 2"), (3, "ended with 3")]
)
def test_a_pytest_that_did_not_run_all_tests_is_red_whatever_passes_alone(
    exit_status: int | None, how: str
) -> None:
    found = result(failed(), status=2)
    found.record.exit_status = exit_status
    assert judge([found], Rerun("passed")).defects == [f"test: pytest {how}; tests may be missing"]


def test_a_pytest_without_tests_is_red() -> None:
    for status in (0, 2):
        found = result(status=status)
        assert judge([found], Rerun("passed")).defects == [
            f"test: no test ran; it ended with {status}"
        ]


def test_a_pytest_that_did_not_run_what_it_collected_is_red_whatever_passes_alone() -> None:
    for status in (0, 1):
        found = result(failed(), status=status)
        found.record.collected += ["b", "c"]
        assert judge([found], Rerun("passed")).defects == [
            "test: 2 tests did not run, the first is b"
        ]


def test_what_a_file_leaves_behind_is_tried_with_the_file() -> None:
    rerun = Rerun("passed")
    verdict = judge([result(replace(failed(), phase="teardown"), status=1)], rerun)
    assert (rerun.nodes, len(verdict.flaky)) == (["tests/test_a.py"], 1)
    assert judge([result(replace(failed(), phase="teardown"), status=1)], Rerun("failed")).defects


def test_the_group_of_a_test_is_no_part_of_its_name() -> None:
    rerun = Rerun("passed")
    nodes = [
        "tests/test_a.py::test_one@spark",
        "tests/test_a.py::test_one[a@b/c]",
        "tests/test_a.py::test_one[a@b]",
    ]
    judge([result(*map(failed, nodes), status=1)], rerun)
    assert rerun.nodes == [NODE, *nodes[1:]]


def test_a_failure_without_a_test_is_a_defect() -> None:
    assert judge([result(TestRun(NODE, "passed"), status=2)], Rerun("passed")).defects == [
        "test: ended with 2"
    ]


def test_a_command_without_tests_that_fails_is_a_defect() -> None:
    check = Result(replace(STEP, has_tests=False), 1.0, 2, was_stopped=False)
    assert judge([check], Rerun("passed")).defects == ["test: ended with 2"]


def test_a_module_that_cannot_be_collected_is_a_defect() -> None:
    found = result(status=2)
    found.record.broken = ["tests/test_b.py: ImportError"]
    assert judge([found], Rerun("passed")).defects == ["test: tests/test_b.py: ImportError"]


def test_many_failures_are_no_chance() -> None:
    rerun = Rerun("passed")
    many = [failed(f"{NODE}[{number}]") for number in range(MOST_REPEATED + 1)]
    assert len(judge([result(*many, status=1)], rerun).defects) == len(many)
    assert rerun.nodes == []
