"""Machines of a replicated log in one process: each holds a copy, and one of them may be the primary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tests.clocks import SkippingClock
from tests.waiting import until
from walstore import Replication, Settings, Wal
from walstore.cluster.replication.node import ReplicaNode
from walstore.positions.cursors.directory import DIRECTORY_NAME
from walstore.positions.groups.group import Group
from walstore.serve import Server

SMALL = Settings(segment_bytes=65536)
PATIENCE_SECONDS = 60.0
"""No machine is so slow that it runs out by itself."""


class Machine:
    """One machine: serves its copy, unless it is down or the primary."""

    def __init__(self, path: Path, clock: SkippingClock | None = None) -> None:
        self.path = path
        self.clock = clock
        self.socket = path / "s.sock"
        path.mkdir()
        self.node: ReplicaNode | None = None
        self.server: Server | None = None
        self.fs: Any = None

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    async def start(self) -> None:
        self.node = await ReplicaNode.open(self.path, fs=self.fs, clock=self.clock)
        self.server = await Server.open(None, replicas=self.node, unix=self.socket)

    async def stop(self) -> None:
        server, self.server = self.server, None
        node, self.node = self.node, None
        if server is not None:
            await server.aclose()
        if node is not None:
            await node.aclose()


class Cluster:
    """Some machines; use as a context manager."""

    def __init__(self, path: Path, size: int = 3) -> None:
        self.clock = SkippingClock()
        self.machines = [Machine(path / f"m{number}", self.clock) for number in range(size)]

    async def __aenter__(self) -> Self:
        for machine in self.machines:
            await machine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for machine in self.machines:
            await machine.stop()

    async def primary(self, number: int, **options: Any) -> Wal:
        """Open the log on a machine, which serves its copy no longer.

        If it is new, this waits until all machines that are up have something of it: one that never had
        any decides only together with all others.
        """
        machine = self.machines[number]
        is_new = not any(self.files(number) for number in range(len(self.machines)))
        await machine.stop()
        options = {"patience_seconds": PATIENCE_SECONDS, **options}
        settings = options.pop("settings", SMALL)
        tier = options.pop("tier", None)
        clock = options.pop("clock", self.clock)
        nodes = [other.address for other in self.machines if other is not machine]
        replication = Replication(nodes=nodes, **options)
        wal = await Wal.open(
            machine.path / "orders",
            settings=settings,
            replication=replication,
            tier=tier,
            fs=machine.fs,
            clock=clock,
        )
        if is_new:
            up = [at for at, other in enumerate(self.machines) if other.server is not None]
            await until(lambda: all(self.files(at) for at in up))
        return wal

    def losing_patience(self, wal: Wal) -> AbstractAsyncContextManager[None]:
        """As the function of this name."""
        return losing_patience(self.clock, wal)

    def files(self, number: int) -> dict[str, bytes]:
        """Return the segments of a machine's copy, but for those that are deleted meanwhile."""
        found: dict[str, bytes] = {}
        for path in (self.machines[number].path / "orders").glob("*.wal"):
            with suppress(FileNotFoundError):
                found[path.name] = path.read_bytes()
        return found


@asynccontextmanager
async def losing_patience(clock: SkippingClock, wal: Wal) -> AsyncIterator[None]:
    """Let the patience of a log that has too few copies run out while the block runs."""

    def is_over() -> bool:
        clock.skip(PATIENCE_SECONDS)
        return wal.statistics().replication_trouble is not None

    skipping = asyncio.create_task(until(is_over))
    try:
        yield
        await skipping
    finally:
        skipping.cancel()


async def values(wal: Wal) -> list[bytes]:
    """Return the values of all records that readers see."""
    async with wal.reader(follow=False) as reader:
        return [record.value async for record in reader]


async def positions(wal: Any) -> dict[str, int]:
    return {one.name: one.position for one in await wal.cursors()}


async def change_primary(cluster: Cluster, old: int, new: int) -> Wal:
    """Bring back the machine of a primary that is closed, as a node, and open the log on another."""
    await cluster.machines[old].start()
    return await cluster.primary(new)


def cursor_files(cluster: Cluster, number: int) -> list[str]:
    directory = cluster.machines[number].path / "orders" / DIRECTORY_NAME
    if not directory.exists():
        return []
    return sorted(path.name for path in directory.iterdir() if path.name[0] != ".")


async def take(group: Group, count: int) -> list[Any]:
    """Take so many jobs."""
    jobs: list[Any] = []
    async with asyncio.timeout(60):
        while len(jobs) < count:
            jobs += await group.fetch(max_jobs=count - len(jobs))
    return jobs


@asynccontextmanager
async def leading(cluster: Cluster, number: int) -> AsyncIterator[Wal]:
    wal = await cluster.primary(number)
    try:
        async with Server.open(wal, unix=cluster.machines[number].socket):
            yield wal
    finally:
        await wal.aclose()
