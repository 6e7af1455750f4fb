"""Stores to test the port with: in memory, behind a gateway that only looks like etcd's, and real ones."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests import etcd
from tests.walstore.topology.fake_etcd import FakeEtcd, serving
from walstore.testing import ManualClock
from walstore.topology.etcd import EtcdKeyValues
from walstore.topology.key_values import Event, KeyValues
from walstore.topology.memory import MemoryClient, MemoryKeyValues

_numbers = itertools.count()


class World:
    """A store, its clients, and what a test can do to it."""

    def __init__(
        self,
        make: Callable[[], Awaitable[KeyValues]],
        *,
        compact: Callable[[int], Awaitable[None]],
        pass_time: Callable[[float], None],
        lose: Callable[[], Awaitable[None]],
    ) -> None:
        self.prefix = f"{next(_numbers)}/"
        """That no other test uses."""
        self.compact = compact
        self.pass_time = pass_time
        """Let time pass, if it does not by itself."""
        self.lose = lose
        """Take all connections away, for a while."""
        self._make = make
        self._stack = AsyncExitStack()

    async def client(self) -> KeyValues:
        client = await self._make()
        self._stack.push_async_callback(client.aclose)
        return client

    async def aclose(self) -> None:
        await self._stack.aclose()


@pytest.fixture(scope="session")
def cluster() -> Iterator[etcd.EtcdCluster]:
    """Three real nodes. A test that kills or stops some restarts them."""
    etcd.require_etcd()
    with etcd.running(3) as found:
        yield found


@pytest.fixture(params=["memory", "gateway", pytest.param("etcd", marks=pytest.mark.slow)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "etcd":
        found = _real(request.getfixturevalue("cluster"))
        yield found
        await found.aclose()
        return
    clock = ManualClock()
    store = MemoryKeyValues(clock)
    if request.param == "memory":
        found = _in_memory(store, clock)
        yield found
        await found.aclose()
        return
    nodes = FakeEtcd(store), FakeEtcd(store)
    async with serving(*nodes) as endpoints:
        found = _behind_gateway(store, clock, nodes, endpoints)
        yield found
        await found.aclose()


def _in_memory(store: MemoryKeyValues, clock: ManualClock) -> World:
    clients: list[MemoryClient] = []

    async def make() -> MemoryClient:
        clients.append(store.client())
        return clients[-1]

    async def compact(revision: int) -> None:
        store.compact(revision)

    async def lose() -> None:
        for value in (True, False):
            for client in clients:
                client.cut_off = value
            await asyncio.sleep(0)

    return World(make, compact=compact, pass_time=clock.advance, lose=lose)


def _behind_gateway(
    store: MemoryKeyValues, clock: ManualClock, nodes: tuple[FakeEtcd, ...], endpoints: list[str]
) -> World:
    async def compact(revision: int) -> None:
        store.compact(revision)

    async def lose() -> None:
        for node in nodes:
            node.reset_all()

    async def make() -> EtcdKeyValues:
        return await EtcdKeyValues.open(endpoints)

    return World(make, compact=compact, pass_time=clock.advance, lose=lose)


def _real(cluster: etcd.EtcdCluster) -> World:
    async def compact(revision: int) -> None:
        body = {"revision": str(revision), "physical": True}
        await post(cluster.endpoints[0], "/v3/kv/compaction", body)

    async def lose() -> None:
        for node in range(3):
            await asyncio.to_thread(cluster.kill, node)
            await asyncio.to_thread(cluster.restart, node)

    async def make() -> EtcdKeyValues:
        return await EtcdKeyValues.open(cluster.address)

    return World(make, compact=compact, pass_time=lambda _: None, lose=lose)


async def post(endpoint: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(endpoint + path, json=body, raise_for_status=True) as answer,
    ):
        return await answer.json()


async def changes(
    client: KeyValues, prefix: str, *, after: int, count: int, seconds: float = 30
) -> list[Event]:
    """Return the next changes of a watch."""
    found: list[Event] = []
    watch = client.watch(prefix, after=after)
    try:
        async with asyncio.timeout(seconds):
            while len(found) < count:
                events = await anext(watch)
                assert events
                found += events
    finally:
        await watch.aclose()
    return found


def sockets() -> int:
    """How many sockets this process has."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(Path("/proc/self/fd", descriptor)).startswith("socket:")
        except FileNotFoundError:
            continue
    return found
