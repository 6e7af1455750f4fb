"""The whole suite, where Node is; the quick tests are in ``tests/walstore/http``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.durable_streams.__main__ import SKIPPED


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_test_of_the_suite_passes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.durable_streams", "--no-color"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
