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
END_AFTER_FAILURE = """
def pytest_runtest_logreport(report):
    if report.failed:
        session.shouldfail = "enough"

def pytest_sessionstart(session):
    globals()["session"] = session
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
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
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
    done = run_ci(suite, "test", "--minutes", "0.5", "--again-seconds", "6")
    assert done.returncode == 1
    stopped = done.stdout.partition("was stopped after")[2].splitlines()
    assert stopped[1] == "suite/test_hang.py::test_hang"


HIDING = {
    "a text like that of a crash": (
        {"test_bad.py": "def test_bad(): assert False, 'the server crashed while running'"},
        "test: suite/test_bad.py::test_bad: AssertionError: the server crashed while running",
    ),
    "the first failure ends the run": (
        {"conftest.py": END_AFTER_FAILURE, "test_z.py": "def test_z(): assert 0"},
        "test: 2 tests did not run, the first is suite/test_good.py::test_good",
    ),
    "pytest.exit with success": (
        {"conftest.py": "import pytest\ndef pytest_runtest_logfinish(): pytest.exit('', 0)"},
        "tests did not run, the first is suite/test_good.py::test_good",
    ),
    "an error after the tests": (
        {"conftest.py": "def pytest_unconfigure(): raise RuntimeError('late')"},
        "test: pytest_unconfigure: RuntimeError('late')",
    ),
    "a worse status after the tests": (
        {"conftest.py": "def pytest_sessionfinish(session): session.exitstatus = 6"},
        "test: pytest ended with 6; tests may be missing",
    ),
    "death before the tests": (
        {"conftest.py": "import os; os._exit(0)"},
        "test: no test ran; it ended with 0",
    ),
    "the record is removed": (
        {"test_rm.py": "import os\ndef test_rm(): os.remove('.ci-run/test.jsonl')"},
        "test: no test ran; it ended with",
    ),
}


@pytest.mark.parametrize("name", HIDING)
def test_what_fails_or_does_not_run_is_red_beside_a_fragile_test(suite: Path, name: str) -> None:
    files, said = HIDING[name]
    write(suite, "fragile", FRAGILE)
    for file, code in files.items():
        (suite / file).write_text(code)
    makefile = suite.parent / "Makefile"
    makefile.write_text(makefile.read_text().replace("--numprocesses=2", "--numprocesses=0"))
    done = run_ci(suite, "test")
    assert done.returncode == 1, done.stdout
    assert said in done.stdout


def test_each_failed_test_runs_again_by_itself(suite: Path) -> None:
    write(suite, "a", "import os\ndef test_a(): os._exit(3)")
    write(suite, "fragile", FRAGILE)
    done = run_ci(suite, "test")
    assert done.returncode == 1
    assert "flaky: suite/test_fragile.py::test_fragile" in done.stdout
    assert "\n1 passed, 1 failed, 0 skipped, 1 flaky\n" in done.stdout


def test_a_worker_that_died_once_in_a_group_is_named(suite: Path) -> None:
    """pytest-xdist runs the test again, and reports that it passed."""
    code = FRAGILE.replace('raise AssertionError("the first time")', "os._exit(1)")
    code = f"import os, pytest\npytestmark = pytest.mark.xdist_group('spark')\n{code}"
    write(suite, "fragile", code)
    makefile = suite.parent / "Makefile"
    makefile.write_text(makefile.read_text().replace("suite\n", "--dist=loadgroup suite\n"))
    done = run_ci(suite, "test")
    assert done.returncode == 0, done.stdout
    assert "\nflaky: suite/test_fragile.py::test_fragile" in done.stdout


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
