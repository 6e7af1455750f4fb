"""A cluster: who leads a log, what becomes of it when machines go, and that nothing is lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.connecting import try_once
from tests.local import turns
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.machines import Machine, Machines
from tests.walstore.cluster.replication.cluster import PATIENCE_SECONDS
from walstore import (
    FencedError,
    InvalidSettingsError,
    LogNotFoundError,
    StorageUnavailableError,
    WalClosedError,
    WalLockedError,
    connect,
)
from walstore.cluster.member import ClusterMember
from walstore.cluster.replication.node import ReplicaNode
from walstore.core.files.directory import PROMISE_NAME
from walstore.net.wire.message import PREAMBLE, VERSION, Kind, encode
from walstore.serve import Server
from walstore.testing.faults import FaultyFileSystem
from walstore.topology.documents import PREFIX, Leader
from walstore.topology.memory import MemoryKeyValues

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(tmp_path) as machines:
        yield machines


async def read(machines: Machines, name: str = "orders") -> list[bytes]:
    async with await machines.connect(name) as remote, remote.reader(follow=False) as reader:
        return [record.value async for record in reader]


async def test_a_log_is_made_by_its_spec(cluster: Machines) -> None:
    """The allocator chooses machines, one of them leads, and clients find it from anywhere."""
    await cluster.apply()
    leader = await cluster.led()
    assert sorted(cluster.spec().copies) == sorted(machine.address for machine in cluster.all)
    for machine in cluster.all:
        async with connect(machine.address, log="orders") as remote:
            assert await remote.append(machine.path.name.encode()) > 0
    assert await read(cluster) == [b"m0", b"m1", b"m2"]
    counts = [machine.server.figures.passed_on for machine in cluster.all if machine.server]
    assert sorted(counts) == [0, 1, 1]
    assert leader.server is not None
    assert leader.server.figures.passed_on == 0


async def test_the_next_one_leads_when_the_leader_leaves(cluster: Machines) -> None:
    await cluster.apply()
    leader = await cluster.led()
    async with await cluster.connect() as remote:
        producer = remote.producer("p")
        await producer.append(b"one")
        await leader.stop()
        await producer.append(b"two")
        other = await cluster.led()
        assert other is not leader
        await leader.start()
        await producer.append(b"three")
        assert await cluster.led() is other
    assert await read(cluster) == [b"one", b"two", b"three"]


async def test_a_leader_that_loses_its_lease_goes_on_until_another_leads(cluster: Machines) -> None:
    """The key says who should try; the copies say who may acknowledge."""
    await cluster.apply()
    leader = await cluster.led()
    wal = leader.led()
    assert wal is not None
    await wal.append(b"one")
    leader.keys.cut_off = True
    cluster.end_lease(leader)
    assert cluster.store.get("walstore/leaders/orders") is None
    with suppress(WalClosedError, StorageUnavailableError, FencedError):
        await wal.append(b"maybe")
    await until(lambda: wal.is_closing)
    await until(lambda: cluster.leader() not in (None, leader))
    leader.keys.cut_off = False
    values = await read(cluster)
    assert values[0] == b"one"
    assert values in ([b"one"], [b"one", b"maybe"])
    await until(lambda: len(cluster.leader().member.view.members) == 3)  # type: ignore[union-attr]


@pytest.mark.parametrize("lost", ["nothing", "members", "leaders"])
async def test_a_store_that_is_set_back_has_all_entries_again(cluster: Machines, lost: str) -> None:
    """With the leases that it has now, so that nobody learns it from them. The log goes on."""
    await cluster.apply()
    await cluster.led()
    saved = cluster.store.save()
    await until(lambda: is_led_with_all_copies(cluster))
    if lost != "nothing":
        now = cluster.store.save()
        for key, found in cluster.store.list(f"{PREFIX}{lost}/").items.items():
            cluster.store.swap(key, None, found.revision, 0)
        saved = cluster.store.save()
        cluster.store.set_back(now)
    async with await cluster.connect() as remote:
        await remote.append(b"v")
        cluster.store.set_back(saved)
        await until(lambda: len(cluster.store.list(f"{PREFIX}members/").items) == 3)
        await until(lambda: is_led_with_all_copies(cluster))
        await remote.append(b"v")
    assert await read(cluster) == [b"v"] * 2


def is_led_with_all_copies(machines: Machines) -> bool:
    """Return whether the store says so."""
    key = f"{PREFIX}leaders/orders"
    found = machines.store.get(key)
    return found is not None and len(Leader.decode(found.value, key).present) == 2


async def test_without_its_store_a_log_goes_on(cluster: Machines) -> None:
    await cluster.apply()
    leader = await cluster.led()
    async with await cluster.connect() as remote:
        for machine in cluster.all:
            machine.keys.hangs = True
        for _ in range(3):
            await remote.append(b"v")
        assert leader.led() is not None
        for machine in cluster.all:
            machine.keys.hangs = False
        await remote.append(b"v")
    assert await read(cluster) == [b"v"] * 4


async def test_while_its_claim_lasts_a_leader_knows_what_is_now_without_its_copies(
    cluster: Machines,
) -> None:
    """When that is no longer certain, it asks: tests/walstore/cluster/replication/test_current.py."""
    await cluster.apply()
    leader = await cluster.led()
    wal = leader.led()
    assert wal is not None
    await until(lambda: sum(one.is_present for one in wal.statistics().copies) == 2)

    def calls() -> int:
        servers = (machine.server for machine in cluster.all)
        return sum(one.figures.requests["replica"] for one in servers if one is not None)

    before = calls()
    for _ in range(100):
        await wal.refresh()
    assert calls() - before < 50


async def test_a_log_is_moved_without_a_refused_append(cluster: Machines) -> None:
    await cluster.apply()
    leader = await cluster.led()
    target = next(machine for machine in cluster.all if machine is not leader)
    async with await cluster.connect() as remote:
        done: list[int] = []

        async def produce() -> None:
            producer = remote.producer("p")
            while target.led() is None or len(done) < 50:
                done.append(await producer.append(b"v"))

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            await until(lambda: len(done) > 5)
            await cluster.apply(preferred=target.address)
        await cluster.led(by=target)
        assert done == list(range(1, len(done) + 1))
        await remote.append(b"v")


async def test_who_left_a_log_waits_for_the_next_leader(cluster: Machines) -> None:
    """Another machine may believe for a moment that the old one leads, and pass clients on to it."""
    await cluster.apply()
    leader = await cluster.led()
    other, target = (machine for machine in cluster.all if machine is not leader)
    wal = leader.led()
    assert wal is not None
    assert other.member is not None
    epoch = wal.statistics().epoch
    assert str(await other.member.find("orders", after=epoch - 1)) == leader.address
    # One that is cut off from the store never hears of it, and names the leader that it knows.
    assert str(await other.member.find("orders", after=epoch)) == leader.address
    waiting = asyncio.create_task(other.member.find("orders", after=epoch))
    await cluster.apply(preferred=target.address)
    assert str(await waiting) == target.address


def with_disks(path: Path, size: int = 3) -> tuple[Machines, list[FaultyFileSystem]]:
    """Return machines whose disks can be held."""
    cluster, disks = Machines(path, size), [FaultyFileSystem() for _ in range(size)]
    for machine, disk in zip(cluster.all, disks, strict=True):
        machine.options["fs"] = disk
    return cluster, disks


@pytest.mark.parametrize(
    ("copies", "change"),
    [
        (2, {"preferred": "another"}),  # which needs the copy that is locked
        (3, {"suspended": True}),  # it is idle once its files are closed
        (3, {"settings": {"retention_bytes": 1 << 30}}),  # it is led here again
    ],
)
async def test_a_claim_lasts_until_the_files_are_closed_if_nobody_can_use_it_before(
    tmp_path: Path, copies: int, change: dict[str, Any]
) -> None:
    cluster, disks = with_disks(tmp_path, copies)
    async with cluster:
        await cluster.apply(replicas=copies)
        leader = await cluster.led()
        target = next(machine for machine in cluster.all if machine is not leader)
        if "preferred" in change:
            change = {"preferred": target.address}
        wal = leader.led()
        assert wal is not None
        await wal.append(b"v")
        claim = cluster.store.get(f"{PREFIX}leaders/orders")
        with disks[cluster.all.index(leader)].hold("truncate") as closing:
            await cluster.apply(**change)
            await closing.wait_entered()
            for _ in range(200):
                await asyncio.sleep(0)
            assert cluster.store.get(f"{PREFIX}leaders/orders") == claim
        if "suspended" in change:
            await until(lambda: cluster.store.get(f"{PREFIX}leaders/orders") is None)
        else:
            await cluster.led(by=target if "preferred" in change else leader)


async def test_a_store_that_hangs_for_the_last_leader_keeps_no_copy_locked(tmp_path: Path) -> None:
    """It cannot give its claim up; that ends with its lease."""
    async with Machines(tmp_path, 2) as cluster:
        await cluster.apply(replicas=2)
        leader = await cluster.led()
        target = next(machine for machine in cluster.all if machine is not leader)
        member, wal = leader.member, leader.led()
        assert member is not None
        assert wal is not None
        await wal.append(b"v")
        await cluster.apply(preferred=target.address)
        await until(lambda: member.view.specs["orders"].preferred == target.address)
        leader.keys.hangs = True
        cluster.end_lease(leader)
        await until(lambda: target.led() is not None)
        leader.keys.hangs = False
        assert await read(cluster) == [b"v"]


async def test_the_next_leader_opens_while_the_last_one_closes_its_files(tmp_path: Path) -> None:
    """The claim is given up once the copies have all that they get."""
    cluster, disks = with_disks(tmp_path)
    async with cluster:
        await cluster.apply()
        leader = await cluster.led()
        target = next(machine for machine in cluster.all if machine is not leader)
        async with await cluster.connect() as remote:
            assert await remote.append(b"v") == 1
            with disks[cluster.all.index(leader)].hold("truncate") as closing:
                await cluster.apply(preferred=target.address)
                await closing.wait_entered()
                assert await remote.append(b"v") == 2
                assert target.led() is not None
                assert leader.led() is not None
            assert await cluster.led() is target


async def test_plain_appends_under_way_are_answered_before_a_log_moves(cluster: Machines) -> None:
    """Also while the connection has readers that wait, which the move ends at once."""
    await cluster.apply()
    await cluster.led()
    async with await cluster.connect() as remote:
        done: list[int] = []
        seen: list[int] = []
        turns = 3

        async def append() -> None:
            while turns:
                done.append(await remote.append(b"v"))

        async def follow() -> None:
            async with remote.follow() as reader:
                async for record in reader:
                    seen.append(record.offset)

        async with asyncio.TaskGroup() as group:
            appending = [group.create_task(append()) for _ in range(20)]
            following = group.create_task(follow())
            while turns:
                enough = len(done) + 100
                await until(lambda enough=enough: len(done) > enough)  # type: ignore[misc]
                leader = await cluster.led()
                target = next(machine for machine in cluster.all if machine is not leader)
                await cluster.apply(preferred=target.address)
                await cluster.led(by=target)
                turns -= 1
            await asyncio.wait(appending)
            await until(lambda: len(seen) >= len(done))
            following.cancel()
    assert sorted(done) == list(range(1, len(done) + 1)) == seen


async def test_members_of_a_group_notice_nothing_of_a_move(cluster: Machines) -> None:
    await cluster.apply()
    await cluster.led()
    async with await cluster.connect() as remote:
        await remote.append_many([b"v"] * 3000)
        done: list[int] = []

        async def work() -> None:
            async with remote.group("g", ack_wait_seconds=600) as group:
                while len(done) < 3000:
                    for job in await group.fetch(5, max_wait_seconds=0.1):
                        await job.ack()
                        done.append(job.offset)

        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(work())
            for turn in range(1, 4):
                await until(lambda turn=turn: len(done) > 300 * turn)  # type: ignore[misc]
                leader = await cluster.led()
                target = next(machine for machine in cluster.all if machine is not leader)
                await cluster.apply(preferred=target.address)
                await cluster.led(by=target)
    assert sorted(done) == list(range(1, 3001))


async def test_the_machine_that_makes_room_gives_the_target_its_time(cluster: Machines) -> None:
    """It led for longer than a candidate waits for those before it, which must not count."""
    await cluster.apply()
    leader = await cluster.led()
    target = next(machine for machine in cluster.all if machine is not leader)
    for machine in cluster.all:
        machine.clock.skip(10)
        if machine is not target:  # who waits for those before it waits for ever
            machine.clock.stand_still()
    claims: list[Machine] = []

    def note_claims(machine: Machine) -> None:
        swap = machine.keys.swap

        async def slow_swap(key: str, value: bytes | None, **options: Any) -> Any:
            is_claim = value is not None and "/leaders/" in key and not options["expected"]
            if is_claim:  # else a leader publishes what its copies are
                claims.append(machine)
                if machine is target:
                    await until(lambda: all(_is_vacant(one) for one in cluster.all))
                    await until(lambda: leader.led() is None)
                    await turns(100)
            done = await swap(key, value, **options)
            if value is None:  # the news may come before the answer
                await until(lambda: _is_vacant(machine))
            return done

        machine.keys.swap = slow_swap  # type: ignore[method-assign]

    for machine in cluster.all:
        note_claims(machine)
    await cluster.apply(preferred=target.address)
    await cluster.led(by=target)
    assert set(claims) == {target}


def _is_vacant(machine: Machine) -> bool:
    """Whether a machine knows that nobody leads the log."""
    assert machine.member is not None
    return "orders" not in machine.member.view.leaders


async def test_several_logs_are_led_by_several_machines(tmp_path: Path) -> None:
    async with Machines(tmp_path, 4) as cluster:
        names = ["a", "b", "c", "d"]
        for name in names:
            await cluster.apply(name, replicas=2)
        for name in names:
            await cluster.led(name)
            async with await cluster.connect(name) as remote:
                await remote.append(name.encode())
        load = [address for name in names for address in cluster.spec(name).copies]
        assert sorted(load.count(machine.address) for machine in cluster.all) == [2, 2, 2, 2]
        for name in names:
            assert await read(cluster, name) == [name.encode()]


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
            await until(lambda: len(_present(cluster)) == 2)
            await gone.stop()
            await until(lambda: spare.address in cluster.spec().copies)
            assert gone.address not in cluster.spec().copies
            await remote.producer("p").append(b"two")
            await until(lambda: spare.address in _present(cluster))
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
            await until(lambda: spare in _present(cluster))
            disks[gone].heal()
        assert await read(cluster) == [b"one", b"two"]


def published(cluster: Machines) -> Leader:
    found = cluster.store.get("walstore/leaders/orders")
    assert found is not None
    return Leader.decode(found.value, found.key)


def _present(cluster: Machines) -> list[str]:
    leader = cluster.leader()
    wal = None if leader is None else leader.led()
    if wal is None:
        return []
    return [copy.address for copy in wal.statistics().copies if copy.is_present]


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


async def test_a_machine_that_starts_again_leads_at_once(cluster: Machines) -> None:
    """Its old claim has a lease that has not ended; it is at its own address, so it is removed."""
    await cluster.apply()
    leader = await cluster.led()
    assert leader.member is not None
    lease = leader.member.session.lease
    leader.keys.cut_off = True  # as if it was killed: nobody ends the lease
    await leader.stop()
    assert lease in cluster.store.leases
    leader.keys.cut_off = False
    await leader.start()
    await cluster.led()
    async with await cluster.connect() as remote:
        await remote.append(b"v")


async def test_a_machine_that_leads_other_logs_gets_its_turn(cluster: Machines) -> None:
    """The first candidate cannot open the log; the next one leads another log, about which there is news."""
    a, b, c = cluster.all
    await cluster.apply("other", copies=(b.address, a.address, c.address))
    await cluster.led("other", by=b)
    await cluster.apply(copies=(c.address, a.address, b.address))
    await cluster.led(by=c)
    await until(lambda: len(_present(cluster)) == 2)
    await a.stop()
    await asyncio.to_thread((a.path / "orders" / PROMISE_NAME).write_bytes, b"damaged")
    await a.start()
    await c.stop()
    await c.start()
    await until(lambda: cluster.leader() in (b, c))
    async with await cluster.connect() as remote:
        await remote.append(b"v")


async def test_a_log_that_is_made_again_has_its_copies(cluster: Machines) -> None:
    await cluster.apply(replicas=2)
    await cluster.led()
    await cluster.apply(replicas=3)
    await until(lambda: len(_present(cluster)) == 2)
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
            await until(lambda: len(_present(machines)) == 4)
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
            await until(lambda: len(_present(machines)) == 4)
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
        await until(lambda: len(_present(cluster)) == 2)
        await other.stop()
        shutil.copytree(other.path / "orders", tmp_path / "backup")
        await other.start()
        await until(lambda: len(_present(cluster)) == 2)
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
