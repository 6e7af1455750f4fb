"""A cluster of processes with a real etcd: machines and etcd nodes are killed, nothing is lost or twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests import cluster_demo
from tests.effort import some
from tests.etcd import require_etcd, running
from tests.histories import Checker

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(600)]

ROUNDS = some(5)


def test_clients_of_a_cluster_lose_nothing(tmp_path: Path, check_history: Checker) -> None:
    """Under kill -9 of the leader, of a copy, of an etcd node; SIGSTOP of the leader; and a move in order."""
    require_etcd()
    with running(3) as etcd:
        result = asyncio.run(cluster_demo.run(tmp_path, etcd, ROUNDS, 1, check_history))
    print(result)
    assert result["acknowledged"] > 100
    assert not any(result[name] for name in cluster_demo.WRONG)
    assert result["conditional"]["ok"] > 10
