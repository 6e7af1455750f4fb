"""Primaries that ship come and go while a store fails: nothing acknowledged is lost, nothing is twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.walstore.cluster.replication.cluster import Cluster, values
from tests.walstore.cluster.replication.shipped import both, end, sound, tier
from uploader.layouts.log_session import Layout
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from walstore import (
    OutcomeUnknownError,
    StorageUnavailableError,
    Wal,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


class History:
    """Primaries of one log come and go, some stay when another one comes; stores fail."""

    def __init__(self, cluster: Cluster, shape: Layout, seed: int) -> None:
        self.cluster = cluster
        self.shape = shape
        self.rng = random.Random(seed)
        self.inner = MemoryStore()
        self.stores: list[FaultyStore] = []
        self.wal: Wal | None = None
        self.number = 0
        self.left: list[Wal] = []
        self.count = 0
        self.replicated: dict[int, bytes] = {}
        self.in_cloud: dict[int, bytes] = {}

    async def take_over(self) -> None:
        """Open the log on a machine; its primary is closed, or learns it from the copies."""
        previous, old = self.wal, self.number
        self.number = self.rng.choice([one for one in range(3) if one != old])
        if previous is not None and self.rng.random() < 0.4:
            await end(previous)
            previous = None
        store = FaultyStore(self.inner)
        self.stores.append(store)
        if self.rng.random() < 0.3:
            self.plan_fault(store)
        shipping = tier(store, self.shape)
        try:
            self.wal = await self.cluster.primary(self.number, tier=shipping)
        except (StorageUnavailableError, OutcomeUnknownError):
            self.wal = None
        if previous is not None:
            self.left.append(previous)
        for wal in self.left:  # else its machine has no copy
            await end(wal)
        self.left.clear()
        await self.cluster.machines[old].stop()
        await self.cluster.machines[old].start()
        if self.wal is None:
            await self.cluster.machines[self.number].start()

    async def append(self) -> None:
        """Append, and note what was acknowledged."""
        assert self.wal is not None
        level = self.rng.choice(["replicated", "cloud"])
        content = [b"%d " % (self.count + at) for at in range(self.rng.choice([1, 1, 3, 12]))]
        content = [value + b"v" * self.rng.choice([10, 700]) for value in content]
        self.count += len(content)
        try:
            async with asyncio.timeout(60):
                span = await self.wal.append_many(content, durability=level)
        except StorageUnavailableError:
            return
        found = dict(zip(span, content, strict=True))
        self.replicated.update(found)
        if level == "cloud":
            self.in_cloud.update(found)

    def plan_fault(self, store: FaultyStore) -> None:
        """Let a request to come fail, or be answered late, or happen late."""
        kind = self.rng.choice(["put_if_absent", "put_if_match", "put_if_absent", "get"])
        fault = self.rng.choice(
            [
                faults.fail(faults.timeout("not_written")),
                faults.happen_then_fail(faults.timeout()),
                faults.postpone(store.late) if kind != "get" else faults.fail(faults.timeout()),
                faults.report("412", happens=True) if kind != "get" else faults.fail(faults.busy()),
            ]
        )
        prefix = self.rng.choice(["manifest/", "manifest/", "log/", "shard"])
        nth, times = self.rng.choice([1, 1, 2, 3, 5]), self.rng.choice([1, 1, 2])
        store.on(kind, fault, nth=nth, times=times, key_prefix=prefix)

    async def play(self, steps: int) -> None:
        await self.take_over()
        for _ in range(steps):
            act = self.rng.choice(["append", "append", "append", "fault", "late", "take over"])
            if self.wal is None or act == "take over":
                await self.take_over()
            elif act == "append":
                await self.append()
            elif act == "fault":
                self.plan_fault(self.stores[-1])
            else:
                await self.rng.choice(self.stores).deliver(newest_first=self.rng.random() < 0.5)
        if self.wal is not None:
            await end(self.wal)
            await self.cluster.machines[self.number].start()
        for store in self.rng.sample(self.stores, len(self.stores)):
            await store.deliver()
        last = await self.cluster.primary(2, tier=tier(self.inner, self.shape))
        await last.append(b"last", durability="cloud")
        found = dict(enumerate(await values(last), 1))
        await last.aclose()
        assert dict(enumerate(await sound(self.inner), 1)) == found
        assert self.replicated.items() <= found.items()
        assert self.in_cloud.items() <= found.items()


@both
@pytest.mark.parametrize("seed", range(3))
async def test_any_history(cluster: Cluster, shape: Layout, seed: int) -> None:
    await History(cluster, shape, seed + first_seed("a tier")).play(25)


@pytest.mark.slow
@pytest.mark.timeout(300)
@both
async def test_many_histories(tmp_path: Path, shape: Layout) -> None:
    first = first_seed("a tier") + 100
    for seed in range(first, first + some(50)):
        (tmp_path / str(seed)).mkdir()
        async with Cluster(tmp_path / str(seed)) as cluster:
            await History(cluster, shape, seed).play(40)
