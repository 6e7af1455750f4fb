"""Copies are read where they are: what is replicated, and nothing that a takeover may cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.replication.cluster import SMALL, Cluster, Machine
from walstore import (
    AccessDeniedError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    ReadableLog,
    RemoteReadonlyWal,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    connect,
    connect_readonly,
)
from walstore.cluster.replication import follower
from walstore.cluster.replication.copy_log import CopyLog
from walstore.cluster.replication.node import ReplicaNode
from walstore.net.remote import source
from walstore.net.wire.verbs import APPEND, Verb

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as machines:
        yield machines


async def copy_at(machine: Machine) -> RemoteReadonlyWal:
    return await connect_readonly(machine.address, log="orders")


async def first(log: RemoteReadonlyWal | CopyLog, count: int, start: int = 1) -> list[bytes]:
    found: list[bytes] = []
    reader = log.follow(start)
    async with asyncio.timeout(60):
        while len(found) < count:
            found.append((await anext(reader)).value)
    return found


async def test_records_are_read_at_every_copy(cluster: Cluster) -> None:
    async with await cluster.primary(0) as wal:
        await wal.append_many([b"%d" % number for number in range(100)])
        for machine in cluster.machines[1:]:
            async with await copy_at(machine) as log:
                assert log.log_id == wal.log_id
                assert await first(log, 100) == [b"%d" % number for number in range(100)]
                assert log.limit == log.replicated_limit == 101


async def test_a_reader_follows_without_waiting_for_the_next_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary says at once what is replicated, while a copy has readers."""
    monkeypatch.setattr(follower, "_BEAT_SECONDS", 15)  # an idle primary says it that often
    async with await cluster.primary(0) as wal, await copy_at(cluster.machines[1]) as log:
        reader = log.follow()
        await wal.append(b"first")
        assert (await anext(reader)).value == b"first"
        for number in range(20):
            await wal.append(b"%d" % number)
            assert (await anext(reader)).value == b"%d" % number


async def test_through_rotation_and_trimming(cluster: Cluster) -> None:
    async with await cluster.primary(0) as wal, await copy_at(cluster.machines[1]) as log:
        reader = log.follow()
        for number in range(40):
            await wal.append_many([b"%d" % number * 200] * 20)
        async with asyncio.timeout(60):
            for number in range(40):
                for _ in range(20):
                    assert (await anext(reader)).value == b"%d" % number * 200
        assert len(wal.extents().segments) > 3
        head = await wal.trim(600)
        while (await first(log, 1, start=800)) and log.head == 1:
            await wal.append(b"more")
            await log.refresh()
        assert 1 < log.head <= head
        with pytest.raises(OffsetTrimmedError):
            await anext(log.follow(1))


async def test_what_is_not_replicated_is_not_shown(cluster: Cluster) -> None:
    """The copy has it, and its primary; but three are needed."""
    wal = await cluster.primary(0, quorum=3)
    await wal.append(b"all have it")
    async with await copy_at(cluster.machines[1]) as log:
        assert await first(log, 1) == [b"all have it"]
        await cluster.machines[2].stop()
        await wal.append(b"two have it", durability="disk")
        for _ in range(3):
            await wal.append(b"more", durability="disk")
        await log.refresh()
        assert log.limit == 2
        await until(lambda: any(b"two have it" in data for data in cluster.files(1).values()))
        reader = log.follow(2)
        batch = await reader.fetch(max_wait_seconds=1.5)  # longer than an idle primary waits
        assert not len(batch)
        await cluster.machines[2].start()
        assert await first(log, 4, start=2) == [b"two have it", b"more", b"more", b"more"]
    await wal.aclose()


async def test_it_goes_on_with_the_next_primary(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append(b"one")
    async with await copy_at(cluster.machines[2]) as log:
        reader = log.follow()
        assert (await anext(reader)).value == b"one"
        await wal.aclose()
        await cluster.machines[0].start()
        async with await cluster.primary(1) as after:
            await after.append(b"two")
            assert (await anext(reader)).value == b"two"
            assert log.client.reconnects == 0


async def test_a_client_goes_on_at_another_machine(cluster: Cluster) -> None:
    """A reader that knows of more than the next copy does waits there; nothing is twice, nothing missing."""
    async with await cluster.primary(0) as wal:
        await wal.append(b"one")
        places = [machine.address for machine in cluster.machines[1:]]
        async with await connect_readonly(places, log="orders") as log:
            reader = log.follow()
            assert (await anext(reader)).value == b"one"
            used = next(one for one in cluster.machines if one.address == log.address)
            await used.stop()
            await wal.append(b"two")
            async with asyncio.timeout(60):
                assert (await anext(reader)).value == b"two"
            assert log.address != used.address


async def test_a_machine_that_becomes_the_primary(cluster: Cluster) -> None:
    """Its readers go elsewhere; a program in the same process is refused."""
    wal = await cluster.primary(0)
    await wal.append(b"one")
    machine = cluster.machines[1]
    assert machine.node is not None
    log = await machine.node.log("orders")
    assert await first(log, 1) == [b"one"]
    waiting = asyncio.ensure_future(anext(log.follow(2)))
    async with machine.node.leading("orders"):
        with pytest.raises(StorageUnavailableError, match="leads the log now"):
            await waiting
        with pytest.raises(StorageUnavailableError):
            log.follow()
            await log.offset_at(0)
        with pytest.raises(StorageUnavailableError, match="leads the log"):
            await machine.node.log("orders")
        assert log.is_closing
    await wal.aclose()


async def test_a_copy_that_is_made_again(cluster: Cluster) -> None:
    """It lost its disk while it had readers: they wait, or are refused, and never get wrong records."""
    async with await cluster.primary(0) as wal:
        await wal.append_many([b"%d" % number for number in range(50)])
        machine = cluster.machines[1]
        assert machine.node is not None
        log = await machine.node.log("orders")
        assert len(await first(log, 50)) == 50
        log.restart()  # as its primary has it, before everything is removed
        assert log.limit == 1
        with pytest.raises(OffsetNotWrittenError):
            await log.timestamp_at(30)
        await wal.append(b"more")
        assert (await first(log, 51))[-1] == b"more"


async def test_times(cluster: Cluster) -> None:
    async with await cluster.primary(0) as wal, await copy_at(cluster.machines[1]) as log:
        for number in range(10):
            await wal.append(b"%d" % number, timestamp_us=1_700_000_000_000_000 + number)
        await first(log, 10)
        assert await log.offset_at(1_700_000_000_000_004) == 5
        assert await log.timestamp_at(5) == 1_700_000_000_000_004
        with pytest.raises(OffsetNotWrittenError):
            await log.timestamp_at(11)


async def test_only_reading_is_allowed(cluster: Cluster) -> None:
    async with await cluster.primary(0) as wal:
        await wal.append(b"one")
        async with await copy_at(cluster.machines[1]) as log:
            for verb, arguments in (("trim", [1]), ("append", []), ("flush", []), ("obey", [])):
                with pytest.raises(AccessDeniedError, match="only reads"):
                    await log.client.call(Verb(verb), *arguments)
            with pytest.raises(AccessDeniedError):
                await log.client.call(APPEND, 1)
            assert await first(log, 1) == [b"one"]  # the connection goes on


async def test_only_records_are_at_a_copy(cluster: Cluster) -> None:
    """Here and over a connection; what it has is what :class:`walstore.ReadableLog` says of a log."""
    async with await cluster.primary(0) as wal:
        await wal.append(b"one", stream="s")
        async with await copy_at(cluster.machines[1]) as remote:
            assert await first(remote, 1) == [b"one"]
            with pytest.raises(InvalidSettingsError, match="that leads the log"):
                await remote.streams()
        node = cluster.machines[1].node
        assert node is not None
        log = await node.log("orders")
        assert isinstance(log, ReadableLog)
        await log.refresh()
        assert (log.head, log.limit, log.visible_limit) == (1, 2, 2)
        assert (log.tail, log.durable_limit, log.replicated_limit) == (2, 2, 2)
        with pytest.raises(InvalidSettingsError, match="that leads the log"):
            await log.streams()
        await log.aclose()
        for asked in (log.refresh(), log.timestamp_at(1), anext(log.follow())):
            with pytest.raises(WalClosedError, match="copy at"):
                await asked


async def test_names_that_are_not_there(cluster: Cluster) -> None:
    machine = cluster.machines[1]
    with pytest.raises(LogNotFoundError, match="no copy"):
        await connect_readonly(machine.address, log="no")
    assert not (machine.path / "no").exists()
    with pytest.raises(Exception, match="name the log"):
        await connect_readonly(machine.address)
    (machine.path / "empty").mkdir()
    with pytest.raises(LogNotFoundError, match="no copy"):  # somebody else's
        await connect_readonly(machine.address, log="empty")
    assert not list((machine.path / "empty").iterdir())
    (machine.path / "empty" / "PROMISE").write_bytes((await promise_of(cluster)).read_bytes())
    assert machine.node is not None
    with pytest.raises(StorageUnavailableError, match="nothing of the log yet"):
        await machine.node.log("empty")


async def promise_of(cluster: Cluster) -> Path:
    """Make a copy; return its promise."""
    await (await cluster.primary(0)).aclose()
    return cluster.machines[2].path / "orders" / "PROMISE"


async def test_a_copy_that_knows_less_than_was_heard(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node was started again, and no primary has spoken to it: an error or waiting; no limit falls."""
    monkeypatch.setattr(source, "_BEHIND_SECONDS", 0.2)
    wal = await cluster.primary(0)
    await wal.append_many([b"%d" % number for number in range(100)])
    machine = cluster.machines[1]
    async with await copy_at(machine) as log:
        await first(log, 100)
        await wal.aclose()
        await machine.stop()
        await machine.start()
        with pytest.raises(StorageUnavailableError, match="has less of the log"):
            async for _ in log.reader(follow=False):
                pass
        assert not len(await log.follow(101).fetch(max_wait_seconds=0.2))
        assert not len(await log.follow(200).fetch(max_wait_seconds=0.2))
        assert log.limit == 101
        await cluster.machines[0].start()
        async with await cluster.primary(2) as after:
            await after.append(b"more")
            assert (await first(log, 101))[-1] == b"more"


async def test_a_head_that_somebody_else_moved(cluster: Cluster) -> None:
    async with await cluster.primary(0) as wal, await copy_at(cluster.machines[1]) as log:
        for number in range(40):
            await wal.append_many([b"%d" % number * 200] * 20)
        await first(log, 800)
        await wal.trim(600)
        node = cluster.machines[1].node
        assert node is not None
        await until(lambda: node._held["orders"].log.head > 1)
        with pytest.raises(OffsetTrimmedError):
            await anext(log.follow("earliest"))
        assert (await anext(log.follow("earliest"))).offset == log.head > 1


async def test_a_log_that_is_not_replicated_is_read_in_the_same_way(tmp_path: Path) -> None:
    from walstore.serve import Server

    async with (
        Wal.open(tmp_path / "log", settings=SMALL) as wal,
        Server.open(wal, unix=tmp_path / "s.sock") as server,
    ):
        await wal.append(b"one")
        async with connect_readonly(str(server.addresses[0])) as log:
            assert await first(log, 1) == [b"one"]
            assert log.replicated_limit is None
            reader = log.follow(2)
            await wal.append(b"two")
            assert (await anext(reader)).value == b"two"


async def test_all_machines_of_a_replicated_log(cluster: Cluster) -> None:
    """Also the one that leads it, through its own server."""
    from walstore.serve import Server

    async with (
        await cluster.primary(0) as wal,
        Server.open(wal, unix=cluster.machines[0].socket),
    ):
        await wal.append(b"one")
        for machine in cluster.machines:
            async with await copy_at(machine) as log:
                assert await first(log, 1) == [b"one"]
        async with await connect(cluster.machines[0].address) as remote:
            await remote.append(b"two")
        async with await copy_at(cluster.machines[2]) as log:
            assert await first(log, 2) == [b"one", b"two"]


async def test_a_node_that_is_closed(tmp_path: Path) -> None:
    async with ReplicaNode.open(tmp_path) as node:
        with pytest.raises(LogNotFoundError):
            await node.log("orders")
        with pytest.raises(ValueError, match="name of a replicated log"):
            await node.log("../orders")
