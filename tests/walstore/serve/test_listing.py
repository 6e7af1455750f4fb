"""Which logs there are, asked over a connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connecting import try_once
from tests.walstore.cluster.machines import Machines
from walstore import (
    AccessDeniedError,
    InvalidSettingsError,
    StorageUnavailableError,
    Wal,
    WalStore,
    connect,
    list_logs,
)
from walstore.cluster.replication.node import ReplicaNode
from walstore.core.runtime.clock import SystemClock
from walstore.net.remote.client import Client
from walstore.net.wire.address import parse_address
from walstore.net.wire.verbs import Verb
from walstore.serve import Server


async def test_of_a_log_a_store_and_copies(tmp_path: Path) -> None:
    place = tmp_path / "s"
    async with Wal.open(tmp_path / "orders") as wal, Server.open(wal, unix=place):
        (log,) = await list_logs(f"unix://{place}")
        assert (log.name, dict(log.labels), log.leader, log.epoch) == ("orders", {}, None, None)
        async with connect(f"unix://{place}", log=log.name) as remote:
            assert remote.log_id == wal.log_id
        assert await list_logs(f"unix://{place}", selector="env") == []
    async with WalStore.open(tmp_path / "store") as store, Server.open(store, unix=place):
        for name in ("b", "a/x"):
            await store.wal(name)
        assert [one.name for one in await list_logs(f"unix://{place}")] == ["a/x", "b"]
    async with (
        ReplicaNode.open(tmp_path / "copies") as node,
        Server.open(None, replicas=node, unix=place),
    ):
        assert await list_logs(f"unix://{place}") == []


async def test_of_a_cluster_by_labels(tmp_path: Path) -> None:
    async with Machines(tmp_path) as machines:
        await machines.apply(labels={"env": "prod"})
        await machines.apply("other", labels={"env": "test"})
        leader = await machines.led()
        await machines.led("other")
        places = [machine.address for machine in machines.all]
        assert [one.name for one in await list_logs(places)] == ["orders", "other"]
        for machine in machines.all:  # any of them knows
            (log,) = await list_logs(machine.address, selector="env=prod,!old")
            assert (log.name, log.labels, log.leader) == (
                "orders",
                {"env": "prod"},
                leader.address,
            )
            assert log.epoch == 1


async def test_who_asks_for_a_list_gets_no_more(tmp_path: Path) -> None:
    place = tmp_path / "s"
    async with Wal.open(tmp_path / "orders") as wal, Server.open(wal, unix=place, token="t"):
        with pytest.raises(AccessDeniedError):
            await list_logs(f"unix://{place}")
        assert await list_logs(f"unix://{place}", token="t")
        client = Client(
            [parse_address(f"unix://{place}")],
            token="t",
            tls=None,
            log=None,
            connect_seconds=60,
            reconnect_seconds=0,
            clock=SystemClock(),
            make_tag=lambda: bytes(8),
            service="list",
        )
        await client.connect()
        for verb in ("trim", "limits", "obey"):
            with pytest.raises(AccessDeniedError, match="only asked for the list"):
                await client.call(Verb(verb), 1)
        await client.aclose()


async def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingsError, match="only that one"):
        await list_logs(f"unix://{tmp_path}/s?log=a")
    with pytest.raises(InvalidSettingsError, match="no selector"):
        await list_logs(f"unix://{tmp_path}/s", selector="a b")
    with pytest.raises(StorageUnavailableError):
        await try_once(list_logs, f"unix://{tmp_path}/s")
