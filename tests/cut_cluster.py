"""A cluster of processes whose network can be cut, with clients that append and read: for scenarios.

Machines are processes of ``walstore serve --cluster``; ``tests/partitions.py`` has the networks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests import cluster_demo
from tests.cluster_demo import LOG, Clients
from tests.etcd import EtcdCluster
from tests.histories import Append, Outcome
from tests.partitions import EVERYBODY, MACHINES, Network
from tests.waiting import until
from walstore import RemoteWal, WalError, connect
from walstore.topology.documents import LEADERS, PREFIX, Leader
from walstore.topology.etcd import EtcdKeyValues

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
    def environment(self) -> dict[str, str]:
        """What programs need that use the cluster."""
        return {**os.environ, **self.network.environment}

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

    async def wait_probe(self) -> None:
        """Return when the key is gone."""
        while await self.keys.get(PROBE):
            pass

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

    async def look(self, address: str) -> None:
        """Refresh and read at one machine, whoever leads, for ever; the history has what it saw."""
        options = self.network.options
        while True:
            with contextlib.suppress(WalError):
                async with connect(
                    address, log=LOG, connect_seconds=1, reconnect_seconds=1, **options
                ) as remote:
                    while not remote.is_closing:
                        await self.clients.read(remote)
                        await asyncio.sleep(0.02)
            await asyncio.sleep(0.05)

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
