"""A primary closes, whatever its disk does to the calls that its tasks have under way."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.local import turns
from tests.walstore.cluster.replication.cluster import Cluster
from tests.walstore.cluster.replication.test_damage import start
from tests.walstore.cluster.replication.test_healing import filled
from walstore import WalError
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("kind", "name", "scrub_seconds"),
    [("store", "SYNCED", 0), ("open", "*.wal", 1), ("pread", "*.wal", 1)],
    ids=["floor", "scrub opens", "scrub reads"],
)
async def test_closing_ends_beside_a_call_of_the_disk(
    tmp_path: Path, kind: str, name: str, scrub_seconds: float, fails: bool
) -> None:
    """The call is under way when closing cancels the task that made it, and then ends, or fails."""
    async with Cluster(tmp_path) as cluster:
        disk = cluster.machines[0].fs = FaultyFileSystem()
        await filled(cluster)
        await start(cluster)
        wal = await cluster.primary(0, scrub_seconds=scrub_seconds)
        hold = disk.hold(kind, name=name)
        await wal.append(b"the floor is noted behind it", durability="replicated")
        await hold.wait_entered()
        disk.fail("datasync", times=None)  # a log that failed has nothing to write before it closes
        with pytest.raises(WalError):
            await wal.append(b"not written", durability="replicated")
        if fails:
            disk.fail(kind, name=name, times=None)
        closing = asyncio.create_task(wal.aclose())
        await turns(100)
        hold.release()
        with contextlib.suppress(WalError):
            await closing
        assert not [task for task in asyncio.all_tasks() if " of orders" in task.get_name()]
