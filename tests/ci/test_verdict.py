"""Which failures make a run red."""

from __future__ import annotations

from collections.abc import Sequence

from tests.ci.record import Record, TestRun
from tests.ci.step import Result, Step
from tests.ci.verdict import MOST_REPEATED, judge

STEP = Step("test", ["make", "test"], seconds=60)
NODE = "tests/test_a.py::test_one"


def result(*tests: TestRun, status: int = 0, was_stopped: bool = False) -> Result:
    record = Record(tests={test.node: test for test in tests})
    return Result(STEP, 1.0, status, was_stopped, record)


class Rerun:
    """Ends each test that runs again as it is told to, and remembers which ran."""

    def __init__(self, outcome: str | None) -> None:
        self.outcome = outcome
        self.nodes: list[str] = []

    def __call__(self, first: Result, nodes: Sequence[str]) -> Result:
        self.nodes += nodes
        return result(*(TestRun(node, self.outcome, message="again") for node in nodes))


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


def test_what_is_skipped_the_second_time_has_not_passed() -> None:
    assert judge([result(failed(), status=1)], Rerun("skipped")).defects


def test_tests_that_were_running_when_the_step_was_stopped_run_again() -> None:
    rerun = Rerun("passed")
    verdict = judge([result(TestRun(NODE), status=2, was_stopped=True)], rerun)
    assert rerun.nodes == [NODE]
    assert verdict.defects == []


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


def test_a_step_that_is_stopped_between_tests_is_a_defect() -> None:
    assert judge([result(status=-15, was_stopped=True)], Rerun("passed")).defects == [
        "test: stopped after 1 s, while no test was running"
    ]


def test_a_module_that_cannot_be_collected_is_a_defect() -> None:
    found = result(status=2)
    found.record.broken = ["tests/test_b.py: ImportError"]
    assert judge([found], Rerun("passed")).defects == ["test: tests/test_b.py: ImportError"]


def test_many_failures_are_no_chance() -> None:
    rerun = Rerun("passed")
    many = [failed(f"{NODE}[{number}]") for number in range(MOST_REPEATED + 1)]
    assert len(judge([result(*many, status=1)], rerun).defects) == len(many)
    assert rerun.nodes == []
