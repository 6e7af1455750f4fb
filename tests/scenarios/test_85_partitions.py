"""A cluster whose network is cut, in one direction or both: clients go on, and nothing is lost or twice.

Three processes of ``walstore serve --cluster``, etcd, and clients: each machine in a network namespace, which
needs root, and the same with proxies between them (``tests/partitions.py``). Four producers append all the
time, with numbers, over a connection that knows all machines. Another client knows only the machine that
leads when the network is cut, and appends there without numbers. In the end the log is compared with all that
was acknowledged to anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster_demo import WRONG, judge
from tests.cut_cluster import Stage, has_all_copies, machines_but, others_than
from tests.etcd import require_etcd, running
from tests.histories import Checker
from tests.partitions import (
    MACHINES,
    STORE,
    How,
    Way,
    between,
    from_to,
    namespaces,
    problem,
    proxies,
)

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(900)]

# -- what is cut -------------------------------------------------------------------------------


async def another_leads(
    stage: Stage, ways_of: Callable[[str], list[Way]], how: How, *, is_left_by_clients: bool = True
) -> None:
    """Cut ways of the leader. Another machine leads, clients go on there, and the old one says nothing.

    A client that only knows the old leader gets no acknowledgement any more, once the next one leads. Clients
    that know all machines leave the old one when it says nothing. One that answers them, and knows nothing of
    the next leader, they leave only later: until then only those that begin now go on.
    """
    async with stage.pinned(has_all_copies) as (old, before, pinned):
        await stage.network.cut(ways_of(old), how)
        _, leader = await stage.led(lambda name, _: name != old)
        assert leader.epoch > before.epoch
        later = len(pinned.made) + 1  # one may be under way
        if is_left_by_clients:
            await stage.clients.more()
        async with stage.pinned(lambda name, _: name != old, records=20):
            pass
        wrong = [one for one in pinned.made[later:] if one.outcome == "ok"]
        assert not wrong, "the old leader acknowledges, too"
        await stage.network.heal()
        await stage.clients.more()


async def nothing_is_noticed(stage: Stage, ways: list[Way], how: How) -> None:
    """Cut ways on which the log does not depend: the same machine leads, and clients go on.

    Unless a busy computer let the leader lose its lease, which is short here.
    """
    name, epoch = await stage.settled()
    leader = next(machine for machine in stage.machines if machine.name == name)
    leases = leader.lost_leases
    await stage.network.cut(ways, how)
    await stage.go_on()
    await stage.network.heal()
    await stage.clients.more()
    assert await stage.settled() == (name, epoch) or leader.lost_leases > leases


async def leader_is_cut_off(stage: Stage) -> None:
    """From all others, clients, too."""
    await another_leads(stage, lambda name: between(name, others_than(name)), "lose")


async def leader_is_cut_off_but_for_clients(stage: Stage) -> None:
    await another_leads(
        stage,
        lambda name: between(name, [*machines_but(name), STORE]),
        "hold",
        is_left_by_clients=False,
    )


async def leader_is_not_heard(stage: Stage) -> None:
    """It hears all the others."""
    await another_leads(stage, lambda name: from_to(name, others_than(name)), "lose")


async def leader_hears_nobody(stage: Stage) -> None:
    """All the others hear it."""
    await another_leads(stage, lambda name: from_to(others_than(name), name), "hold")


async def leader_is_cut_off_from_etcd(stage: Stage) -> None:
    """Its lease ends, so another one takes over, though it has all its copies. Those tell it."""
    await another_leads(stage, lambda name: between(name, STORE), "lose")


async def leader_is_cut_off_from_machines(stage: Stage) -> None:
    """Not from etcd: it keeps its lease. It acknowledges nothing before a copy is there, or another leads."""
    name, _ = await stage.settled()
    await stage.network.cut(between(name, machines_but(name)), "reset")
    await stage.led(lambda found, leader: found != name or not leader.present)
    await stage.probe()
    await stage.wait_probe()
    await stage.network.heal()
    await stage.clients.more()


async def follower_is_cut_off(stage: Stage) -> None:
    name, _ = await stage.settled()
    victim = machines_but(name)[0]
    await nothing_is_noticed(stage, between(victim, others_than(victim)), "reset")


async def follower_is_not_heard(stage: Stage) -> None:
    name, _ = await stage.settled()
    victim = machines_but(name)[1]
    await nothing_is_noticed(stage, from_to(victim, name), "lose")


async def followers_are_cut_off_from_each_other(stage: Stage) -> None:
    name, _ = await stage.settled()
    one, two = machines_but(name)
    await nothing_is_noticed(stage, between(one, two), "lose")


async def etcd_is_cut_off(stage: Stage) -> None:
    """From all machines: the log goes on where it is led. When it is back, so are the leases."""
    await stage.settled()
    await stage.network.cut(between(STORE, MACHINES), "lose")
    await stage.go_on()
    await stage.network.heal()
    await stage.clients.more()


Case = Callable[[Stage], Awaitable[None]]
HELD_OR_RESET: Final[list[Case]] = [
    leader_is_cut_off_but_for_clients,
    leader_hears_nobody,
    leader_is_cut_off_from_machines,
    follower_is_cut_off,
]
"""What differs from a loss, where something else than the kernel does it."""
LOST: Final[list[Case]] = [
    leader_is_cut_off,
    leader_is_not_heard,
    leader_is_cut_off_from_etcd,
    follower_is_not_heard,
    followers_are_cut_off_from_each_other,
    etcd_is_cut_off,
]


async def run(stage: Stage, cases: list[Case], check_history: Checker) -> dict[str, Any]:
    """Cut the network in all ways, one after the other; return what was found."""
    clients = stage.clients
    async with stage.started() as remote:
        async with asyncio.TaskGroup() as group:
            work = [clients.produce(remote, number) for number in range(4)]
            tasks = [group.create_task(one) for one in (*work, clients.follow(remote))]
            await clients.more()
            for case in cases:
                await stage.settled()
                print(case.__name__)
                try:
                    await case(stage)
                except Exception as error:
                    error.add_note(f"in {case.__name__}")
                    raise
            await stage.settled()
            for task in tasks:
                task.cancel()
        async with remote.reader(follow=False) as reader:
            log = {record.offset: record.value async for record in reader}
    return judge(clients, log, {}, check_history)


def check(stage: Stage, result: dict[str, Any]) -> None:
    """Nothing is lost, twice or disordered; no offset was acknowledged for two records."""
    print(result)
    assert not any(result[name] for name in WRONG), result
    done = [one for one in stage.clients.history.appends if one.outcome == "ok"]
    assert len({one.offset for one in done}) == len(done)
    assert result["acknowledged"] > 100


async def play(directory: Path, make: Any, cases: list[Case], check_history: Checker) -> None:
    with running(1) as etcd:
        async with make(directory, etcd.address) as network:
            stage = Stage(directory, network, etcd)
            check(stage, await run(stage, cases, check_history))


def test_the_network_of_namespaces_is_cut(tmp_path: Path, check_history: Checker) -> None:
    require_etcd()
    if why := problem():
        pytest.skip(why)
    asyncio.run(play(tmp_path, namespaces, [*LOST, *HELD_OR_RESET], check_history))


def test_the_network_of_proxies_is_cut(tmp_path: Path, check_history: Checker) -> None:
    require_etcd()
    cases = [*LOST, *HELD_OR_RESET] if problem() else HELD_OR_RESET
    asyncio.run(play(tmp_path, proxies, cases, check_history))
