"""A machine of a cluster: how it joins, what it answers, and what takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.connecting import try_once
from tests.local import turns
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.machines import Machine, Machines
from walstore import (
    InvalidSettingsError,
    LogNotFoundError,
    StorageUnavailableError,
    WalLockedError,
    connect,
)
from walstore.cluster.member import ClusterMember
from walstore.cluster.replication.node import ReplicaNode
from walstore.net.wire.message import PREAMBLE, VERSION, Kind, encode
from walstore.serve import Server
from walstore.topology.memory import MemoryKeyValues

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(tmp_path) as machines:
        yield machines


async def test_names_that_are_none(cluster: Machines) -> None:
    address = cluster.all[0].address
    with pytest.raises(LogNotFoundError, match="walstore logs apply"):
        await connect(address, log="nothing")
    with pytest.raises(InvalidSettingsError, match="name one"):
        await connect(address)
    for name in ("..", "a/b", "", "x" * 200):
        with pytest.raises((ValueError, LogNotFoundError)):
            await connect(address, log=name)


async def test_a_client_waits_for_somebody_to_lead_the_log(
    cluster: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as there are too few machines nobody does, which is told in the end."""
    await cluster.all[2].stop()
    await cluster.apply(replicas=3)
    async with asyncio.TaskGroup() as group:
        connecting = group.create_task(connect(cluster.all[0].address, log="orders").__aenter__())
        await until(lambda: _is_asked(cluster.all[0]))
        assert cluster.leader() is None
        await cluster.all[2].start()
    async with connecting.result() as remote:
        assert await remote.append(b"v") == 1
    for machine in cluster.all[1:]:
        await machine.stop()
    monkeypatch.setattr("walstore.cluster.member._FIND_SECONDS", 0.1)
    member = cluster.all[0].member
    assert member is not None
    await cluster.apply("another")
    await until(lambda: "another" in member.view.specs)
    with pytest.raises(StorageUnavailableError, match="nobody leads the log 'another'") as caught:
        await member.find("another")
    assert caught.value.retriable
    with pytest.raises(StorageUnavailableError, match="nobody leads the log 'another'"):
        await try_once(connect, cluster.all[0].address, log="another")


@pytest.mark.parametrize("more_bytes", [0, 8 << 20])
async def test_a_client_that_leaves_while_nobody_leads_is_gone_at_once(
    cluster: Machines, more_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little is read of what it sends behind its greeting: one that sends much stays until it is answered."""
    monkeypatch.setattr("walstore.cluster.member._FIND_SECONDS", 1000.0)
    await cluster.all[2].stop()
    await cluster.apply(replicas=3)
    server = cluster.all[0].server
    assert server is not None
    before = server.connections
    _, writer = await asyncio.open_unix_connection(cluster.all[0].path / "s.sock")
    hello = {"version": VERSION, "log": "orders"}
    writer.writelines([PREAMBLE, *encode(Kind.HELLO, 0, hello), bytes(more_bytes)])
    await until(lambda: _is_asked(cluster.all[0]))
    await turns(100)
    assert server.figures.received_bytes < 1 << 20
    writer.transport.abort()
    if more_bytes:
        await turns(100)
        assert server.connections > before
        await cluster.all[2].start()
    await until(lambda: not _is_asked(cluster.all[0]))
    assert not server.figures.dropped


def _is_asked(machine: Machine) -> bool:
    return machine.server is not None and machine.server.requests_in_progress > 0


async def test_a_program_at_the_same_address_takes_the_place(
    tmp_path: Path, cluster: Machines
) -> None:
    await cluster.apply()
    await cluster.led()
    old = cluster.all[0]
    assert old.member is not None
    socket = tmp_path / "x.sock"
    async with (
        ClusterMember.open(tmp_path / "x", cluster.store.client(), lease_seconds=60) as other,
        Server.open(None, cluster=other, unix=socket),
    ):
        (old.path / "s.sock").rename(old.path / "old.sock")
        (old.path / "s.sock").symlink_to(socket)  # the address leads to another machine now
        await other.join(old.address)
        await asyncio.wait_for(old.member.wait_closing(), 60)
        assert old.member.is_replaced
        await old.stop()
        assert not other.is_replaced
    async with await cluster.connect() as remote:
        await remote.append(b"v")


async def test_a_machine_with_the_address_of_another_does_not_join(
    tmp_path: Path, cluster: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    """It would take the place of the machine that is there."""
    socket, old = tmp_path / "x.sock", cluster.all[0]
    keys = cluster.store.client()
    opened = ClusterMember.open(tmp_path / "x", keys, patience_seconds=RUNS_OUT_SECONDS)
    async with opened as member, Server.open(None, cluster=member, unix=socket):
        with pytest.raises(InvalidSettingsError, match="another program answers"):
            await member.join(old.address)
        assert not member.is_joined
        assert old.member is not None
        assert not old.member.is_closing
        await member.join(f"unix://{socket}")
        await until(lambda: len(member.view.members) == 4)
        assert "does not reach itself" not in caplog.text
    opened = ClusterMember.open(tmp_path / "y", keys, patience_seconds=RUNS_OUT_SECONDS)
    async with opened as member:
        await member.join(f"unix://{tmp_path}/nobody.sock")
        assert "does not reach itself" in caplog.text


async def test_a_directory_belongs_to_one_machine(tmp_path: Path) -> None:
    store = MemoryKeyValues()
    async with ClusterMember.open(tmp_path / "m", store.client()):
        with pytest.raises(WalLockedError, match="a directory of its own"):
            await ClusterMember.open(tmp_path / "m", store.client())
        with pytest.raises(WalLockedError, match="a directory of its own"):
            await ReplicaNode.open(tmp_path / "m")
    async with ReplicaNode.open(tmp_path / "m"):
        pass
    assert store.leases == []
