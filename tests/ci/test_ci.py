"""Runs of a small suite by ``python -m tests.ci``: green, flaky, red, stopped, without time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

MAKEFILE = f"""
test:
\t@{sys.executable} -m pytest -q -p no:cacheprovider --numprocesses=2 suite
check:
\t@test ! -e broken
"""
FRAGILE = """
from pathlib import Path

def test_fragile():
    mark = Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        raise AssertionError("the first time")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "suite").mkdir()
    write(tmp_path / "suite", "good", "def test_good(): pass")
    return tmp_path / "suite"


def write(suite: Path, name: str, code: str) -> None:
    (suite / f"test_{name}.py").write_text(code)


def run_ci(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.ci", *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]),
    }
    return subprocess.run(
        command, cwd=suite.parent, env=environment, capture_output=True, text=True, check=False
    )


def test_a_good_suite_is_green_and_reported(suite: Path) -> None:
    done = run_ci(suite, "test", "check")
    assert done.returncode == 0, done.stdout
    assert "\n1 passed, 0 failed, 0 skipped\n" in done.stdout
    timing = json.loads((suite.parent / ".ci-run/timing.json").read_text())
    assert timing["test"]["tests"] == 1
    assert timing["test"]["starts"]["python"] >= 2


def test_a_fragile_test_is_green_and_named(suite: Path) -> None:
    write(suite, "fragile", FRAGILE)
    done = run_ci(suite, "test")
    assert done.returncode == 0, done.stdout
    named = "flaky: suite/test_fragile.py::test_fragile: AssertionError: the first time"
    assert named in done.stdout.splitlines()


def test_a_defect_is_red(suite: Path) -> None:
    write(suite, "bad", "def test_bad(): assert 1 == 2")
    done = run_ci(suite, "test")
    assert done.returncode == 1
    assert "test: suite/test_bad.py::test_bad: assert 1 == 2" in done.stdout.splitlines()
    assert "\n1 passed, 1 failed, 0 skipped\n" in done.stdout


def test_a_failed_check_is_red_and_the_tests_run_all_the_same(suite: Path) -> None:
    (suite.parent / "broken").touch()
    done = run_ci(suite, "check", "test")
    assert done.returncode == 1
    assert "check: ended with 2" in done.stdout.splitlines()
    assert "\n1 passed, 1 failed, 0 skipped\n" in done.stdout


def test_a_worker_that_dies_is_red_if_it_dies_again(suite: Path) -> None:
    write(suite, "death", "import os\ndef test_death(): os._exit(9)")
    done = run_ci(suite, "test")
    assert done.returncode == 1
    assert "test: suite/test_death.py::test_death: " in done.stdout


def test_a_suite_that_hangs_is_stopped_and_what_ran_is_named(suite: Path) -> None:
    write(suite, "hang", "import threading\ndef test_hang(): threading.Event().wait()")
    done = run_ci(suite, "test", "--minutes", "0.3", "--again-seconds", "6")
    assert done.returncode == 1
    stopped = done.stdout.partition("was stopped after")[2].splitlines()
    assert stopped[1] == "suite/test_hang.py::test_hang"


def test_a_run_that_ends_without_its_tests_is_red_whatever_passes_alone(suite: Path) -> None:
    # Of the two workers one has the fragile test; the run itself dies at once.
    write(suite, "fragile", FRAGILE)
    (suite / "conftest.py").write_text(
        "import os\ndef pytest_runtest_logreport(report):\n"
        "    if report.failed and 'PYTEST_XDIST_WORKER' not in os.environ: os._exit(9)\n"
    )
    done = run_ci(suite, "test")
    assert done.returncode == 1
    assert "test: pytest died; tests may be missing" in done.stdout.splitlines()
