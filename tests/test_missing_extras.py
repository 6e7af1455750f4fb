"""``--skip-missing-extras``: only what other people's packages lack is skipped, and it is said what."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

MODULES = {
    "module": "import a_package_that_is_not_here\ndef test_a(): pass",
    "late": "def test_b(): import a_package_that_is_not_here.part",
    "wrapped": """
def test_c():
    try:
        import a_package_that_is_not_here
    except ImportError as error:
        raise RuntimeError("install it") from error
""",
    "ours": "def test_d(): import walstore.a_module_that_is_not_here",
    "other": "def test_e(): assert 1 == 2",
    "good": "def test_f(): pass",
}


def run(directory: Path, *options: str) -> list[str]:
    """Run the modules; return the lines of the summary."""
    (directory / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    for name, code in MODULES.items():
        (directory / f"test_{name}.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rfEs", "-p", "no:cacheprovider", *options],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return [line.strip("= ") for line in done.stdout.splitlines()]


def test_what_is_not_installed_is_skipped_and_nothing_else(tmp_path: Path) -> None:
    lines = run(tmp_path, "-p", "tests.missing_extras")
    assert (
        len(
            [line for line in lines if line.endswith("a_package_that_is_not_here is not installed")]
        )
        == 3
    )
    assert {line.split(" - ")[0] for line in lines if line.startswith("FAILED")} == {
        "FAILED test_ours.py::test_d",
        "FAILED test_other.py::test_e",
    }
    assert lines[-1].startswith("2 failed, 1 passed, 3 skipped")


def test_without_the_option_it_fails(tmp_path: Path) -> None:
    lines = run(tmp_path, "--continue-on-collection-errors")
    assert lines[-1].startswith("4 failed, 1 passed, 1 error")
