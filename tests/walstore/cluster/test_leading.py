"""Who leads a log of a cluster, and how a log moves from one machine to another without a loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.local import turns
from tests.waiting import until
from tests.walstore.cluster.machines import Machine, Machines, present, read
from walstore import (
    FencedError,
    StorageUnavailableError,
    WalClosedError,
    connect,
)
from walstore.core.files.directory import PROMISE_NAME
from walstore.testing.faults import FaultyFileSystem
from walstore.topology.documents import PREFIX, Leader

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(tmp_path) as machines:
        yield machines


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
    await until(lambda: len(present(cluster)) == 2)
    await a.stop()
    await asyncio.to_thread((a.path / "orders" / PROMISE_NAME).write_bytes, b"damaged")
    await a.start()
    await c.stop()
    await c.start()
    await until(lambda: cluster.leader() in (b, c))
    async with await cluster.connect() as remote:
        await remote.append(b"v")
