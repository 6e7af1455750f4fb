"""A log with one copy: its machine leads it or nobody does; it moves, and grows, by a second copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.machines import Machine, Machines
from walstore import RemoteWal, StorageUnavailableError, connect
from walstore.topology.documents import LEADERS, PREFIX, Leader

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(tmp_path) as machines:
        yield machines


async def read(machines: Machines) -> list[bytes]:
    async with await machines.connect() as remote, remote.reader(follow=False) as reader:
        return [record.value async for record in reader]


def at(machines: Machines, address: str) -> Machine:
    return next(one for one in machines.all if one.address == address)


async def with_copies(machines: Machines, number: int) -> None:
    """Wait until a log has so many copies, and all of them count."""

    def are_there() -> bool:
        leader = machines.leader()
        wal = None if leader is None else leader.led()
        if wal is None or len(machines.spec().copies) != number:
            return False
        copies = wal.statistics().copies
        return len(copies) == number - 1 and all(one.is_present for one in copies)

    await until(are_there)


async def test_it_is_led_by_its_machine_or_by_nobody(cluster: Machines) -> None:
    member = cluster.all[0].member
    assert member is not None
    assert await member.make_log("orders", replicas=1)
    leader = await cluster.led()
    assert cluster.spec().copies == (leader.address,)
    async with await cluster.connect() as remote:
        assert await remote.append(b"one", durability="replicated") == 1
    await leader.stop()
    await until(lambda: cluster.store.get(f"{PREFIX}{LEADERS}orders") is None)
    places = [one.address for one in cluster.all if one is not leader]
    with pytest.raises(StorageUnavailableError):
        await connect(places, log="orders", connect_seconds=RUNS_OUT_SECONDS)
    assert cluster.leader() is None
    await leader.start()
    await cluster.led(by=leader)
    assert await read(cluster) == [b"one"]


async def test_it_is_suspended_resumed_and_made_again(cluster: Machines) -> None:
    await cluster.apply(replicas=1)
    leader = await cluster.led()
    async with await cluster.connect() as remote:
        await remote.append(b"one")
    await cluster.apply(suspended=True)
    await until(lambda: cluster.leader() is None)
    await cluster.apply(suspended=False)
    await cluster.led(by=leader)
    assert await read(cluster) == [b"one"]


async def append(remote: RemoteWal, done: list[int]) -> None:
    producer = remote.producer("p")
    while True:
        done.append(await producer.append(b"%d" % len(done)))


async def test_it_grows_to_three_copies_and_back(cluster: Machines) -> None:
    """One after the other, while a producer appends."""
    await cluster.apply(replicas=1)
    await cluster.led()
    async with await cluster.connect() as remote:
        done: list[int] = []
        appending = asyncio.create_task(append(remote, done))
        for number in (2, 3, 2, 1):
            before = len(done)
            await until(lambda before=before: len(done) > before + 5)  # type: ignore[misc]
            await cluster.apply(replicas=number)
            await with_copies(cluster, number)
        before = len(done)
        await until(lambda: len(done) > before + 5)
        appending.cancel()
        await asyncio.wait([appending])
    found = await read(cluster)
    assert done == list(range(1, len(done) + 1))
    assert found[: len(done)] == [b"%d" % number for number in range(len(done))]
    assert len(found) - len(done) in (0, 1)


async def test_it_moves_by_a_second_copy(cluster: Machines) -> None:
    await cluster.apply(replicas=1)
    old = await cluster.led()
    async with await cluster.connect() as remote:
        await remote.append(b"one")
        await cluster.apply(replicas=2)
        await with_copies(cluster, 2)
        (place,) = set(cluster.spec().copies) - {old.address}
        await cluster.apply(preferred=place)
        new = await cluster.led(by=at(cluster, place))
        await remote.append(b"two")
        await cluster.apply(replicas=1)
        await with_copies(cluster, 1)
        assert cluster.spec().copies == (place,)
        await cluster.led(by=new)
        await remote.append(b"three")
    await old.stop()
    assert await read(cluster) == [b"one", b"two", b"three"]


async def test_a_second_copy_that_is_never_made_is_given_up_by_hand(cluster: Machines) -> None:
    """Its machine is gone before it had anything: nobody leads until the list is the first one's again."""
    await cluster.apply(replicas=1)
    old = await cluster.led()
    async with await cluster.connect() as remote:
        await remote.append(b"one")
    others = [one for one in cluster.all if one is not old]
    new = others[0]
    await others[1].stop()
    assert new.server is not None
    await new.server.aclose()  # it is in the cluster, but nobody reaches it
    await cluster.apply(replicas=2)
    await until(lambda: len(cluster.spec().copies) == 2)
    await until(lambda: cluster.leader() is None)
    generation = cluster.spec().generation + 1
    await cluster.apply(replicas=1, copies=(old.address,), generation=generation)  # --adopt
    await cluster.led(by=old)
    assert await read(cluster) == [b"one"]


async def test_the_second_of_two_copies_is_replaced(tmp_path: Path) -> None:
    """The one that is left has everything: each of the two had to have it."""
    async with Machines(tmp_path) as machines:
        await machines.apply(replicas=2)
        leader = await machines.led()
        await with_copies(machines, 2)
        async with await machines.connect() as remote:
            await remote.append(b"one")
            (place,) = set(machines.spec().copies) - {leader.address}
            await at(machines, place).stop()
            for machine in machines.all:
                if machine.member is not None:
                    machine.member.replace_seconds = 0.0  # it has been away for long
            await until(lambda: place not in machines.spec().copies)
            await with_copies(machines, 2)
            await remote.append(b"two")
        assert await read(machines) == [b"one", b"two"]


def test_what_a_leader_of_one_copy_says() -> None:
    assert Leader.of("a", 1, (), {}).present == ()
