"""The soak as a user runs it, for a few seconds: with kills, in both layouts, and with a lie."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(300)]

PROGRAM = """
import os, signal, sys
from walstore.cli.soak import child, run
take = run.Soak._take
def heard(self, actor, kind, items):
    if kind == child.ACKNOWLEDGED:
        {then}
    take(self, actor, kind, items)
run.Soak._take = heard
from walstore.cli.app import run
sys.exit(run(sys.argv[1:]))
"""
LIE = "items[1] += 1_000_000"
INTERRUPT = "self.last = vars(self).get('last') or os.kill(os.getpid(), signal.SIGINT) or 1"


def _soak(*arguments: str, then: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a soak; ``then`` is done at each acknowledgement."""
    program = ("-m", "walstore") if then is None else ("-c", PROGRAM.format(then=then))
    return subprocess.run(
        [sys.executable, *program, "soak", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def _check(found: dict[str, Any]) -> None:
    assert (found["ok"], found["problems"]) == (True, [])
    assert found["appended"] >= found["acknowledged"] > 0
    assert found["appended"] == found["tail"] - 1
    assert sum(found["kills"].values()) > 0


def test_a_directory_with_a_tier(tmp_path: Path) -> None:
    done = _soak(str(tmp_path), "--minutes", "0.05", "--kill-seconds", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    _check(json.loads(done.stdout))
    assert (tmp_path / "log").is_dir()
    assert f"kept in {tmp_path}" in done.stderr


def test_straight_to_a_store_in_the_layout_chain(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    done = _soak(url, "--layout", "chain", "--minutes", "0.05", "--kill-seconds", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    _check(found)
    assert (found["directory"], found["layout"], found["durability"]) == (None, "chain", "cloud")
    assert found["store_url"].startswith(f"{url}/soak-")
    assert f"the objects are kept under {found['store_url']}" in done.stderr


def test_acknowledgements_that_the_log_does_not_keep_fail_it(tmp_path: Path) -> None:
    """The verdict is not a formality."""
    done = _soak(str(tmp_path), "--minutes", "0.01", then=LIE)
    assert done.returncode == 2, done.stderr
    assert done.stdout.splitlines()[-1] == "soak: failed"
    assert "were written" in done.stderr


def test_an_interrupt_ends_the_load_and_the_check_follows() -> None:
    done = _soak("--layout", "chain", "--durability", "memory", "--json", then=INTERRUPT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ok"], found["problems"]) == (True, [])
    assert found["seconds"] < 60
    assert found["read"] == {"disk": found["appended"], "store": found["appended"]}
    assert not Path(found["directory"]).exists()
