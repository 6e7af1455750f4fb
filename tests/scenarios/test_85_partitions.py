"""A cluster whose network is cut, in one direction or both: clients go on, and nothing is lost or twice.

Three processes of ``walstore serve --cluster``, etcd, and clients: each machine in a network namespace, which
needs root, and the same with proxies between them (``tests/partitions.py``). Four producers append all the
time, with numbers, over a connection that knows all machines. Another client knows only the machine that
leads when the network is cut, and appends there without numbers. In the end the log is compared with all that
was acknowledged to anybody.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests import cluster_demo
from tests.cluster_demo import LOG, WRONG, Clients, judge
from tests.etcd import EtcdCluster, require_etcd, running
from tests.histories import Append, Checker, Outcome
from tests.partitions import (
    EVERYBODY,
    MACHINES,
    STORE,
    How,
    Network,
    Way,
    between,
    from_to,
    namespaces,
    problem,
    proxies,
)
from tests.waiting import until
from walstore import RemoteWal, WalError, connect
from walstore.topology.documents import LEADERS, PREFIX, Leader
from walstore.topology.etcd import EtcdKeyValues

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(900)]

LEASE_SECONDS: Final = 1
PROBE: Final = "partitions/probe"
"""A key that is deleted when as much time has passed as a lease lasts."""


class CutMachine(cluster_demo.Machine):
    """A machine in a network that can be cut."""

    def __init__(self, directory: Path, name: str, network: Network) -> None:
        super().__init__(directory, network.store(name), LEASE_SECONDS)
        self.name = name
        self.address = network.address(name)
        self._network = network
        serve = [sys.executable, "-m", "walstore", "serve", str(directory)]
        serve += ["--cluster", network.store(name), "--lease-seconds", str(LEASE_SECONDS)]
        self._command = network.command(name, serve)
        directory.mkdir()

    @property
    def lost_leases(self) -> int:
        """How often it has lost its lease, by what it says."""
        return self._log.read_text().count("the lease of this machine was lost")

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                env={**os.environ, **self._network.environment},
            )
        self._network.started(self.name, self.process.pid)
        assert self.process.stdout is not None
        if not await self.process.stdout.readline():
            raise RuntimeError(f"a machine did not start: {self._log.read_text()[-1000:]}")


class PinnedClient:
    """Appends at one machine, without numbers: each append is there, or not, or nobody knows."""

    def __init__(self, clients: Clients, numbers: count[int]) -> None:
        self._clients = clients
        self._numbers = numbers
        self.made: list[Append] = []
        self.has_ended = False

    @property
    def acknowledged(self) -> int:
        """How many of its appends are acknowledged."""
        return sum(one.outcome == "ok" for one in self.made)

    async def run(self, address: str, options: dict[str, Any]) -> None:
        """Append until the machine does not lead any more."""
        try:
            async with connect(address, log=LOG, reconnect_seconds=1.0, **options) as remote:
                await self._append(remote)
        except WalError:
            return  # no server leads the log there
        finally:
            self.has_ended = True

    async def _append(self, remote: RemoteWal) -> None:
        for number in self._numbers:
            begin = time.monotonic()
            made = Append(b"x %d" % number, begin, begin, "unknown")
            try:
                offset = await remote.append(made.value)
            except WalError as error:
                outcome: Outcome = "refused" if error.outcome == "not_written" else "unknown"
                made = replace(made, end=time.monotonic(), outcome=outcome)
            else:
                made = replace(made, end=time.monotonic(), outcome="ok", offset=offset)
            finally:
                self.made.append(made)
                self._clients.history.appends.append(made)
            if remote.is_closing:
                return
            await asyncio.sleep(0.005)


class Stage:
    """The cluster, its network, and clients."""

    def __init__(self, directory: Path, network: Network, etcd: EtcdCluster) -> None:
        self.network = network
        self.clients = Clients()
        self.etcd = etcd
        self.machines = [CutMachine(directory / name, name, network) for name in MACHINES]
        self.keys: EtcdKeyValues
        self._numbers = count()

    @property
    def addresses(self) -> list[str]:
        return [machine.address for machine in self.machines]

    async def found(self) -> tuple[str, Leader] | None:
        """Return who leads the log, as etcd has it."""
        key = f"{PREFIX}{LEADERS}{LOG}"
        found = await self.keys.get(key)
        leader = None if found is None else Leader.decode(found.value, key)
        for machine in self.machines:
            if leader is not None and leader.epoch and leader.address == machine.address:
                return machine.name, leader
        return None

    async def led(self, holds: Holds) -> tuple[str, Leader]:
        """Wait until a machine leads, for which something holds."""
        prefix = f"{PREFIX}{LEADERS}"
        async with asyncio.timeout(120):
            revision = (await self.keys.list(prefix)).revision
            found = await self.found()
            if found is not None and holds(*found):
                return found
            async with aclosing(self.keys.watch(prefix, after=revision)) as changes:
                async for _ in changes:
                    found = await self.found()
                    if found is not None and holds(*found):
                        return found
        raise AssertionError

    async def settled(self) -> tuple[str, int]:
        """Wait until a machine leads with all copies; return it and the epoch."""
        name, leader = await self.led(has_all_copies)
        return name, leader.epoch

    async def probe(self) -> None:
        """Make a key that is there for as long as a lease lasts."""
        lease = await self.keys.grant(LEASE_SECONDS)
        assert (await self.keys.swap(PROBE, b"", expected=0, lease=lease)).happened

    async def go_on(self) -> None:
        """Let producers get on all the time, for as long as a lease lasts."""
        await self.probe()
        while await self.keys.get(PROBE):
            await self.clients.more()

    @asynccontextmanager
    async def pinned(
        self, holds: Holds, records: int = 1
    ) -> AsyncIterator[tuple[str, Leader, PinnedClient]]:
        """Let a client append only at the machine that leads; so many of its appends are acknowledged.

        A busy computer may let the leader lose its lease before; then at the next one.
        """
        while True:
            name, leader = await self.led(holds)
            machine = next(one for one in self.machines if one.name == name)
            pinned, leases = PinnedClient(self.clients, self._numbers), machine.lost_leases

            def is_over(pinned=pinned, machine=machine, leases=leases) -> bool:
                is_done = pinned.acknowledged >= records or pinned.has_ended
                return is_done or machine.lost_leases > leases

            async with asyncio.TaskGroup() as group:
                running = pinned.run(machine.address, self.network.options)
                task = group.create_task(running)
                await until(is_over, seconds=120)
                if is_pinned := pinned.acknowledged >= records:
                    yield name, leader, pinned
                task.cancel()
            if is_pinned:
                return

    @asynccontextmanager
    async def started(self) -> AsyncIterator[RemoteWal]:
        """Start all, make the log, and connect."""
        command = [sys.executable, "-m", "walstore", "logs", "apply", LOG, "--replicas", "3"]
        try:
            async with asyncio.TaskGroup() as group:
                for machine in self.machines:
                    group.create_task(machine.start())
            process = await asyncio.create_subprocess_exec(
                *command, "--cluster", self.etcd.address, stdout=DEVNULL
            )
            assert await process.wait() == 0
            async with (
                EtcdKeyValues.open(self.etcd.address) as self.keys,
                connect(
                    self.addresses,
                    log=LOG,
                    connect_seconds=60,
                    reconnect_seconds=60,
                    **self.network.options,
                ) as remote,
            ):
                yield remote
        finally:
            for machine in self.machines:
                await machine.kill()


Holds = Callable[[str, Leader], bool]
"""Of the name of a machine, and of what etcd has of its lead."""


def has_all_copies(_: str, leader: Leader) -> bool:
    return len(leader.present) == len(MACHINES) - 1


def others_than(name: str) -> list[str]:
    return [one for one in EVERYBODY if one != name]


def machines_but(name: str) -> list[str]:
    return [one for one in MACHINES if one != name]


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
    while await stage.keys.get(PROBE):
        pass
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
