"""Long reads while a collector removes what they have passed, and what they have not."""

from __future__ import annotations

import asyncio

import pytest

from tests.cloud import FAST, URL, cloud_log, copy_objects, put_fragment, values
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.format.rollup import RollUpSettings
from uploader.layouts.swapped_root import SwappedRoot
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Worker
from walstore.errors import OffsetTrimmedError

FRAGMENTS = 60
RECORDS = 10
CONTENT = values(FRAGMENTS * RECORDS, 20)


async def make() -> MemoryStore:
    store = MemoryStore()
    worker = Worker("test")
    settings = RollUpSettings(fragments_per_snapshot=3, snapshots_per_snapshot=2)
    root = SwappedRoot(store, FAST, worker, roll_up=settings)
    await root.load_or_create("w")
    for seq_no in range(1, FRAGMENTS + 1):
        start = 1 + (seq_no - 1) * RECORDS
        content = CONTENT[start - 1 : start - 1 + RECORDS]
        await root.publish([await put_fragment(store, seq_no, start, content)], "w")
    assert max(pointer.depth for pointer in root.manifest.snapshots) >= 3
    await root.aclose()
    worker.close()
    return store


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    """That store, made once: tests have copies."""
    return asyncio.run(make())


@pytest.fixture
async def store(made: MemoryStore) -> FaultyStore:
    """Sixty fragments of ten records, most of them below a deep tree of snapshots."""
    found = FaultyStore(MemoryStore())
    await copy_objects(made, found.inner)
    return found


async def collect(store: FaultyStore, position: int) -> None:
    """Remove what is below ``position``, at once: nobody gives readers time."""
    worker = Worker("test")
    cursors = CloudCursors.of_store(store.inner, retry=FAST, clock=SystemClock(), worker=worker)
    await cursors.commit("all", position)
    settings = CollectorSettings(interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1.0)
    collecting = GarbageCollector.open(
        URL, store=FaultyStore(store.inner), settings=settings, retry=FAST
    )
    async with collecting as collector:
        await collector.collect()
    worker.close()


@pytest.mark.parametrize("prefetch", [0, 1 << 20])
async def test_a_reader_behind_the_cut_is_told(store, prefetch: int) -> None:
    """It delivers what it has, and then never starts later in silence."""
    async with cloud_log(store) as log:
        reader = log.reader(prefetch_bytes=prefetch)
        found = [(await anext(reader)).offset for _ in range(15)]
        await collect(store, 401)
        with pytest.raises(OffsetTrimmedError) as told:
            async for record in reader:
                found.append(record.offset)
        assert found == list(range(1, len(found) + 1))
        assert told.value.requested == reader.position == found[-1] + 1
        assert told.value.head == 401
        reader.seek(told.value.head)
        assert [record.value async for record in reader] == CONTENT[400:]


@pytest.mark.parametrize("prefetch", [0, 1 << 20])
@pytest.mark.parametrize("stop_at", [401, 405, 450, 597])
async def test_a_reader_beyond_the_cut_notices_nothing(store, prefetch: int, stop_at: int) -> None:
    """Although the snapshots that its manifest names were replaced by others."""
    async with cloud_log(store) as log:
        first = log.reader(stop_at, stop=stop_at + 1, prefetch_bytes=0)
        assert [record.offset async for record in first] == [stop_at]
        await collect(store, 401)
        reader = log.reader(stop_at, prefetch_bytes=prefetch)
        assert [record.value async for record in reader] == CONTENT[stop_at - 1 :]
        scanned = [fragment async for fragment in log.scan(stop_at)]
        assert scanned[0].start <= stop_at < scanned[0].limit
        assert scanned[-1].limit == log.tail


async def test_a_scan_over_the_cut_is_told(store) -> None:
    async with cloud_log(store) as log:
        scanning = log.scan(1)
        assert (await anext(scanning)).start == 1
        await collect(store, 401)
        with pytest.raises(OffsetTrimmedError):
            async for fragment in scanning:
                await log.read_fragment(fragment)


async def test_many_collections_under_a_reader(store) -> None:
    """Each time just behind it: it gets everything, once."""
    found: list[int] = []
    async with cloud_log(store) as log:
        async for record in log.reader():
            found.append(record.offset)
            if record.offset % 97 == 0:
                await collect(store, record.offset)
        assert found == list(range(1, FRAGMENTS * RECORDS + 1))
