"""A copy whose directory is put back from an older state: what was acknowledged is kept, and named."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.replication.cluster import Cluster, values
from walstore import CorruptionError, Wal

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as machines:
        yield machines


def copy_of(cluster: Cluster, number: int) -> Path:
    return cluster.machines[number].path / "orders"


def back_up(cluster: Cluster, number: int) -> Path:
    """Copy the directory of a machine's copy, as a backup does."""
    kept = cluster.machines[number].path / "backup"
    shutil.copytree(copy_of(cluster, number), kept)
    return kept


def put_back(cluster: Cluster, number: int, kept: Path) -> None:
    shutil.rmtree(copy_of(cluster, number))
    shutil.copytree(kept, copy_of(cluster, number))


def trouble(wal: Wal, cluster: Cluster, number: int) -> str:
    """Return why a leader does not count a copy."""
    address = cluster.machines[number].address
    found = next(one for one in wal.statistics().copies if one.address == address)
    return found.trouble or ""


async def fifty_that_one_has(cluster: Cluster) -> Path:
    """Let machines 0 and 1 acknowledge 50 records while 2 is away, and return an old backup of 1."""
    wal = await cluster.primary(0)
    await wal.append_many([b"old"] * 10)
    await until(lambda: all(copy.is_present for copy in wal.statistics().copies))
    await cluster.machines[1].stop()
    kept = back_up(cluster, 1)
    await cluster.machines[1].start()
    await until(lambda: trouble(wal, cluster, 1) == "")
    await cluster.machines[2].stop()
    await wal.append_many([b"%d" % number for number in range(50)])
    await wal.aclose()
    await cluster.machines[1].stop()
    return kept


async def test_what_was_replicated_is_not_cut(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Machine 1 was put back and leads with 2; then 0 comes back, which has all."""
    kept = await fifty_that_one_has(cluster)
    put_back(cluster, 1, kept)
    await cluster.machines[2].start()
    before = cluster.files(0)

    wal = await cluster.primary(1)
    assert await wal.append(b"another") == 11
    await cluster.machines[0].start()
    await until(lambda: "two histories" in trouble(wal, cluster, 0))
    told = trouble(wal, cluster, 0)
    assert re.search(r"offsets 11 to 60 in \S+/m0/orders", told)
    assert "give-up" in told
    assert "reset-head" in told
    assert f"the copy of orders here does not count: {told[:60]}" in caplog.text
    assert f"the copy at {cluster.machines[0].address} does not count: {told[:60]}" in caplog.text
    assert cluster.files(0) == before
    await wal.append(b"goes on")
    await wal.aclose()


async def test_a_machine_that_would_cut_itself_does_not_lead(cluster: Cluster) -> None:
    kept = await fifty_that_one_has(cluster)
    put_back(cluster, 1, kept)
    await cluster.machines[2].start()
    wal = await cluster.primary(1)
    await wal.append(b"another")
    await wal.aclose()
    await cluster.machines[1].start()
    before = cluster.files(0)
    with pytest.raises(CorruptionError, match="two histories"):
        await cluster.primary(0, patience_seconds=RUNS_OUT_SECONDS)
    assert cluster.files(0) == before
