"""A fragment is hashed while it is put, unless its key says its sum."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from tests.cloud import MemorySource, put_fragment, values
from tests.local import turns
from tests.waiting import until
from uploader.chain import ChainRoot
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.fragments.fragment import inspect_fragment, verify_fragment
from uploader.fragments.fragment_builder import Building
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.root import Root
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore, StoreKilled, faults
from uploader.testing.faults import fail
from uploader.write.fragment_puts import FragmentPuts, Taken, gather
from uploader.write.stall_guard import StallGuard, WriteContext
from walstore.core.batches.batch import Batch
from walstore.core.runtime.threads import Worker
from walstore.errors import StorageUnavailableError

CONTENT = values(30, 50)
KEY = layout.fragment_path(1)
TIMESTAMP_US = 77


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def worker():
    """One thread: one thing at a time."""
    found = Worker("test")
    yield found
    found.close()


class Bench:
    """What puts fragments of a source of thirty records."""

    def __init__(self, store: FaultyStore, root: Root, worker: Worker, retry: RetryPolicy) -> None:
        stall_guard = StallGuard(url=store.url, retry=retry, clock=retry.clock, silent_seconds=10)
        self.root = root
        self.worker = worker
        self.puts = FragmentPuts(
            WriteContext(
                store=store,
                root=root,
                stall_guard=stall_guard,
                retry=retry,
                clock=retry.clock,
                worker=worker,
            )
        )
        self._source = MemorySource()
        self._source.append(CONTENT)
        self.blocked: list[asyncio.Task[bool]] = []

    async def batches(self, start: int, limit: int) -> list[Batch]:
        return await gather(self._source, start, limit, most_bytes=None)

    async def building(self, limit: int) -> Building:
        """Return a fragment that has the records below ``limit``."""
        building = Building(self.worker, timestamp_us=TIMESTAMP_US)
        if limit > 1:
            batches = await self.batches(1, limit)
            await building.add(lambda: batches)
        return building

    async def build(self, *, begun: int = 11, limit: int = 21, is_built=lambda: None):
        """Build a fragment with the records below ``limit``, those below ``begun`` earlier."""
        building = await self.building(begun)
        batches = await self.batches(begun, limit) if begun < limit else []
        return await self.puts.build(building, lambda: batches, 1, is_built=is_built)

    def block(self, gate: threading.Event) -> None:
        """Let the thread do nothing else until the event is set."""
        self.blocked.append(asyncio.ensure_future(self.worker.run(gate.wait)))


@pytest.fixture
def bench(store: FaultyStore, impatient: RetryPolicy, worker: Worker) -> Bench:
    return Bench(store, SwappedRoot(store, impatient, worker), worker, impatient)


@pytest.fixture
async def chained(store: FaultyStore, impatient: RetryPolicy, worker: Worker) -> Bench:
    root = ChainRoot(store, impatient, worker)
    await root.load_or_create("writer")
    return Bench(store, root, worker, impatient)


@pytest.mark.parametrize("begun", [1, 2, 11, 20, 21])
async def test_a_fragment_is_what_its_entry_says(bench: Bench, store, begun) -> None:
    built, entry = await bench.build(begun=begun)
    assert isinstance(entry, Fragment)
    assert (entry.path, entry.seq_no, entry.start, entry.limit) == (KEY, 1, 1, 21)
    data = (await store.inner.get(KEY)).data
    assert verify_fragment(data, entry).values == CONTENT[:20]
    assert (built.data, built.setsum) == (data, entry.setsum)
    assert (bench.puts.put_fragments, bench.puts.put_bytes) == (1, len(data))
    assert store.requests == 1


async def test_the_store_is_asked_before_it_is_hashed(bench: Bench, store) -> None:
    gate = threading.Event()
    with contextlib.ExitStack() as at_end:
        at_end.callback(gate.set)
        building = asyncio.create_task(bench.build(is_built=lambda: bench.block(gate)))
        await until(lambda: bench.puts.put_fragments == 1)
        await turns(20)
        assert not building.done()
        data = (await store.inner.get(KEY)).data
    _, entry = await building
    assert isinstance(entry, Fragment)
    assert verify_fragment(data, entry).values == CONTENT[:20]


async def test_it_is_hashed_before_the_store_answers(bench: Bench, store) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", faults.hang(release, reached))
    building = asyncio.create_task(bench.build())
    await reached.wait()
    await bench.worker.run(int)  # the sum came first
    assert not building.done()
    release.set()
    _, entry = await building
    assert verify_fragment((await store.inner.get(KEY)).data, entry).values == CONTENT[:20]


async def test_another_object_lies_there(bench: Bench, store) -> None:
    """The fragment is returned with its sum, so that it may replace that."""
    await put_fragment(store.inner, 1, 1, [b"theirs"])
    theirs = await store.inner.get(KEY)
    built, taken = await bench.build()
    assert taken == Taken(KEY, theirs.data, theirs.etag)
    assert inspect_fragment(built.data, KEY).setsum == built.setsum
    assert bench.puts.put_fragments == 0
    entry = await bench.puts.replace(taken, built, 1)
    assert verify_fragment((await store.inner.get(KEY)).data, entry).values == CONTENT[:20]


@pytest.mark.parametrize("is_chained", [False, True])
async def test_a_put_that_is_refused(bench: Bench, chained: Bench, store, is_chained) -> None:
    """The error comes as it is, with its cause, and not in a group."""
    cause = OSError("disk")
    error = StorageUnavailableError("forbidden", retriable=False, outcome="not_written")
    error.__cause__ = cause
    store.on("put_if_absent", fail(error))
    asked: list[int] = []
    with pytest.raises(StorageUnavailableError) as told:
        await (chained if is_chained else bench).build(is_built=lambda: asked.append(1))
    assert told.value is error
    assert told.value.__cause__ is cause
    assert asked == [1]


async def test_a_put_that_is_refused_before_it_is_hashed(bench: Bench, store) -> None:
    """Nobody waits for the hash then, and the thread is free again."""
    gate = threading.Event()
    error = StorageUnavailableError("forbidden", retriable=False)
    store.on("put_if_absent", fail(error))
    with contextlib.ExitStack() as at_end:
        at_end.callback(gate.set)
        with pytest.raises(StorageUnavailableError) as told:
            await bench.build(is_built=lambda: bench.block(gate))
    assert told.value is error
    _, entry = await bench.build()
    assert verify_fragment((await store.inner.get(KEY)).data, entry).values == CONTENT[:20]


async def test_a_death_is_no_group_either(bench: Bench, store) -> None:
    store.on("put_if_absent", faults.kill())
    with pytest.raises(StoreKilled):
        await bench.build()


@pytest.mark.parametrize("is_hashed", [True, False])
async def test_cancelled_while_it_is_put(bench: Bench, store, is_hashed) -> None:
    gate, reached = threading.Event(), asyncio.Event()
    store.on("put_if_absent", faults.outlive_caller(store.late, reached))
    with contextlib.ExitStack() as at_end:
        at_end.callback(gate.set)
        if is_hashed:
            gate.set()
        building = asyncio.create_task(bench.build(is_built=lambda: bench.block(gate)))
        await reached.wait()
        if is_hashed:
            await bench.worker.run(int)
        building.cancel()
        await asyncio.wait((building,))
        assert building.cancelled()
    assert bench.puts.put_fragments == 0
    await store.deliver()  # it may be put all the same
    assert inspect_fragment((await store.inner.get(KEY)).data, KEY).limit == 21


async def test_records_that_cannot_be_encoded(bench: Bench, store) -> None:
    """Nothing is put, and nobody is told that it was built."""
    building = await bench.building(11)
    wrong = await bench.batches(12, 21)
    with pytest.raises(ValueError, match="does not follow"):
        await bench.puts.build(
            building, lambda: wrong, 1, is_built=lambda: pytest.fail("it was not built")
        )
    assert store.requests == 0


# -- a key that says the sum -----------------------------------------------------------------


async def test_a_key_that_says_the_sum_waits_for_it(chained: Bench, store) -> None:
    assert chained.root.early_key(1) is None
    before = store.requests
    asked: list[int] = []
    built, entry = await chained.build(is_built=lambda: asked.append(store.requests))
    assert asked == [before]
    assert isinstance(entry, Fragment)
    assert entry.path == chained.root.fragment_key(1, start=1, limit=21, setsum=built.setsum)
    assert entry.path != chained.root.fragment_key(
        1, start=1, limit=21, setsum=built.setsum + built.setsum
    )
    assert verify_fragment((await store.inner.get(entry.path)).data, entry).values == CONTENT[:20]


async def test_a_number_says_the_key(bench: Bench) -> None:
    assert bench.root.early_key(1) == KEY


# -- building --------------------------------------------------------------------------------


async def test_a_building_that_was_cancelled_is_broken(bench: Bench) -> None:
    gate = threading.Event()
    building = await bench.building(1)
    batches = await bench.batches(1, 11)
    with contextlib.ExitStack() as at_end:
        at_end.callback(gate.set)
        bench.block(gate)
        adding = asyncio.create_task(building.add(lambda: batches))
        await turns()
        assert not building.is_broken
        adding.cancel()
        await asyncio.wait((adding,))
    assert building.is_broken


async def test_a_building_that_failed_is_broken(bench: Bench) -> None:
    building = await bench.building(11)
    wrong = await bench.batches(12, 21)
    with pytest.raises(ValueError, match="does not follow"):
        await building.add(lambda: wrong)
    assert building.is_broken


async def test_a_building_keeps_the_order_of_its_calls(bench: Bench) -> None:
    """Though the first has to wait for the thread."""
    gate = threading.Event()
    building = await bench.building(1)
    parts = [await bench.batches(start, start + 10) for start in (1, 11, 21)]
    with contextlib.ExitStack() as at_end:
        at_end.callback(gate.set)
        bench.block(gate)
        adding = [asyncio.create_task(building.add(lambda part=part: part)) for part in parts[:2]]
        await turns()
        finishing = asyncio.create_task(building.finish(lambda: parts[2]))
        await turns()
    await asyncio.gather(*adding)
    built = await finishing
    assert (built.start, built.limit) == (1, 31)
    assert not building.is_broken
