"""Consumers, members and transactions at clients of a replicated log: they go on after a takeover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.walstore.cluster.replication.cluster import (
    Cluster,
    leading,
    positions,
    take,
    values,
)
from walstore import (
    StorageUnavailableError,
    Wal,
    connect,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


async def test_consumers_go_on_after_a_takeover(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"%d" % number for number in range(6)])
    async with wal.consumer("c", follow=False) as consumer:
        async for record in consumer:
            if record.offset == 3:
                break
    await wal.aclose()
    second = await cluster.primary(2)
    async with second.consumer("c", follow=False) as consumer:
        assert [record.value async for record in consumer] == [b"3", b"4", b"5"]
    assert await positions(second) == {"c": 7}
    await second.aclose()


# -- over a connection -----------------------------------------------------------------------


async def test_handles_of_clients_go_on_after_a_takeover(cluster: Cluster) -> None:
    places = [machine.address for machine in cluster.machines]
    async with leading(cluster, 0) as wal:
        await wal.append_many([b"v"] * 10)
        remote = await connect(places)
        cursor = await remote.cursor("c")
        await cursor.commit(4)
    await cluster.machines[0].start()
    async with leading(cluster, 1) as second:
        await cursor.commit(6)
        assert await positions(remote) == await positions(second) == {"c": 6}
        assert await remote.delete_cursor("c")
        await remote.aclose()


async def test_members_at_clients_go_on_after_a_takeover(cluster: Cluster) -> None:
    places = [machine.address for machine in cluster.machines]
    async with leading(cluster, 0) as wal:
        await wal.append_many([b"v"] * 4)
        remote = await connect(places)
        group = await remote.group("g", ack_wait_seconds=600).__aenter__()
        first, second = await take(group, 2)
        await first.ack()
    await cluster.machines[0].start()
    async with leading(cluster, 1) as later:
        assert [one.name for one in await later.groups()] == ["g"]
        await second.ack()  # of a lease that the first primary gave
        jobs = await take(group, 2)
        assert [job.offset for job in jobs] == [3, 4]
        await group.ack(jobs)
        await group.__aexit__(None, None, None)
        await remote.aclose()


# -- with outputs ----------------------------------------------------------------------------


async def test_an_output_may_be_replicated(cluster: Cluster, tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "input") as source:
        await source.append_many([b"%d" % number for number in range(4)])
        wal = await cluster.primary(0)

        async def copy(output: Wal, records: int) -> None:
            async with source.consumer("copy", follow=False, output=output) as consumer:
                batch = await consumer.fetch(max_records=records)
                async with consumer.transaction() as transaction:
                    for record in batch:
                        await transaction.append(record.value)

        await copy(wal, 2)
        await wal.aclose()
        second = await cluster.primary(1)
        await copy(second, 2)
        assert await values(second) == [b"0", b"1", b"2", b"3"]
        assert await positions(source) == {"copy": 5}
        await second.aclose()


async def test_the_input_follows_what_is_replicated_of_the_output(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What a takeover of the output would undo has to be read from the input again."""
    async with Wal.open(tmp_path / "input") as source:
        await source.append_many([b"v"] * 4)
        wal = await cluster.primary(0)
        consumer = source.consumer("copy", follow=False, output=wal, auto_commit_seconds=None)
        async with consumer:
            await consumer.fetch(max_records=1)
            async with consumer.transaction() as transaction:
                await transaction.append(b"first")
            assert consumer.committed == 2
            for number in (1, 2):
                await cluster.machines[number].stop()
            await consumer.fetch(max_records=2)
            async with cluster.losing_patience(wal):
                with pytest.raises(StorageUnavailableError) as caught:
                    async with consumer.transaction() as transaction:
                        await transaction.append(b"second")
            assert caught.value.outcome == "unknown"
            assert wal.registers[f"cursor.{source.log_id}.copy"] == "4 1"
            assert consumer.committed == 2
        assert await positions(source) == {"copy": 2}
        await wal.aclose()


async def test_exactly_once_within_a_replicated_log(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"a", b"b"], stream="in")
    async with wal.consumer("c", stream="in", follow=False, output=wal) as consumer:
        async for record in consumer:
            async with consumer.transaction() as transaction:
                await transaction.append(b"out " + record.value, stream="out")
    await wal.aclose()
    second = await cluster.primary(1)
    async with second.consumer("c", stream="in", follow=False, output=second) as consumer:
        assert [record async for record in consumer] == []
    assert await values(second) == [b"a", b"b", b"out a", b"out b"]
    await second.aclose()


async def test_readers_wait_for_more_copies(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append(b"1")
    async with wal.follow("latest") as reader:
        following = asyncio.ensure_future(reader.fetch())
        for number in (1, 2):
            await cluster.machines[number].stop()
        async with cluster.losing_patience(wal):
            with pytest.raises(StorageUnavailableError):
                await wal.append(b"2")
        assert not following.done()
        await cluster.machines[1].start()
        assert [record.value for record in await following] == [b"2"]
    await wal.aclose()
