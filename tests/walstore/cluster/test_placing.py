"""Which machines of a cluster have the copies of a log: losses, replacements, and other numbers of copies."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.machines import Machines, present, read
from tests.walstore.cluster.replication.cluster import PATIENCE_SECONDS
from walstore.serve import Server
from walstore.testing.faults import FaultyFileSystem
from walstore.topology.documents import PREFIX, Leader

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(tmp_path) as machines:
        yield machines


async def test_copies_are_in_different_zones(tmp_path: Path) -> None:
    async with Machines(tmp_path, 3, zone="a") as cluster:
        other = cluster.all[2]
        await other.stop()
        other.options["zone"] = "b"
        await other.start()
        await cluster.apply(replicas=2)
        await cluster.led()
        assert other.address in cluster.spec().copies


async def test_a_machine_that_stays_away_is_replaced(tmp_path: Path) -> None:
    async with Machines(tmp_path, 4, replace_seconds=RUNS_OUT_SECONDS) as cluster:
        await cluster.apply()
        leader = await cluster.led()
        copies = cluster.spec().copies
        spare = next(one for one in cluster.all if one.address not in copies)
        gone = next(one for one in cluster.all if one.address in copies and one is not leader)
        async with await cluster.connect() as remote:
            await remote.append(b"one")
            await until(lambda: len(present(cluster)) == 2)
            await gone.stop()
            await until(lambda: spare.address in cluster.spec().copies)
            assert gone.address not in cluster.spec().copies
            await remote.producer("p").append(b"two")
            await until(lambda: spare.address in present(cluster))
        # The machine that was replaced knows it, and the one that leads does not need it.
        await gone.start()
        assert await read(cluster) == [b"one", b"two"]


async def test_a_copy_whose_disk_is_dead_is_made_at_another_machine(tmp_path: Path) -> None:
    cluster = Machines(tmp_path, 4, replace_seconds=RUNS_OUT_SECONDS)
    disks = {machine.address: FaultyFileSystem() for machine in cluster.all}
    for machine in cluster.all:
        machine.options["fs"] = disks[machine.address]
    async with cluster:
        await cluster.apply()
        leader = await cluster.led()
        copies = cluster.spec().copies
        spare = next(one.address for one in cluster.all if one.address not in copies)
        gone = next(one for one in copies if one != leader.address)
        async with await cluster.connect() as remote:
            await remote.append(b"one")
            await until(lambda: len(published(cluster).present) == 2)
            await cluster.apply("other")
            await cluster.led("other")  # the allocator has looked since
            assert cluster.spec().copies == copies
            disks[gone].fail("*", times=None)
            await remote.append(b"two")
            await until(lambda: spare in cluster.spec().copies)
            assert gone not in cluster.spec().copies
            await until(lambda: spare in present(cluster))
            disks[gone].heal()
        assert await read(cluster) == [b"one", b"two"]


def published(cluster: Machines) -> Leader:
    found = cluster.store.get("walstore/leaders/orders")
    assert found is not None
    return Leader.decode(found.value, found.key)


async def test_a_log_that_is_made_again_has_its_copies(cluster: Machines) -> None:
    await cluster.apply(replicas=2)
    await cluster.led()
    await cluster.apply(replicas=3)
    await until(lambda: len(present(cluster)) == 2)
    async with await cluster.connect() as remote:
        await remote.append(b"one")
    member = cluster.all[0].member
    assert member is not None
    found = cluster.store.get(f"{PREFIX}logs/orders")
    assert found is not None
    cluster.store.swap(f"{PREFIX}removed/orders", found.value, 0, 0)
    cluster.store.swap(found.key, None, found.revision, 0)
    await until(lambda: cluster.leader() is None)
    await until(lambda: all(one.member and not one.member.node.logs for one in cluster.all))
    assert await member.make_log("orders")
    assert not await member.make_log("orders")
    await cluster.led()
    assert await read(cluster) == [b"one"]


async def test_fewer_copies(tmp_path: Path) -> None:
    """One is given up after the other; its machine unlocks the files, and clients notice nothing."""
    async with Machines(tmp_path, size=4) as machines:
        await machines.apply(replicas=4)
        leader = await machines.led()
        async with await machines.connect() as remote:
            producer = remote.producer("p")
            await producer.append(b"one")
            await machines.apply(replicas=2)
            await until(lambda: len(machines.spec().copies) == 2)
            await machines.led(by=leader)
            await producer.append(b"two")
            given_up = [one for one in machines.all if one.address not in machines.spec().copies]
            assert len(given_up) == 2
            for machine in given_up:
                assert machine.member is not None
                node = machine.member.node
                await until(lambda node=node: "orders" not in node.logs)  # type: ignore[misc]
            assert await read(machines) == [b"one", b"two"]
            # What is left takes over by itself.
            await leader.stop()
            await leader.start()
            await machines.led()
            await producer.append(b"three")
            assert await read(machines) == [b"one", b"two", b"three"]


async def test_from_five_copies_to_three_and_back_with_three_machines_in_trouble(
    tmp_path: Path,
) -> None:
    """Two are gone and one does not reach the store of the cluster: the log goes on, the change waits."""
    async with Machines(tmp_path, size=5) as machines:
        await machines.apply(replicas=5)
        leader = await machines.led()
        async with await machines.connect() as remote:
            producer = remote.producer("p")
            await producer.append(b"of five")
            await until(lambda: len(present(machines)) == 4)
            cut, *gone = [one for one in machines.all if one is not leader][:3]
            cut.keys.cut_off = True
            for machine in gone:
                await machine.stop()
            await producer.append(b"of five, two gone")
            await machines.apply(replicas=3)
            await producer.append(b"asked for three")
            for machine in gone:
                await machine.start()
            cut.keys.cut_off = False
            await until(lambda: len(machines.spec().copies) == 3)
            await producer.append(b"of three")
            await machines.apply(replicas=5)
            await until(lambda: len(machines.spec().copies) == 5)
            await until(lambda: len(present(machines)) == 4)
            await producer.append(b"of five again")
            leader = await machines.led()
        other = next(one for one in machines.all if one is not leader)
        for machine in (leader, other):
            await machine.stop()
        await machines.led()
        assert await read(machines) == [
            *(b"of five", b"of five, two gone", b"asked for three", b"of three", b"of five again")
        ]


async def test_a_leader_that_loses_its_copies_makes_room(tmp_path: Path) -> None:
    """It has the store, and their machines have; but it does not reach them, and cannot acknowledge."""
    async with Machines(tmp_path) as machines:
        await machines.apply()
        leader = await machines.led()
        others = [machine for machine in machines.all if machine is not leader]
        async with await machines.connect() as remote:
            producer = remote.producer("p")
            await producer.append(b"one")
            for machine in others:
                assert machine.server is not None
                await machine.server.aclose()

            def makes_room() -> bool:
                leader.clock.skip(PATIENCE_SECONDS)
                return leader.led() is None

            await until(makes_room)
            for machine in others:
                socket = machine.path / "s.sock"
                machine.server = await Server.open(None, cluster=machine.member, unix=socket)
            await machines.led()
            await producer.append(b"two")
            assert await read(machines) == [b"one", b"two"]


async def test_a_leader_without_a_quorum_makes_room_for_another_claim(tmp_path: Path) -> None:
    """One machine is away. Two that both want to lead would refuse each other until a patience is over."""
    async with Machines(tmp_path) as machines:
        await machines.apply()
        leader = await machines.led()
        away = next(machine for machine in machines.all if machine is not leader)
        async with await machines.connect() as remote:
            producer = remote.producer("p")
            await producer.append(b"one")
            await away.stop()
            leader.keys.cut_off = True  # while another one takes its place
            machines.end_lease(leader)
            await until(lambda: machines.store.get(f"{PREFIX}leaders/orders") is not None)
            leader.keys.cut_off = False
            async with asyncio.timeout(30):  # less than a patience
                await producer.append(b"two")
            assert await read(machines) == [b"one", b"two"]


async def test_a_leader_writes_its_newer_list_again(
    cluster: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    """The store was set back to an earlier state."""
    await cluster.apply()
    leader = await cluster.led()
    earlier = cluster.spec()
    wal = leader.led()
    assert wal is not None
    later = earlier._replace(generation=earlier.generation + 3)
    await cluster.apply(generation=later.generation)
    await until(lambda: leader.led() not in (None, wal) or cluster.leader() not in (None, leader))
    leader = await cluster.led()
    wal = leader.led()
    assert wal is not None
    await wal.append(b"before")
    await cluster.apply(**(earlier._asdict() | {"labels": {"env": "prod"}}))
    await until(lambda: cluster.spec().generation == later.generation)
    found = cluster.spec()
    assert (found.copies, found.joined) == (later.copies, later.joined)
    assert found.labels == {"env": "prod"}
    await until(lambda: "it was set back, and has the newer list again" in caplog.text)
    assert leader.led() is wal
    await wal.append(b"after")
    assert await read(cluster) == [b"before", b"after"]
    others = (*found.copies[:2], "unix:///nowhere.sock")  # the older list was changed since
    others = tuple(one for one in others if one != leader.address)
    await cluster.apply(copies=(leader.address, *others), preferred="")
    await until(lambda: cluster.spec().generation == later.generation + 1)
    assert set(cluster.spec().copies) == set(later.copies)


async def test_a_copy_that_is_put_back_does_not_cost_what_was_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two machines of three have all; one is put back, the other one is away; then it comes again."""
    async with Machines(tmp_path, replace_seconds=float("inf")) as cluster:
        await cluster.apply()
        leader = await cluster.led()
        other, third = (one for one in cluster.all if one is not leader)
        wal = leader.led()
        assert wal is not None
        await wal.append_many([b"old"] * 10)
        await until(lambda: len(present(cluster)) == 2)
        await other.stop()
        shutil.copytree(other.path / "orders", tmp_path / "backup")
        await other.start()
        await until(lambda: len(present(cluster)) == 2)
        await third.stop()
        await wal.append_many([b"new"] * 50)
        await leader.stop()
        await other.stop()
        shutil.rmtree(other.path / "orders")
        shutil.copytree(tmp_path / "backup", other.path / "orders")
        await other.start()
        await third.start()
        await until(lambda: "was put back from an older state" in caplog.text)
        await leader.start()
        await cluster.led()
        assert await read(cluster) == [b"old"] * 10 + [b"new"] * 50
