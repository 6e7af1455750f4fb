"""What the cloud tier costs: requests, memory, and what an idle log does."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from bench import cloud_requests
from tests.cloud import FAST, URL, RecordingStore, cloud_log, tier, values
from tests.local import turns
from tests.named import ROOT
from tests.waiting import until
from uploader import CloudWriter, UploadSettings
from uploader.stores.local import LocalStore
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ORDER_PROOF
from uploader.testing import faults
from walstore import Settings, Wal
from walstore.testing import ManualClock

MIB = 1 << 20


@pytest.fixture
def store() -> RecordingStore:
    return RecordingStore(MemoryStore())


def requests(store: RecordingStore) -> Counter[str]:
    return Counter({kind: count.requests for kind, count in store.counts.items()})


async def test_an_idle_log_makes_no_request(log_directory: Path, store, clock: ManualClock) -> None:
    """Neither before its first record nor after its last; a day passes."""
    cloud = tier(store, UploadSettings(), clock=clock)
    async with Wal.open(log_directory, tier=cloud, clock=clock) as wal:
        # That of creating it ends with the third look for a tombstone, after the manifest.
        await until(lambda: store.count("head").requests == 4)
        for _ in range(2):
            await until(lambda: wal.uploaded_limit == wal.tail)
            await turns(100)
            before = requests(store)
            for _ in range(100):
                clock.advance(864)
                await turns()
            assert requests(store) == before
            await wal.append(b"v", durability="cloud")


async def test_what_opening_and_closing_cost(log_directory: Path, store) -> None:
    """A look at the manifest and one behind its end, and a swap that claims the prefix; while the log is
    empty, two looks for a tombstone. At first, the probe, the manifest, two looks for a log of the other
    layout, two more for a tombstone, before and after it, and one for a collection."""
    async with Wal.open(log_directory, tier=tier(store)) as wal:
        await until(lambda: store.count("get").requests == 4)
        await turns(100)
    probe = Counter({"put_if_absent": 2, "put_if_match": 3, "get": 1, "delete": 1})
    first = probe + Counter({"get": 3, "list": 3, "put_if_absent": 1, "head": 4})
    assert requests(store) == first
    again = RecordingStore(store.inner)
    async with Wal.open(log_directory, tier=tier(again)) as wal:
        await turns(100)
    assert requests(again) == Counter({"get": 1, "list": 1, "head": 2, "put_if_match": 1})
    async with Wal.open(log_directory, tier=tier(store)) as wal:
        await wal.append(b"1", durability="cloud")
    again = RecordingStore(store.inner)
    async with Wal.open(log_directory, tier=tier(again)) as wal:
        await turns(100)
    assert requests(again) == Counter({"get": 1, "list": 1, "put_if_match": 1})
    assert wal.statistics().tier_failure is None


@pytest.mark.parametrize(
    ("kind", "most_to_create", "most_to_open"), [("swap", 17, 3), ("chain", 14, 6)]
)
async def test_what_opening_a_writer_costs(
    store, kind, most_to_create: int, most_to_open: int
) -> None:
    """The place is probed once. Of a chain, one listing tells that only one shard is used."""
    async with CloudWriter.open(URL, store=store, layout=kind) as log:
        assert store.requests <= most_to_create
        await log.append(b"1")
    for _ in range(2):
        again = RecordingStore(store.inner)
        async with CloudWriter.open(URL, store=again, retry=FAST) as log:
            assert again.requests <= most_to_open
            assert not {"put_if_absent", "put_if_match", "delete"} & set(again.counts)
            opened = again.requests
        assert again.requests == opened


FRAGMENTS = {"swap": 4, "chain": ORDER_PROOF}
"""Of the logs that are opened. A chain has one manifest more, more than one look at its listing names."""
PAGE = ROOT.parent / "docs" / "stores.md"


def told(name: str, kind: str) -> tuple[float, float]:
    """Return the requests that the page tells, and how many of them in a row."""
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |"))
    cell = row.split("|")[2 + ["swap", "chain"].index(kind)]
    numbers = re.findall(r"[\d.]+", cell)
    return float(numbers[0]), float(numbers[-1])


@pytest.mark.parametrize("kind", ["swap", "chain"])
async def test_no_more_requests_than_are_told(kind) -> None:
    for name, case in cloud_requests.CASES.items():
        if case is cloud_requests.shipping:
            continue
        takes_fragments = "fragments" in inspect.signature(case).parameters
        found = await (case(kind, FRAGMENTS[kind]) if takes_fragments else case(kind))
        most, most_in_a_row = told(name, kind)
        assert 0 < found.requests <= most, (name, found)
        assert (found.in_a_row or 0) <= most_in_a_row, (name, found)


async def test_many_logs_of_one_bucket_are_probed_once(tmp_path: Path) -> None:
    stores = [RecordingStore(LocalStore(tmp_path / str(number))) for number in range(5)]
    for store in stores:
        async with CloudWriter.open(URL, store=store) as log:
            await log.append(b"1")
    # Whether the first one was depends on the tests before it.
    assert sum(store.count("delete").requests for store in stores) <= 1
    assert all(store.count("delete").requests == 0 for store in stores[1:])


@pytest.mark.slow
async def test_requests_for_much_data(log_directory: Path, store) -> None:
    """A put for every eight megabytes, and at most a swap for each."""
    value = os.urandom(64 << 10)
    async with Wal.open(log_directory) as wal:
        for _ in range(32):
            await wal.append_many([value] * 32, durability="memory")
    settings = UploadSettings()
    async with Wal.open(log_directory, tier=tier(store, settings)) as wal:
        await wal.wait_durable(wal.tail - 1, "cloud")
    fragments = len(store.attempts)
    assert fragments == 64 * MIB // settings.fragment_bytes
    assert sum(store.attempts.values()) == fragments
    assert store.count("put_if_match").requests - 3 <= fragments
    assert store.count("get").requests == 4
    assert store.count("list").requests == 3


async def test_a_small_log_that_is_written_all_the_time(
    log_directory: Path, store, clock: ManualClock
) -> None:
    """Two requests for each ``fragment_age_seconds``, however many records come."""
    cloud = tier(store, UploadSettings(fragment_age_seconds=5), clock=clock)
    async with Wal.open(log_directory, tier=cloud, clock=clock) as wal:
        await wal.append(b"first", durability="cloud")
        before = requests(store)
        for _ in range(10):
            for _ in range(20):
                await wal.append(b"v")
            await until(lambda: clock.sleepers > 0)
            clock.advance(5)
            await until(lambda: wal.uploaded_limit == wal.durable_limit)
        assert requests(store) - before == Counter({"put_if_absent": 10, "put_if_match": 10})


@pytest.mark.parametrize("max_in_flight", [1, 3])
async def test_fragments_under_way_are_bounded(
    log_directory: Path, store, max_in_flight: int
) -> None:
    """With a store that hangs, no more than these are read, built and held."""
    settings = UploadSettings(
        fragment_bytes=64 << 10,
        fragment_age_seconds=0,
        max_in_flight=max_in_flight,
        parallel_puts=True,
    )
    log_settings = Settings(cache_bytes=0, batch_bytes=16 << 10)
    async with Wal.open(log_directory, settings=log_settings) as wal:
        for value in values(1000, 4000):
            await wal.append(value, durability="memory")
    hold = asyncio.Event()
    store.on("put_if_absent", faults.hang(hold), key_prefix="log/", times=10**6)
    async with Wal.open(log_directory, settings=log_settings, tier=tier(store, settings)) as wal:
        await until(lambda: len(store.attempts) == max_in_flight)
        await turns(200)
        assert len(store.attempts) == max_in_flight
        read = wal.statistics().file_reads
        assert read <= max_in_flight * 8
        hold.set()
        await wal.wait_durable(1000, "cloud")


async def test_what_reading_costs(log_directory: Path, store) -> None:
    """One request for the manifest, and one for each fragment, however many readers there are.

    One more for the manifest for each reader that is to end where the log does by then.
    """
    async with Wal.open(log_directory, tier=tier(store)) as wal:
        for value in values(100):
            await wal.append(value, durability="memory")
    reading = RecordingStore(store.inner)
    async with cloud_log(reading) as log:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_count(log.reader(stop=log.limit))) for _ in range(10)]
        assert {task.result() for task in tasks} == {100}
        once = Counter({"get": 1, "get_range": len(log.manifest.fragments)})
        assert requests(reading) == once
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_count(log.reader())) for _ in range(10)]
        assert {task.result() for task in tasks} == {100}
        assert requests(reading) == once + Counter({"get": 10})


async def _count(reader) -> int:
    return len([record async for record in reader])


async def test_a_reader_of_a_local_tail_asks_the_store_for_nothing(
    log_directory: Path, store
) -> None:
    async with Wal.open(log_directory, tier=tier(store)) as wal:
        await wal.append_many(values(100), durability="cloud")
        before = requests(store)
        assert await _count(wal.reader(follow=False)) == 100
        assert requests(store) == before
