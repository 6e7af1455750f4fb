"""A small storm in the slow suite; ``make storm`` is the large one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import first_seed, some

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.kill
def test_writers_killed_at_random_moments_break_no_promise(tmp_path: Path) -> None:
    """In a process of its own: it forks, and nothing may have been opened before."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.storm", "--kills", str(some(250)), "--rounds", "5"),
            *(
                "--seed",
                str(first_seed("storm")),
                "--processes",
                "1",
                "--keep",
                str(tmp_path / "failures"),
            ),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout.splitlines()[-1])
