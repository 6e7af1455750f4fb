"""walstore demo on bad input; a whole run is tests/scenarios/test_80_demo.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli
from walstore.cli import demo


def test_a_directory_that_is_not_empty(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = cli("demo", "--directory", tmp_path)
    assert (done.code, done.out) == (1, b"")
    assert "is not empty" in done.error


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_no_time(cli: Cli, seconds: str) -> None:
    done = cli("demo", "--seconds", seconds)
    assert done.code == 1
    assert "'--seconds'" in done.error


def test_a_store_that_is_no_url(cli: Cli, tmp_path: Path) -> None:
    done = cli("demo", "--store", "bucket/x", "--directory", tmp_path / "new")
    assert done.code == 1
    assert "--store needs a store URL" in done.err


def test_a_machine_without_proc(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "PROC", tmp_path)
    done = cli("demo")
    assert done.code == 1
    assert "from /proc, which is not there" in done.error


@pytest.mark.slow
@pytest.mark.s3
def test_a_bucket_that_does_not_exist(s3_url: str, tmp_path: Path) -> None:
    """The writing process says so, and the reason reaches the user."""
    url = s3_url.replace("bucket-", "no-such-bucket-")
    command = [sys.executable, "-m", "walstore.cli", "demo", "--store", url, "--no-spark"]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path / "d")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stdout == "demo: failed\n"
    assert "no-such-bucket" in done.stderr
    assert "Traceback" not in done.stderr
