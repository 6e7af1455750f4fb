"""A collector of a log that is written all the time, in a store that takes 100 ms for each request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tests.uploader.chain.chains import InlineWorker
from tests.uploader.chain.virtual import VirtualClock, VirtualLoop
from uploader import CloudLog, CloudWriter, CollectorSettings, GarbageCollector, WriterSettings
from uploader.care.gc.collection_plan import Collected
from uploader.layouts.log_session import LogSession
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import LatencyStore
from uploader.testing.latency import fixed
from uploader.write.stall_guard import StallGuard, WriteContext

WRITTEN_SECONDS = 5.0
SETTINGS = CollectorSettings(interval_seconds=1.0, max_drop_fraction=1)
MOST_SECONDS = 15


@dataclass
class Race:
    """What became of one collection beside one writer."""

    collected: Collected
    cursor: int
    seconds: float
    offsets: list[int]


async def race(
    store: MemoryStore, layout: str, part: float, *, rate: float = 50.0, is_parallel: bool = False
) -> Race:
    """Append ``rate`` times a second, and collect meanwhile below a cursor at that part of the log."""
    clock, worker = VirtualClock(), InlineWorker()
    retry = RetryPolicy(clock=clock)
    slow = LatencyStore(store, fixed(0.1), clock=clock)

    async def session() -> LogSession:
        opened = LogSession("memory://x", store=slow, retry=retry, clock=clock, worker=worker)
        await opened.find_root(layout=layout)
        return opened

    settings = WriterSettings(parallel_puts=is_parallel)
    stall_guard = StallGuard(url=slow.url, retry=retry, clock=clock, silent_seconds=60)
    opened = await session()
    writer = CloudWriter(opened, WriteContext.of(opened, opened.root, stall_guard), settings)
    await writer._start()
    appends: list[asyncio.Task[int]] = []

    async def write() -> None:
        while True:
            appends.append(asyncio.create_task(writer.append(b"%d" % len(appends))))
            await clock.sleep(1 / rate)

    writing = asyncio.create_task(write())
    await clock.sleep(WRITTEN_SECONDS)
    cursor = int(writer.tail * part)
    await writer.cursors.commit("reader", cursor)
    collector = GarbageCollector(await session(), SETTINGS)
    began = clock.monotonic()
    collected = await collector.collect()
    seconds = clock.monotonic() - began
    writing.cancel()
    offsets = list(await asyncio.gather(*appends))
    await writer.aclose()
    await collector.aclose()
    return Race(collected, cursor, seconds, offsets)


async def values(store: MemoryStore) -> dict[int, bytes]:
    async with CloudLog.open("memory://x", store=store) as log:
        await log.verify()
        return {record.offset: record.value async for record in log.reader()}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["swap", "chain"])
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_it_gets_in_beside_a_writer_that_never_pauses(layout: str, part: float) -> None:
    """Within seconds, and every append is where its writer was told."""
    store = MemoryStore()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(race(store, layout, part))
    assert found.seconds < MOST_SECONDS
    # The newest fragments may be kept that are being rolled up meanwhile.
    assert found.cursor - 150 < found.collected.head <= found.cursor
    assert found.collected.head > 1
    assert found.collected.deleted
    kept = asyncio.run(values(store))
    assert min(kept) == found.collected.head
    assert {offset: b"%d" % at for at, offset in enumerate(found.offsets) if offset in kept} == kept
    assert len(set(found.offsets)) == len(found.offsets)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [5, 20])
@pytest.mark.parametrize("layout", ["swap", "chain"])
def test_it_gets_in_at_other_paces(layout: str, rate: int) -> None:
    """Between publishings, or by the writer that leaves no time between."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(race(MemoryStore(), layout, 1.0, rate=rate))
    assert found.seconds < MOST_SECONDS
    assert found.cursor - 150 < found.collected.head <= found.cursor
    assert found.collected.deleted


@pytest.mark.slow
def test_it_gets_in_beside_a_writer_that_puts_several_at_once() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(race(MemoryStore(), "swap", 1.0, is_parallel=True))
    assert found.seconds < MOST_SECONDS
    assert found.collected.deleted
