"""When the uploader of a local log begins a fragment before it cuts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloud import MemorySource, cloud_values
from tests.local import turns
from tests.waiting import until
from uploader import UploadSettings
from uploader.format import layout
from uploader.layouts.log_session import LogSession
from uploader.layouts.swapped_root import SwappedRoot
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore, faults
from uploader.write import publish_pipeline
from uploader.write.uploader import Uploader
from walstore.core.runtime.threads import Worker
from walstore.testing import ManualClock

SETTINGS = UploadSettings(
    parallel_puts=True, fragment_bytes=4096, interval_seconds=10, drain_seconds=100
)
BEFORE_CUT = 0.01


@pytest.fixture(autouse=True)
def _however_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin every fragment early, however little there is to do."""
    monkeypatch.setattr(publish_pipeline, "_HEAD_START_WORK", 0)


class Bench:
    """An uploader whose first fragment hangs in the store while the second one gathers."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.store = FaultyStore(MemoryStore())
        self.source = MemorySource()
        self.worker = Worker("test")
        self.release = asyncio.Event()
        retry = RetryPolicy(clock=clock, attempts=2, first_wait_seconds=0, longest_wait_seconds=0)
        self._root = SwappedRoot(self.store, retry, self.worker)
        session = LogSession(
            "memory://x", store=self.store, retry=retry, clock=clock, worker=self.worker
        )
        self.uploader = Uploader(session, self._root, SETTINGS)

    async def hang(self) -> None:
        """Let the first fragment be under way, and the next one wait."""
        reached = asyncio.Event()
        self.store.on(
            "put_if_absent",
            faults.hang(self.release, reached),
            key_prefix=layout.fragment_path(1),
        )
        self.source.hurry()
        self.source.append([b"first"])
        await reached.wait()

    async def come_near(self) -> None:
        """Let it be the time for a head start, and that be over."""
        await self.clock.wait_for_sleepers(1)
        self.clock.advance(SETTINGS.interval_seconds - BEFORE_CUT)
        await turns()
        await self.worker.run(int)

    async def cut(self) -> None:
        """Let it be the time for the cut, and the fragment be put."""
        await self.clock.wait_for_sleepers(1)
        self.clock.advance(BEFORE_CUT)
        await until(lambda: self.uploader.uploaded_fragments == 1)

    async def row_groups(self) -> list[list[int]]:
        """Return how many records each part of each fragment has, once all are published."""
        self.release.set()
        await until(lambda: self.source.uploaded_limit == self.source.durable_limit)
        found = []
        for entry in self._root.manifest.fragments:
            data = (await self.store.inner.get(entry.path)).data
            footer = pq.read_metadata(pa.BufferReader(data))
            found.append([footer.row_group(at).num_rows for at in range(footer.num_row_groups)])
        return found


@pytest.fixture
async def bench(clock: ManualClock) -> AsyncIterator[Bench]:
    found = Bench(clock)
    running = asyncio.create_task(found.uploader.run(found.source))
    await found.hang()
    yield found
    running.cancel()
    await asyncio.wait((running,))
    found.worker.close()


async def test_what_comes_before_and_after_is_one_fragment(bench: Bench) -> None:
    bench.source.append([b"1", b"2"])
    await turns(20)
    bench.source.append([b"3"])  # also before
    await bench.come_near()
    bench.source.append([b"4"])
    bench.source.append([b"5"])
    await bench.cut()
    assert await bench.row_groups() == [[1], [3, 2]]
    assert await cloud_values(bench.store.inner) == [b"first", b"1", b"2", b"3", b"4", b"5"]


async def test_nothing_may_come_after(bench: Bench) -> None:
    bench.source.append([b"1"])
    await bench.come_near()
    await bench.cut()
    assert await bench.row_groups() == [[1], [1]]
    assert await cloud_values(bench.store.inner) == [b"first", b"1"]


async def test_little_is_not_worth_it(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr(publish_pipeline, "_HEAD_START_WORK", 1 << 20)
    bench.source.append([b"1"])
    await bench.come_near()
    bench.source.append([b"2"])
    await bench.cut()
    assert await bench.row_groups() == [[1], [2]]


async def test_closing_does_not_wait_for_the_cut(bench: Bench) -> None:
    bench.source.append([b"1"])
    await bench.come_near()
    bench.source.append([b"2"])
    bench.source.drain()
    bench.release.set()
    await until(lambda: bench.source.uploaded_limit == 4)
    assert await bench.row_groups() == [[1], [1, 1]]
    assert await cloud_values(bench.store.inner) == [b"first", b"1", b"2"]
