"""One step: it runs the files it is given, in their order, and begins no test in the end of its time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.ci.record import NOT_RUN
from tests.ci.step import CONCLUSION_SECONDS, Result, Step, run_step

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files of tests, in the directory where steps run."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(
            "def test_first(): pass\ndef test_second(): pass\n"
        )
    monkeypatch.chdir(tmp_path)
    path = [str(ROOT), os.environ["PYTHONPATH"]]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    return tmp_path


def run(suite: Path, seconds: float, workers: int) -> Result:
    """Run two of the files, the last one first."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    step = Step(
        "some",
        [*command, f"--numprocesses={workers}", "--dist=loadgroup"],
        seconds,
        files=["test_c.py", "test_a.py"],
        may_stop=True,
    )
    return run_step(step, suite / "records")


@pytest.mark.parametrize("workers", [0, 1])
def test_the_files_are_run_in_their_order_and_no_others(suite: Path, workers: int) -> None:
    result = run(suite, CONCLUSION_SECONDS + 60, workers)
    names = [f"test_{file}.py::test_{test}" for file in "ca" for test in ("first", "second")]
    assert list(result.record.tests) == names
    assert result.record.counts() == {"passed": 4}
    assert (result.status, result.was_stopped) == (0, False)


@pytest.mark.parametrize("workers", [0, 2])
def test_no_test_begins_in_the_end_of_the_time(suite: Path, workers: int) -> None:
    result = run(suite, CONCLUSION_SECONDS - 30, workers)
    assert result.record.counts() == {NOT_RUN: 4}
    assert not result.unexplained()
