"""Members of a group of a cluster's log, while its leaders are killed, stopped, and moved from."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster_demo import LOG, Cluster, Machine, started
from tests.effort import some
from tests.etcd import require_etcd, running
from tests.waiting import until
from walstore import RemoteWal, WalError, connect

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(900)]

ROUNDS = some(5)
MEMBERS = 3
LEASE_SECONDS = 4.0
WAITS: dict[str, float] = {"connect_seconds": 60, "reconnect_seconds": 60}
OPTIONS: dict[str, Any] = {"ack_wait_seconds": LEASE_SECONDS, "max_deliver": 1000}


class Delivery(NamedTuple):
    """A job was leased between these two moments; a busy machine lets them be far apart."""

    asked: float
    noted: float
    member: int
    deliveries: int
    """How often it had been delivered, this time included."""


class Workers:
    """A producer and the members of a group, each with a connection of its own."""

    def __init__(self) -> None:
        self.is_producing = True
        self.appended = 0
        self.taken: dict[int, list[Delivery]] = defaultdict(list)
        """The deliveries of each job."""
        self.acknowledged: dict[int, float] = {}
        """When an acknowledgement of a job was answered."""

    async def produce(self, remote: RemoteWal) -> None:
        """Append jobs."""
        producer = remote.producer("jobs")
        while self.is_producing:
            await patiently(lambda: producer.append(b"job", sequence=self.appended + 1))
            self.appended += 1

    async def work(self, remote: RemoteWal, number: int) -> None:
        """Take jobs and acknowledge them, the first of each batch last: so all is above the floor."""
        async with remote.group("g", **OPTIONS) as group:
            while True:
                asked = time.monotonic()
                jobs = await patiently(lambda: group.fetch(20, max_wait_seconds=0.2))
                noted = time.monotonic()
                for job in jobs:
                    taken = Delivery(asked, noted, number, job.deliveries)
                    self.taken[job.offset].append(taken)
                for job in reversed(jobs):
                    await patiently(job.ack)
                    self.acknowledged.setdefault(job.offset, time.monotonic())


async def patiently(call: Callable[[], Any]) -> Any:
    """Return what a call returns, made again while the cluster has other things to do."""
    async with asyncio.timeout(180):
        while True:
            try:
                return await call()
            except WalError as error:
                if not error.retriable and error.outcome != "unknown":
                    raise


async def run(directory: Path) -> Workers:
    workers = Workers()
    with running(3) as etcd:
        cluster = Cluster(directory, etcd, 1)
        async with started(cluster) as remote:
            clients = [await connect(cluster.addresses, log=LOG, **WAITS) for _ in range(MEMBERS)]
            async with asyncio.TaskGroup() as group:
                producing = group.create_task(workers.produce(remote))
                members = [
                    group.create_task(workers.work(client, number))
                    for number, client in enumerate(clients)
                ]
                for _ in range(ROUNDS):
                    await disturb(cluster, workers)
                workers.is_producing = False
                await producing
                await until(lambda: len(workers.acknowledged) >= workers.appended, seconds=120)
                for member in members:
                    member.cancel()
            for client in clients:
                await client.aclose()
    return workers


async def disturb(cluster: Cluster, workers: Workers) -> None:
    """Change the leader in three ways, each in the midst of work."""
    for kind in ("kill", "stop", "move"):
        leader = await cluster.leader()
        await progress(workers)
        if kind == "kill":
            await leader.kill()
            await progress(workers)
            await leader.start()
        elif kind == "stop":
            leader.send(signal.SIGSTOP)
            await progress(workers)
            leader.send(signal.SIGCONT)
        else:
            target = next(machine for machine in cluster.machines if machine is not leader)
            await moved(cluster, target)
            await progress(workers)


async def moved(cluster: Cluster, target: Machine) -> None:
    await cluster.logs("move", LOG, target.address)
    async with asyncio.timeout(120):
        while await cluster.leader() is not target:
            pass


async def progress(workers: Workers) -> None:
    goal = len(workers.acknowledged) + 60
    await until(lambda: len(workers.acknowledged) >= goal, seconds=120)


def test_what_is_acknowledged_stays_so(tmp_path: Path) -> None:
    require_etcd()
    workers = asyncio.run(run(tmp_path))
    assert set(workers.acknowledged) == set(range(1, workers.appended + 1))
    again, early, counted = [], [], []
    for offset, taken in workers.taken.items():
        done = workers.acknowledged[offset]
        again += [(offset, one) for one in taken if one.asked > done]
        for one, other in combinations(taken, 2):
            apart = max(other.noted - one.asked, one.noted - other.asked)
            if one.member != other.member and apart < LEASE_SECONDS:
                early.append((offset, one, other))
            is_later = one.noted <= other.asked
            if one.deliveries == other.deliveries or (
                is_later and other.deliveries < one.deliveries
            ):
                counted.append((offset, one, other))
    print(f"{workers.appended} jobs, {sum(map(len, workers.taken.values()))} deliveries")
    assert (again, early, counted) == ([], [], [])
