"""Those who use a cluster while its machines are killed: over HTTP, from an outbox, and of a log in a store.

Three machines of ``walstore serve --cluster`` and a real etcd. ``kill -9`` of a machine, or of one of the
programs that use it, again and again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests import programs
from tests.cluster_demo import Cluster
from tests.effort import first_seed, some
from tests.etcd import require_etcd, running
from tests.programs import CLOUD, Program
from tests.scenarios.test_80_http_killed import (
    PRODUCER,
    STREAM,
    Follower,
    check,
    create,
    free_port,
)
from tests.waiting import until
from uploader import CloudTier
from walstore import StorageUnavailableError, Wal, connect, connect_readonly
from walstore.topology.documents import MEMBERS, PREFIX
from walstore.topology.etcd import EtcdKeyValues

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(900)]

KILLS = some(30, least=6)
SHOP = "/v1/stream/shop"
"""In a cluster a stream is a log."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "store_and_forward.py"
OUTBOX = f"""
import asyncio, runpy, sys
example = runpy.run_path({str(EXAMPLE)!r})
from walstore import Settings, Wal

async def run(directory, addresses):
    async with Wal.open(directory, settings=Settings(retention_bytes=0)) as outbox:
        async with asyncio.TaskGroup() as group:
            group.create_task(example["forward"](outbox, addresses.split(","), "shop"))
            while True:
                await outbox.append(b"reading %d" % outbox.tail)

asyncio.run(run(sys.argv[1], sys.argv[2]))
"""
"""Appends its own offsets to the outbox of the example, and forwards them."""


@asynccontextmanager
async def cluster_with(
    directory: Path, *logs: tuple[str, ...], ports: tuple[int, ...] = ()
) -> AsyncIterator[Cluster]:
    """Start a cluster, and make logs; all machines know each other by then."""
    require_etcd()
    with running(1) as etcd:
        cluster = Cluster(directory, etcd, 1)
        for machine, port in zip(cluster.machines, ports, strict=False):
            machine.options += ["--http", f"127.0.0.1:{port}"]
        try:
            for machine in cluster.machines:
                await machine.start()
            async with EtcdKeyValues.open(etcd.address) as keys:
                while len((await keys.list(f"{PREFIX}{MEMBERS}")).items) < len(cluster.machines):
                    pass
            await cluster.logs("apply", "first", "--replicas", "3")
            await cluster.leader("first")
            for log in logs:
                await cluster.logs("apply", *log)
            yield cluster
        finally:
            for machine in cluster.machines:
                await machine.kill()


async def kill_some(
    cluster: Cluster,
    chance: random.Random,
    restart: Callable[[], Awaitable[None]],
    more: Callable[[], Awaitable[None]],
) -> None:
    """Kill a machine or, by ``restart()``, a program, while users get on: ``more()``."""
    for kill in range(KILLS):
        await more()
        if kill % 3 == 2:
            await restart()
            continue
        machine = chance.choice(cluster.machines)
        await machine.kill()
        if chance.random() < 0.7:
            await more()
        await machine.start()


async def test_each_message_over_http_is_there_once(tmp_path: Path) -> None:
    """Producers and a live reader take the next machine when one does not answer."""
    chance = random.Random(first_seed("a cluster over HTTP"))
    ports, acks = tuple(free_port() for _ in range(3)), tmp_path / "acks"
    acks.touch()
    producers: dict[str, Program] = {}
    epochs = {"p0": 0, "p1": 0}

    def start(name: str) -> None:
        given = ",".join(map(str, ports))
        producers[name] = programs.start(
            PRODUCER.replace(STREAM, SHOP), given, name, epochs[name], acks
        )

    async def restart() -> None:
        name = chance.choice(sorted(epochs))
        producers[name].kill()
        await asyncio.to_thread(producers[name].wait)
        epochs[name] += 1
        start(name)

    async def more() -> None:
        goal = acks.stat().st_size + chance.randrange(1, 2000)
        await until(lambda: acks.stat().st_size >= goal, seconds=120)
        assert all(one.poll() is None for one in producers.values())

    async with cluster_with(tmp_path, ports=ports) as cluster:
        await asyncio.to_thread(create, ports[0], SHOP)
        follower = Follower(*ports, stream=SHOP)
        follower.start()
        try:
            for name in epochs:
                start(name)
            await kill_some(cluster, chance, restart, more)
            await more()
        finally:
            for one in producers.values():
                one.kill()
                one.wait()
            follower.is_ending = True
            await asyncio.to_thread(follower.join, 60)
    assert follower.error is None
    check(follower.messages, acks.read_text().splitlines(), KILLS)


async def test_what_an_outbox_forwards_is_there_once_and_in_order(tmp_path: Path) -> None:
    """The program of the example is killed, too: what it sends again is in the log once."""
    chance = random.Random(first_seed("a cluster behind an outbox"))
    async with cluster_with(tmp_path, ("shop", "--replicas", "3")) as cluster:
        arguments = (str(tmp_path / "outbox"), ",".join(cluster.addresses))
        running_now = [programs.start(OUTBOX, *arguments, imports=CLOUD)]

        async def restart() -> None:
            running_now[0].kill()
            await asyncio.to_thread(running_now[0].wait)
            running_now[0] = programs.start(OUTBOX, *arguments, imports=CLOUD)

        values: list[bytes] = []
        async with connect(
            cluster.addresses, log="shop", connect_seconds=60, reconnect_seconds=60
        ) as remote:
            reader = remote.follow()

            async def more() -> None:
                goal = len(values) + chance.randrange(1, 300)
                async with asyncio.timeout(120):
                    while len(values) < goal:
                        assert running_now[0].poll() is None
                        values.append((await anext(reader)).value)

            try:
                await kill_some(cluster, chance, restart, more)
                await more()
            finally:
                running_now[0].kill()
                running_now[0].wait()
    assert values == [b"reading %d" % number for number in range(1, len(values) + 1)]


async def test_a_log_in_a_store_is_read_once_at_machines_that_are_killed(tmp_path: Path) -> None:
    """``--source``: another program ships its log; each machine reads it, and a reader goes on elsewhere."""
    chance = random.Random(first_seed("a cluster of a log in a store"))
    url = (tmp_path / "store").as_uri()
    async with (
        Wal.open(tmp_path / "theirs", tier=CloudTier(url)) as theirs,
        asyncio.TaskGroup() as group,
    ):
        await theirs.append(b"1", durability="cloud")
        appending = group.create_task(append_for_ever(theirs))
        async with cluster_with(tmp_path, ("theirs", "--source", url)) as cluster:
            values: list[bytes] = []

            async def more() -> None:
                goal = len(values) + chance.randrange(1, 300)
                async with asyncio.timeout(120):
                    while len(values) < goal:
                        await read_on(cluster, values, goal)

            async def nothing() -> None:
                """Nobody else is there to be killed."""

            await kill_some(cluster, chance, nothing, more)
        appending.cancel()
    assert values == [b"%d" % number for number in range(1, len(values) + 1)]


async def append_for_ever(log: Wal) -> None:
    while True:
        await log.append(b"%d" % log.tail, durability="cloud")


async def read_on(cluster: Cluster, values: list[bytes], goal: int) -> None:
    """Read until there are so many values, or the connection is lost for good."""
    try:
        async with connect_readonly(cluster.addresses, log="theirs", connect_seconds=20) as log:
            async for record in log.follow(len(values) + 1):
                values.append(record.value)
                if len(values) >= goal:
                    return
    except StorageUnavailableError:
        return
