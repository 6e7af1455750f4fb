"""A collection in a memory store for tests: several programs of which each has a faulty store of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

from uploader import Collection, Controller
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
HOUR = 3600.0
SHORT_SECONDS = 10.0


class Clock:
    """Leaps over short waits. Longer ones, such as between renewals, end when a test moves the time on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_us(self) -> int:
        return 1_750_000_000_000_000 + round(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        if seconds < SHORT_SECONDS:
            self.seconds += seconds
            await asyncio.sleep(0)
            return
        waiting = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.seconds + seconds, waiting))
        await waiting

    async def advance(self, seconds: float) -> None:
        """Move the time on, and let those run that waited for it."""
        await turns()
        self.seconds += seconds
        for deadline, waiting in self._sleepers:
            if deadline <= self.seconds and not waiting.done():
                waiting.set_result(None)
        self._sleepers = [one for one in self._sleepers if not one[1].done()]
        await turns()


async def turns() -> None:
    """Let the event loop turn often enough for some requests."""
    for _ in range(50):
        await asyncio.sleep(0)


class Site:
    """The objects of one collection, and the programs that use it."""

    def __init__(self, kind: str = "diff") -> None:
        self.kind = kind
        self.clock = Clock()
        self.objects = MemoryStore()

    def program(self) -> Program:
        return Program(self)

    async def keys(self, folder: str = "") -> list[str]:
        return [listed.key async for listed in self.objects.list(folder)]


class Program:
    """One process."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.store = FaultyStore(site.objects)

    def options(self) -> dict[str, Any]:
        retry = RetryPolicy(
            clock=self.site.clock, attempts=2, first_wait_seconds=0.001, jitter=lambda: 0.0
        )
        return {"store": self.store, "clock": self.site.clock, "retry": retry}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Collection]:
        async with Collection.open(
            "memory://here",
            create=True,
            schema=SCHEMA,
            key=("k",),
            kind=self.site.kind,  # type: ignore[arg-type]
            **self.options(),
        ) as collection:
            yield collection

    @asynccontextmanager
    async def controller(self, **options: Any) -> AsyncIterator[Controller]:
        async with Controller.open("memory://here", **self.options(), **options) as controller:
            yield controller


def rows(*values: tuple[int, str], at: int | None = None, **more: Iterable[Any]) -> pa.Table:
    """Return updates of these keys and values, all at one time."""
    columns: dict[str, Any] = {
        "k": pa.array([key for key, _ in values], pa.int64()),
        "v": pa.array([value for _, value in values], pa.string()),
    }
    if at is not None:
        columns["_t"] = pa.array([at] * len(values), pa.uint64())
    return pa.table(columns | more)


def content(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return a snapshot's rows."""
    return [tuple(row.values()) for row in table.to_pylist()]
