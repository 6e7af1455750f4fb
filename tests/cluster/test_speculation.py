"""A slow task that Spark tries again on another worker while it runs: what it writes is in the log once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import EAGER, ROWS, TASKS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(600)]


def test_a_task_of_which_two_attempts_run(
    spark_cluster: Cluster, s3_url: str, tmp_path: Path
) -> None:
    found = spark_cluster.run("speculate", s3_url, str(tmp_path), more=EAGER)
    last = TASKS - 1
    assert {f"{last}-0", f"{last}-1", f"{last}-1-done"} <= set(found["tried"])
    rows = [f"{at} of {number}" for number in range(TASKS) for at in range(ROWS)]
    assert found["values"] == sorted(rows)
