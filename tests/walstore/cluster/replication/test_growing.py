"""A log of one copy becomes one of two: which of them may take over, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.replication.cluster import PATIENCE_SECONDS, SMALL, Cluster, values
from tests.walstore.cluster.replication.test_replication import caught_up, forget
from walstore import FencedError, InvalidSettingsError, Replication, StorageUnavailableError, Wal
from walstore.cluster.replication.promise import load_promise
from walstore.core.files.posix import PosixFileSystem

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two machines; the first has the only copy, with one record."""
    async with Cluster(tmp_path, size=2) as made:
        await made.machines[0].stop()
        wal = await alone(made, 0)
        await wal.append(b"one")
        await wal.aclose()
        yield made


async def alone(cluster: Cluster, number: int, **options: Any) -> Wal:
    """Open the log with the only copy."""
    machine = cluster.machines[number]
    replication = Replication(nodes=[], replicas=1, **options)
    return await Wal.open(
        machine.path / "orders", settings=SMALL, replication=replication, clock=cluster.clock
    )


async def grown(cluster: Cluster, number: int, *, generation: int = 2, **options: Any) -> Wal:
    """Open it with the list in which the second machine is new."""
    joined = {cluster.machines[1].address: 2} if number == 0 else {}
    here = 2 if number == 1 else 0
    return await cluster.primary(
        number, generation=generation, joined=joined, joined_here=here, **options
    )


async def is_refused(opening: Any) -> None:
    with pytest.raises(StorageUnavailableError, match="2 are needed to take over"):
        await opening


async def test_one_copy_acknowledges_by_its_own_sync(cluster: Cluster) -> None:
    wal = await alone(cluster, 0)
    assert await wal.append(b"two", durability="replicated") == 2
    assert (wal.replicated_limit, wal.statistics().copies) == (3, ())
    await wal.refresh()
    assert await values(wal) == [b"one", b"two"]
    await wal.aclose()


def test_no_other_copy_has_to_be_meant() -> None:
    assert Replication(nodes=[], replicas=1).needed_to_take_over == 1
    for options in ({}, {"replicas": 2}, {"quorum": 1}):
        with pytest.raises(InvalidSettingsError):
            Replication(nodes=[], **options)


async def test_the_old_one_leads_and_fills_the_new_one(cluster: Cluster) -> None:
    wal = await grown(cluster, 0)
    await wal.append(b"two")
    await caught_up(cluster, wal, 1)
    await wal.aclose()
    await cluster.machines[0].start()
    second = await grown(cluster, 1)
    assert await values(second) == [b"one", b"two"]
    await second.append(b"three")
    await second.aclose()


async def test_the_new_one_leads_with_all_that_the_old_one_has(cluster: Cluster) -> None:
    await cluster.machines[0].start()
    wal = await grown(cluster, 1)
    assert await values(wal) == [b"one"]
    await wal.append(b"two")
    await wal.aclose()


async def test_both_have_to_answer(cluster: Cluster) -> None:
    """With the old one alone nothing could be acknowledged, and the new one may have obeyed a later epoch."""
    await cluster.machines[1].stop()
    await is_refused(grown(cluster, 0, patience_seconds=RUNS_OUT_SECONDS))
    await is_refused(grown(cluster, 1, patience_seconds=RUNS_OUT_SECONDS))


async def test_the_new_one_is_no_substitute_for_the_old_one(cluster: Cluster) -> None:
    wal = await grown(cluster, 0)
    await wal.append(b"two")
    await caught_up(cluster, wal, 1)
    await wal.aclose()
    forget(cluster.machines[0])
    await is_refused(grown(cluster, 0, patience_seconds=RUNS_OUT_SECONDS))


async def test_a_new_one_whose_disk_is_lost_is_made_again(cluster: Cluster) -> None:
    wal = await grown(cluster, 0)
    await wal.append(b"two")
    await wal.aclose()
    await cluster.machines[1].stop()
    forget(cluster.machines[1])
    await cluster.machines[1].start()
    wal = await grown(cluster, 0)
    assert await values(wal) == [b"one", b"two"]
    await until(lambda: wal.statistics().copies[0].is_present)
    await wal.aclose()


async def test_one_that_joined_with_an_earlier_list_is_not_new(cluster: Cluster) -> None:
    """The lists between may have had other copies, so the old one need not have everything."""
    await is_refused(grown(cluster, 0, generation=3, patience_seconds=RUNS_OUT_SECONDS))


async def test_one_with_an_old_list_asks_for_no_epoch_behind_the_next(tmp_path: Path) -> None:
    """However often it tries: whoever leads by then would be refused by its copy."""
    async with Cluster(tmp_path) as cluster:
        await (await cluster.primary(0)).aclose()
        await cluster.machines[1].stop()
        wal = await cluster.primary(0, generation=2)
        server = cluster.machines[2].server
        assert server is not None
        asked = server.figures.connected
        opening = asyncio.ensure_future(cluster.primary(1, generation=1))
        await until(lambda: server.figures.connected >= asked + 4)
        cluster.clock.skip(PATIENCE_SECONDS)
        with pytest.raises(FencedError, match="out of date"):
            await opening
        directory = cluster.machines[1].path / "orders"
        kept = await asyncio.to_thread(load_promise, PosixFileSystem(), directory)
        assert kept.epoch == wal.statistics().epoch + 1
        await wal.aclose()
