"""A suspended log: nobody leads it, no machine has a file or a task for it, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cloud import FAST, URL
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.machines import Machine, Machines
from tests.walstore.cluster.replication.cluster import losing_patience
from uploader import CloudLog, CloudTier, UploadSettings
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, faults
from walstore import (
    LogNotFoundError,
    LogSuspendedError,
    OutcomeUnknownError,
    RemoteWal,
    StorageUnavailableError,
    WalError,
    connect,
    connect_readonly,
    list_logs,
)
from walstore.topology.documents import LEADERS, PREFIX, LogSpec

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(tmp_path) as machines:
        yield machines


async def read(machines: Machines) -> list[bytes]:
    async with await machines.connect() as remote, remote.reader(follow=False) as reader:
        return [record.value async for record in reader]


def places(machines: Machines) -> list[str]:
    return [machine.address for machine in machines.all]


def is_idle(machines: Machines, name: str = "orders") -> bool:
    """Whether no machine has the log open, and nobody claims it."""
    members = [machine.member for machine in machines.all if machine.member is not None]
    is_led = machines.store.get(f"{PREFIX}{LEADERS}{name}") is not None
    return not is_led and all(
        name not in one.node.logs and name not in one.led and name not in one._hosted
        for one in members
    )


def open_files(machines: Machines) -> list[str]:
    """Files of logs that this process, which all machines are in, has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # the directory that was listed
            continue
        if any(path.startswith(f"{one.path}/orders") for one in machines.all):
            found.append(path)
    return found


async def suspend(machines: Machines) -> None:
    await machines.apply(suspended=True)
    await until(lambda: is_idle(machines))


async def follow(remote: RemoteWal, got: list[bytes]) -> None:
    async with remote.follow() as reader:
        async for record in reader:
            got.append(record.value)


async def test_nobody_has_a_suspended_log_open(cluster: Machines) -> None:
    """Clients are told at once, those that are connected stay usable, and it goes on where it was."""
    await cluster.apply()
    leader = await cluster.led()
    async with await cluster.connect() as remote, connect(leader.address, log="orders") as one:
        await remote.append(b"one")
        assert open_files(cluster)
        await suspend(cluster)
        assert open_files(cluster) == []
        for client in (remote, one):
            with pytest.raises(LogSuspendedError, match="walstore logs resume orders") as caught:
                await client.append(b"refused")
            assert (caught.value.outcome, caught.value.retriable) == ("not_written", False)
        for where in (places(cluster), cluster.all[0].address):
            with pytest.raises(LogSuspendedError):
                await connect(where, log="orders")
            with pytest.raises(LogSuspendedError):
                await connect_readonly(where, log="orders")
        assert [log.suspended for log in await list_logs(places(cluster))] == [True]
        await cluster.apply(suspended=False)
        for client in (remote, one):
            await client.append(b"two")
    assert await read(cluster) == [b"one", b"two", b"two"]
    assert [log.suspended for log in await list_logs(places(cluster))] == [False]


async def test_a_client_that_connects_after_a_resumption_is_not_refused(cluster: Machines) -> None:
    """Its machine has not heard of it yet, and asks the store."""
    await cluster.apply()
    await cluster.led()
    await suspend(cluster)
    await cluster.apply(suspended=False)
    async with connect(cluster.all[0].address, log="orders") as remote:
        await remote.append(b"v")


async def test_readers_of_the_log_and_of_copies_are_told(cluster: Machines) -> None:
    await cluster.apply()
    leader = await cluster.led()
    copy = next(machine for machine in cluster.all if machine is not leader)
    got: list[bytes] = []
    async with (
        connect(leader.address, log="orders") as remote,
        connect_readonly(copy.address, log="orders") as readonly,
    ):
        await remote.append(b"v")
        readers = [asyncio.ensure_future(follow(one, got)) for one in (remote, readonly)]  # type: ignore[arg-type]
        await until(lambda: got == [b"v", b"v"])
        await suspend(cluster)
        for reader in readers:
            with pytest.raises(LogSuspendedError):
                await reader


async def test_its_leader_ships_before_it_closes(tmp_path: Path) -> None:
    url = (tmp_path / "store" / "orders").as_uri()
    async with Machines(tmp_path, tier=lambda _, place: CloudTier(place)) as machines:
        await machines.apply(tier=url)
        await machines.led()
        async with await machines.connect() as remote:
            for _ in range(20):
                await remote.append(b"v")
        await suspend(machines)
        async with CloudLog.open(url) as log:
            assert log.tail == 21


async def test_what_cannot_be_shipped_is_shipped_after_the_resumption(tmp_path: Path) -> None:
    inner = MemoryStore()
    store, settings = FaultyStore(inner), UploadSettings(drain_seconds=RUNS_OUT_SECONDS)
    stores: list[ObjectStore] = [store]

    def tier(_: str, url: str) -> CloudTier:
        return CloudTier(url, store=stores[-1], settings=settings, retry=FAST)

    async with Machines(tmp_path, tier=tier) as machines:
        await machines.apply(tier=URL)
        await machines.led()
        async with await machines.connect() as remote:
            await remote.append(b"one", durability="cloud")
            store.on("any", faults.fail(faults.timeout("not_written")), times=10**6)
            await remote.append(b"two")
        await suspend(machines)
        stores.append(inner)
        async with CloudLog.open(URL, store=inner) as log:
            assert log.tail == 2
        await machines.apply(suspended=False)
        async with await machines.connect() as remote:
            await remote.append(b"three", durability="cloud")
        async with CloudLog.open(URL, store=inner) as log:
            assert log.tail == 4


async def test_a_machine_that_starts_meanwhile_opens_nothing(cluster: Machines) -> None:
    await cluster.apply()
    await cluster.led()
    async with await cluster.connect() as remote:
        await remote.append(b"v")
    await suspend(cluster)
    for machine in cluster.all:
        await machine.stop()
    for machine in cluster.all:
        await machine.start()
    await until(lambda: all(len(one.member.view.members) == 3 for one in cluster.all))  # type: ignore[union-attr]
    assert is_idle(cluster)
    assert open_files(cluster) == []
    await cluster.apply(suspended=False)
    await cluster.led()
    assert await read(cluster) == [b"v"]


async def test_a_takeover_that_is_under_way_is_given_up(cluster: Machines) -> None:
    await cluster.apply()
    leader = await cluster.led()
    async with await cluster.connect() as remote:
        await remote.append(b"v")
    last, away = (machine for machine in cluster.all if machine is not leader)
    await away.stop()
    await leader.stop()
    key = f"{PREFIX}{LEADERS}orders"
    await until(lambda: cluster.store.get(key) is not None)  # it claims the log, without a quorum
    assert last.led() is None
    await suspend(cluster)
    assert open_files(cluster) == []
    for machine in (away, leader):
        await machine.start()
    assert is_idle(cluster)
    await cluster.apply(suspended=False)
    await cluster.led()
    assert await read(cluster) == [b"v"]


async def test_a_leader_without_the_store_acknowledges_nothing_once_its_copies_know(
    cluster: Machines,
) -> None:
    await cluster.apply()
    leader = await cluster.led()
    others = [machine for machine in cluster.all if machine is not leader]
    async with connect(leader.address, log="orders") as remote:
        await remote.append(b"one")
        leader.keys.hangs = True
        cluster.end_lease(leader)
        assert cluster.store.get(f"{PREFIX}{LEADERS}orders") is None
        await remote.append(b"two")  # so far it does
        await cluster.apply(suspended=True)
        members = [machine.member for machine in others if machine.member is not None]
        await until(lambda: not any("orders" in one.node.logs for one in members))
        wal = leader.led()
        assert wal is not None
        async with losing_patience(leader.clock, wal):
            with pytest.raises((OutcomeUnknownError, StorageUnavailableError)):
                await remote.append(b"in doubt")
        assert not any("orders" in one.node.logs for one in members)
        leader.keys.hangs = False
        await until(lambda: is_idle(cluster))
    await cluster.apply(suspended=False)
    await cluster.led()
    assert (await read(cluster))[:2] == [b"one", b"two"]


async def test_whatever_the_order_nothing_is_lost_or_twice(cluster: Machines) -> None:
    """It is suspended and resumed at any moment, also while its leader takes over or closes it."""
    chosen = random.Random(7)
    await cluster.apply()
    done: list[int] = []
    is_over = False

    async def produce() -> None:
        while not is_over:
            try:
                async with await cluster.connect() as remote:
                    producer = remote.producer("p")
                    while not is_over:
                        await producer.append(b"%d" % len(done), sequence=len(done) + 1)
                        done.append(len(done))
            except WalError:
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        for _ in range(12):
            seen = len(done)
            await cluster.apply(suspended=False)
            await until(lambda seen=seen: len(done) > seen)  # type: ignore[misc]
            for is_suspended in (True, False, True):
                for _ in range(chosen.randrange(300)):
                    await asyncio.sleep(0)
                await cluster.apply(suspended=is_suspended)
            if chosen.random() < 0.5:
                await until(lambda: is_idle(cluster))
        await cluster.apply(suspended=False)
        await cluster.led()
        is_over = True
    values = [int(value) for value in await read(cluster)]
    assert values == list(range(len(values)))
    assert len(values) >= len(done)


async def test_a_suspended_log_is_changed_moved_and_made_again(cluster: Machines) -> None:
    """What is wanted of it counts once it is resumed."""
    await cluster.apply(replicas=2)
    leader = await cluster.led()
    async with await cluster.connect() as remote:
        await remote.append(b"v")
    await suspend(cluster)
    other = next(one for one in cluster.all if one.address in cluster.spec().copies[1:])
    copies = cluster.spec().copies
    await cluster.apply(replicas=3, preferred=other.address)
    await until(lambda: leader.member is not None and len(leader.member.view.members) == 3)
    assert (cluster.spec().copies, is_idle(cluster)) == (copies, True)
    await cluster.apply(suspended=False)
    await cluster.led(by=other)
    await until(lambda: len(cluster.spec().copies) == 3)
    await suspend(cluster)
    key = f"{PREFIX}logs/orders"
    found = cluster.store.get(key)
    assert found is not None
    cluster.store.swap(key, None, found.revision, 0)
    member = cluster.all[0].member
    assert member is not None
    await until(lambda: "orders" not in member.view.specs)
    with pytest.raises(LogNotFoundError):
        await member.find("orders")


async def test_a_log_that_is_made_suspended_gets_its_machines_when_it_is_resumed(
    cluster: Machines,
) -> None:
    await cluster.apply(suspended=True)
    await cluster.apply("other")
    await cluster.led("other")
    assert cluster.spec().copies == ()
    with pytest.raises(LogSuspendedError):
        await cluster.connect()
    await cluster.apply(suspended=False)
    await cluster.led()


async def test_suspended_logs_cost_no_tasks(cluster: Machines) -> None:
    await cluster.apply()
    wal = (await cluster.led()).led()
    assert wal is not None
    await until(lambda: all(copy.is_present for copy in wal.statistics().copies))
    machine: Machine = cluster.all[0]
    assert machine.member is not None
    tasks = len(asyncio.all_tasks())
    spec = LogSpec(suspended=True).with_copies(places(cluster))
    for number in range(1000):
        await cluster.apply(f"idle-{number}", **spec._asdict())
    view = machine.member.view
    await until(lambda: len(view.specs) == 1001)
    async with await cluster.connect() as remote:
        await remote.append(b"v")
    # Some of the log that is led come and go.
    await until(lambda: len(asyncio.all_tasks()) <= tasks + 20)
    assert list(machine.member._hosted) == ["orders"]
