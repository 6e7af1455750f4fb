"""The cluster itself, and what it says where its workers cannot read logs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, ClusterError, Daemon, processes_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_an_interpreter_on_the_workers_that_lacks_walstore(spark_cluster: Cluster, tmp_path: Path):
    """The driver's machine has all; on the workers the same path is a Python without packages."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$SPARK_EXECUTOR_DIRS" ] && exec {sys.executable} -S "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    found = spark_cluster.run("check", python=str(python))
    assert found.startswith("the cluster's workers cannot read logs: ")
    assert "No module named" in found
    assert "name it in PYSPARK_PYTHON before the session starts" in found


def test_an_interpreter_that_the_workers_do_not_have(spark_cluster: Cluster):
    found = spark_cluster.run("check", python="/nowhere/python3")
    assert "a worker cannot run /nowhere/python3; install walstore[spark]" in found


def test_stopping_leaves_nothing(tmp_path: Path):
    started = Cluster(tmp_path, workers=1)
    sessions = started.sessions
    assert all(processes_of(session) for session in sessions)
    started.stop()
    assert not any(processes_of(session) for session in sessions)


def test_a_program_that_ends_is_not_waited_for():
    daemon = Daemon([sys.executable, "-c", "import sys; sys.exit('no memory')"], os.environ)
    with pytest.raises(ClusterError, match="no memory"):
        daemon.wait_for("ready")
    daemon.stop()
