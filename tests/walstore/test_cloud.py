"""walstore.cloud is uploader under another name, and nothing that ``import walstore`` loads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import uploader
import uploader.stores
import uploader.testing
import walstore.cloud
import walstore.cloud.stores
import walstore.cloud.testing


def test_the_same_objects_under_both_names() -> None:
    for first, second in (
        (uploader, walstore.cloud),
        (uploader.stores, walstore.cloud.stores),
        (uploader.testing, walstore.cloud.testing),
    ):
        assert set(first.__all__) == set(second.__all__)
        for name in first.__all__:
            assert getattr(first, name) is getattr(second, name), name


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs Python with these arguments where another module is named uploader."""
    (tmp_path / "uploader.py").write_text("def upload(): ...\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    return run


@pytest.mark.parametrize("module", ["walstore.cloud", "walstore.cloud.stores"])
def test_another_module_named_uploader_is_named(module: str, program: Any) -> None:
    found = program(
        "-c", f"try:\n    import {module}\nexcept ImportError as error:\n    print(error)"
    )
    assert "uploader.py), and hides the package of walstore" in found.stdout


def test_the_command_line_names_it_without_a_traceback(program: Any) -> None:
    found = program("-m", "walstore", "inspect", "file:///nowhere")
    assert found.returncode == 1
    assert found.stderr.startswith("walstore: another module is named uploader (")
    assert len(found.stderr.splitlines()) == 1


def test_importing_walstore_loads_none_of_it() -> None:
    program = (
        "import sys, walstore; print({'uploader', 'walstore.cloud', 'pyarrow'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
