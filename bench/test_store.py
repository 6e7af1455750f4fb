"""Many logs in one process: the cost of an idle log, of opening, and of a flood next to other logs.

`pytest bench/test_store.py`. The extra columns are memory per log, wake-ups while idle, and the latency of
single appends during a flood and without one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from bench.conftest import Run
from bench.test_append import percentiles
from walstore import Settings, StoreSettings, Wal, WalStore

LOGS = 10_000
IDLE_SECONDS = 2.0
NEIGHBOURS = 100


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def context_switches() -> int:
    """Return the number of voluntary context switches of this process."""
    total = 0
    for status in Path("/proc/self/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


class Turns:
    """Counts how often the event loop polls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.count = 0
        selector = loop._selector  # type: ignore[attr-defined]
        select = selector.select

        def counted(timeout: float | None = None) -> object:
            self.count += 1
            return select(timeout)

        selector.select = counted


async def open_all(store: WalStore, names: Iterable[str], *, append: bool) -> None:
    """Open logs, sixteen at a time."""
    waiting = iter(names)

    async def open_some() -> None:
        for name in waiting:
            wal = await store.wal(name)
            if append:
                await wal.append(bytes(100))

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(open_some())


def idle_logs(path: Path, *, append: bool) -> dict[str, float]:
    """Open the logs, leave them idle, close them; return the cost."""

    async def measure() -> dict[str, float]:
        before = rss_bytes()
        start = time.perf_counter()
        async with WalStore.open(path) as store:
            await open_all(store, [f"log/{n}" for n in range(LOGS)], append=append)
            opened = time.perf_counter() - start
            found: dict[str, float] = {
                "open_ms_per_log": round(1e3 * opened / LOGS, 3),
                "kib_per_log": round((rss_bytes() - before) / LOGS / 1024, 1),
                "descriptors": len(os.listdir("/proc/self/fd")),
            }
            await asyncio.sleep(0.1)
            turns, switches = Turns(asyncio.get_running_loop()), context_switches()
            await asyncio.sleep(IDLE_SECONDS)
            # Of these, two turns and one switch are the measuring itself.
            found["loop_turns"] = turns.count
            found["context_switches"] = context_switches() - switches
            start = time.perf_counter()
        found["close_ms_per_log"] = round(1e3 * (time.perf_counter() - start) / LOGS, 3)
        return found

    return asyncio.run(measure())


@pytest.mark.parametrize("kind", ["new", "existing"])
def test_idle_logs(benchmark, tmp_path_factory, kind: str) -> None:
    """Ten thousand logs: created with one record each, then opened again and left idle."""
    benchmark.group = f"{LOGS} logs in one process"
    path = tmp_path_factory.getbasetemp() / "ten-thousand"
    # A process of its own, so that its memory is that of these logs.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        if kind == "existing" and not path.exists():
            process.submit(idle_logs, path, append=True).result()
        call = partial(idle_logs, path, append=kind == "new")
        benchmark.extra_info |= benchmark.pedantic(lambda: process.submit(call).result(), rounds=1)


@asynccontextmanager
async def flood(store: WalStore) -> AsyncIterator[Wal]:
    """One log takes all that sixty-four producers append."""
    wal = await store.wal("flood")
    value = bytes(64 << 10)
    stopping = False

    async def produce() -> None:
        while not stopping:
            await wal.append(value)

    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(produce())
        yield wal
        stopping = True


@pytest.mark.parametrize("beside", ["nothing", "flood"])
def test_neighbours(benchmark, run: Run, log_path: Path, beside: str) -> None:
    """A hundred logs append one record each at the same time, repeatedly."""
    benchmark.group = f"{NEIGHBOURS} logs, one append each"
    settings = Settings(retention_bytes=0)
    samples: list[float] = []

    async def measure() -> dict[str, float]:
        samples.clear()
        async with WalStore.open(
            log_path, settings=settings, store_settings=StoreSettings(channel_bytes=8 << 20)
        ) as store:
            logs = [await store.wal(f"n/{n}") for n in range(NEIGHBOURS)]
            if beside == "nothing":
                return await rounds(logs)
            async with flood(store) as wal:
                before, start = wal.tail, time.perf_counter()
                found = await rounds(logs)
                mib = (wal.tail - before) / 16
                found["flood_mib_per_second"] = round(mib / (time.perf_counter() - start), 1)
            return found

    async def rounds(logs: list[Wal]) -> dict[str, float]:
        async def append(wal: Wal) -> None:
            start = time.perf_counter()
            await wal.append(bytes(100))
            samples.append(time.perf_counter() - start)

        for _ in range(20):
            await asyncio.gather(*map(append, logs))
        return percentiles(samples)

    benchmark.extra_info |= benchmark.pedantic(lambda: run(measure()), rounds=1)


@pytest.mark.parametrize("kind", ["store", "alone"])
def test_single_append(benchmark, run: Run, log_path: Path, kind: str) -> None:
    """One producer of one log, in a store and by itself."""
    benchmark.group = "one producer x 100 B"
    samples: list[float] = []

    async def measure() -> None:
        samples.clear()
        opening = WalStore.open(log_path) if kind == "store" else Wal.open(log_path)
        async with opening as opened:
            wal = await opened.wal("a") if isinstance(opened, WalStore) else opened
            for _ in range(2000):
                start = time.perf_counter()
                await wal.append(bytes(100))
                samples.append(time.perf_counter() - start)

    benchmark.pedantic(lambda: run(measure()), rounds=3, warmup_rounds=1)
    benchmark.extra_info |= percentiles(samples)
