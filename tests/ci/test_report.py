"""The report: the times that the next runs plan by, and what each worker did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.ci.record import NOT_RUN, Record, TestRun
from tests.ci.report import lines, timing
from tests.ci.step import Result, Step
from tests.ci.verdict import Verdict


def result(*tests: TestRun, left_out: Sequence[str] = ()) -> Result:
    step = Step("test-slow", ["make"], seconds=60, files=["a.py"], left_out=left_out)
    record = Record(has_begun=True, tests={test.node: test for test in tests}, exit_status=0)
    return Result(step, 9.0, 0, was_stopped=False, record=record)


def files(found: Result, before: dict[str, float], directory: Path) -> dict[str, float]:
    made = timing([found], directory, {"test-slow": {"files": before}})
    return dict(made["test-slow"]["files"])


def test_the_time_of_a_file_is_that_of_its_tests(tmp_path: Path) -> None:
    found = result(TestRun("a.py::one", "passed", 1.0), TestRun("a.py::two", "failed", 2.0))
    assert files(found, {"a.py": 9.0}, tmp_path) == {"a.py": 3.0}


def test_a_file_that_had_another_turn_keeps_its_time(tmp_path: Path) -> None:
    found = result(TestRun("a.py::one", "passed", 1.0), left_out=["b.py", "c.py"])
    assert files(found, {"b.py": 7.0}, tmp_path) == {"a.py": 1.0, "b.py": 7.0}


def test_a_file_of_which_not_all_ran_keeps_its_time(tmp_path: Path) -> None:
    for outcome in (NOT_RUN, None):
        found = result(TestRun("a.py::one", "passed", 1.0), TestRun("a.py::two", outcome))
        assert files(found, {"a.py": 7.0}, tmp_path) == {"a.py": 7.0}


def test_a_file_that_is_gone_or_quick_now_is_not_listed(tmp_path: Path) -> None:
    found = result(TestRun("a.py::one", "passed", 0.1))
    assert files(found, {"a.py": 7.0, "gone.py": 7.0}, tmp_path) == {}


def test_the_groups_of_tests_are_told_apart(tmp_path: Path) -> None:
    tests = [
        TestRun("a.py::one@spark", "passed", 5.0, "gw0"),
        TestRun("a.py::two[user@host]", "passed", 2.0, "gw0"),
        TestRun("a.py::three", "passed", 1.0, "gw1"),
    ]
    text = list(lines([result(*tests)], Verdict(), timing([], tmp_path, {}), {}))
    assert "test-slow    lanes: gw0 2 s, gw0 spark 5 s, gw1 1 s" in text
