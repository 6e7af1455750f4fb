"""Programs that share a topology: one of them leads at a time, and the next one need not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clocks import SkippingClock
from tests.etcd import require_etcd, running
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.replication.cluster import Cluster, values
from walstore import InvalidSettingsError, Replication, StorageUnavailableError, Wal, WalLockedError
from walstore.testing import ManualClock
from walstore.topology.documents import Leader
from walstore.topology.memory import MemoryKeyValues

pytestmark = pytest.mark.timeout(60)

KEY = "walstore/leaders/orders"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as machines:
        yield machines


@pytest.fixture
def store() -> MemoryKeyValues:
    """No lease ends by itself."""
    return MemoryKeyValues(ManualClock())


def leader(store: MemoryKeyValues) -> Leader | None:
    found = store.get(KEY)
    return None if found is None else Leader.decode(found.value, KEY)


async def test_others_see_who_leads(cluster: Cluster, store: MemoryKeyValues) -> None:
    nodes = tuple(machine.address for machine in cluster.machines[1:])
    wal = await cluster.primary(0, topology=store.client(), address="tls://a.example:7430")
    await wal.append(b"v")

    def is_published() -> bool:
        found = leader(store)
        return found is not None and found.epoch == 1 and found.present == nodes

    await until(is_published)
    found = leader(store)
    assert found is not None
    assert (found.address, found.copies) == ("tls://a.example:7430", nodes)
    await wal.aclose()
    assert leader(store) is None
    assert not store.leases


async def test_a_second_program_waits_for_the_first(
    cluster: Cluster, store: MemoryKeyValues
) -> None:
    old = await cluster.primary(0, topology=store.client(), address="unix:///a.sock")
    await old.append(b"one")
    with pytest.raises(
        WalLockedError, match=r"led by another program, at unix:///a\.sock"
    ) as caught:
        await cluster.primary(1, topology=store.client(), patience_seconds=RUNS_OUT_SECONDS)
    assert caught.value.owner == "unix:///a.sock"
    await cluster.machines[1].start()
    await old.append(b"two")  # it was not fenced
    opening = asyncio.ensure_future(cluster.primary(1, topology=store.client()))
    await until(lambda: len(store.leases) == 2)
    assert not opening.done()
    await old.aclose()
    await cluster.machines[0].start()
    new = await opening
    assert await values(new) == [b"one", b"two"]
    await new.aclose()


async def test_a_lost_lease_is_taken_again(cluster: Cluster, store: MemoryKeyValues) -> None:
    """Its holder goes on: nobody else has taken over."""
    client = store.client()
    clock = SkippingClock(longest_pause=0.3)  # it renews the lease soon
    wal = await cluster.primary(0, topology=client, clock=clock)
    store.revoke(store.leases[0])
    assert leader(store) is None
    await wal.append(b"v")
    await until(lambda: leader(store) is not None)
    await wal.append(b"w")
    await wal.aclose()


async def test_a_store_that_is_set_back_has_the_claim_again(
    cluster: Cluster, store: MemoryKeyValues
) -> None:
    clock = SkippingClock(longest_pause=0.3)
    empty = store.save()
    wal = await cluster.primary(0, topology=store.client(), clock=clock)
    await until(lambda: len((leader(store) or Leader("", "")).present) == 2)
    late = leader(store)
    store.set_back(empty)  # its lease is gone, too
    await until(lambda: leader(store) == late)
    found = store.get(KEY)
    assert found is not None
    store.swap(KEY, None, found.revision, 0)  # its lease is there yet
    await until(lambda: leader(store) == late)
    await wal.append(b"v")
    await wal.aclose()


async def test_without_its_topology_a_log_is_not_opened_but_goes_on(
    cluster: Cluster, store: MemoryKeyValues
) -> None:
    client = store.client()
    wal = await cluster.primary(0, topology=client)
    client.cut_off = True
    await wal.append(b"v")
    await wal.aclose()
    with pytest.raises(StorageUnavailableError, match="does not reach"):
        await cluster.primary(1, topology=client, patience_seconds=RUNS_OUT_SECONDS)


@pytest.mark.parametrize("given", ["http://a", "etcd://", "etcd://a:x", "127.0.0.1:2379"])
def test_topologies_that_are_none(given: str) -> None:
    with pytest.raises(InvalidSettingsError):
        Replication(nodes=["unix:///a"], topology=given)


@pytest.mark.slow
async def test_with_etcd(cluster: Cluster) -> None:
    require_etcd()
    nodes = running(1)
    etcd = await asyncio.to_thread(nodes.__enter__)
    try:
        wal = await cluster.primary(0, topology=etcd.address, replicas=3, quorum=2)
        await wal.append(b"v", durability="replicated")
        assert wal.replicated_limit == 2
        with pytest.raises(WalLockedError):
            await cluster.primary(1, topology=etcd.address, patience_seconds=RUNS_OUT_SECONDS)
        await wal.aclose()
    finally:
        await asyncio.to_thread(nodes.__exit__, None, None, None)


async def test_a_log_that_cannot_be_opened_leaves_no_claim(
    tmp_path: Path, store: MemoryKeyValues
) -> None:
    replication = Replication(
        nodes=[f"unix://{tmp_path}/a", f"unix://{tmp_path}/b"],
        topology=store.client(),
        patience_seconds=RUNS_OUT_SECONDS,
    )
    with pytest.raises(StorageUnavailableError, match="copies of 'log' answer"):
        await Wal.open(tmp_path / "log", replication=replication)
    assert leader(store) is None
    assert not store.leases
