"""Rolling up beside publishing: nobody waits for it, nothing is named before it is there, failures pass."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

import pytest

from tests.uploader.documents import fragment, fragments, snapshot_of
from uploader.format import layout
from uploader.format.entries import Fragment, Snapshot
from uploader.format.manifest import Manifest
from uploader.format.rollup import RollUpSettings
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.tree import ManifestTree
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import StoreKilled, fail, happen_then_fail, timeout
from walstore.core.runtime.threads import Worker
from walstore.errors import OutcomeUnknownError

SNAPSHOTS = layout.SNAPSHOT_FOLDER


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def opened(store: FaultyStore, impatient: RetryPolicy):
    """Make manifest logs that roll up two by two, unless told otherwise."""
    logs: list[SwappedRoot] = []
    workers: list[Worker] = []

    def make(fragments: int = 2, snapshots: int = 2, *, inner=None) -> SwappedRoot:
        settings = RollUpSettings(
            fragments_per_snapshot=fragments, snapshots_per_snapshot=snapshots
        )
        workers.append(Worker("test"))
        logs.append(SwappedRoot(inner or store, impatient, workers[-1], roll_up=settings))
        return logs[-1]

    yield make
    for log in logs:
        await log.aclose()
    for worker in workers:
        worker.close()


def entry(seq_no: int) -> Fragment:
    return fragment(seq_no, 1 + (seq_no - 1) * 10, 1 + seq_no * 10)


async def publish(log: SwappedRoot, *seq_nos: int) -> None:
    """Publish fragments one by one, each after the roll-up that the one before began."""
    for seq_no in seq_nos:
        await log.publish([entry(seq_no)], "w")
        await log.settle()


async def stored(store: FaultyStore) -> Manifest:
    found = Manifest.parse((await store.inner.get(layout.MANIFEST)).data)
    found.scrub()
    return found


async def named(store: FaultyStore) -> list[int]:
    """Return the numbers of all fragments that the stored manifest names; every snapshot must be there."""
    worker = Worker("check")
    found = await ManifestTree(store.inner, worker).entries(await stored(store))
    worker.close()
    assert found == [entry(one.seq_no) for one in found]
    return [one.seq_no for one in found]


def shape(manifest: Manifest) -> list[int]:
    return [*(pointer.depth for pointer in manifest.snapshots), *[0] * len(manifest.fragments)]


# -- beside publishing -----------------------------------------------------------------------


async def test_what_is_finished_is_named_by_the_next_swap(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    shapes = []
    for seq_no in range(1, 10):
        await publish(log, seq_no)
        shapes.append(shape(log.manifest))
        assert log.manifest == await stored(store)
    assert shapes == [
        [0],
        [0, 0],
        [0, 0, 0],
        [1, 0, 0],
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [2, 0, 0, 0],
        [2, 1, 0, 0],
        [2, 1, 0, 0, 0],
    ]
    assert await named(store) == list(range(1, 10))
    assert store.count("put_if_match").requests == 9, "no swap is made for it"
    assert log.put_snapshots == 5


async def test_no_publishing_waits_for_a_snapshot(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", faults.hang(release, reached), key_prefix=SNAPSHOTS)
    for seq_no in range(1, 4):
        await log.publish([entry(seq_no)], "w")
    await reached.wait()
    for seq_no in range(4, 10):
        await log.publish([entry(seq_no)], "w")
    assert shape(await stored(store)) == [0] * 9
    release.set()
    await log.settle()
    assert shape(await stored(store)) == [0] * 9
    await publish(log, 10, 11)
    assert await named(store) == list(range(1, 12))
    assert len((await stored(store)).fragments) <= 5


async def test_a_roll_up_that_ends_during_a_swap_is_kept_for_the_next(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", faults.hang(release, reached), key_prefix=SNAPSHOTS)
    for seq_no in range(1, 4):
        await log.publish([entry(seq_no)], "w")
    await reached.wait()

    async def finish() -> None:
        release.set()
        await log.settle()

    store.on("put_if_match", faults.call(finish))
    await publish(log, 4)
    assert shape(log.manifest) == [0] * 4
    await publish(log, 5)
    assert shape(log.manifest) == [1, 0, 0, 0]
    assert store.count("put_if_absent").requests == 3, "manifest, first snapshot, second snapshot"


async def test_a_failed_swap_takes_the_roll_up_along_when_tried_again(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    await publish(log, 1, 2, 3)
    store.on("put_if_match", fail(timeout()), times=5)
    store.on("get", fail(timeout("not_written")), times=5)
    with pytest.raises(OutcomeUnknownError):
        await log.publish([entry(4)], "w")
    await publish(log, 4)
    assert shape(await stored(store)) == [1, 0, 0]


async def test_another_program_collected_meanwhile(store, opened) -> None:
    """The roll-up is of no use then; what was put stays behind, named by nothing."""
    log, collector = opened(), opened(100)
    await log.load_or_create("w")
    await publish(log, 1, 2, 3)
    await collector.load()
    first = entry(1)

    def drop(manifest: Manifest) -> Manifest:
        return dataclasses.replace(
            manifest,
            collected=first.setsum,
            fragments=manifest.fragments[1:],
            initial_offset=first.limit,
            initial_seq_no=2,
        )

    assert await collector.change(drop)
    await publish(log, 4)
    assert shape(log.manifest) == [0, 0, 0]
    assert await named(store) == [2, 3, 4]
    await publish(log, 5)
    assert shape(log.manifest) == [1, 0, 0]
    assert await named(store) == [2, 3, 4, 5]


async def test_closing_gives_up_what_is_under_way(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    reached = asyncio.Event()
    store.on("put_if_absent", faults.hang(asyncio.Event(), reached), key_prefix=SNAPSHOTS)
    for seq_no in range(1, 4):
        await log.publish([entry(seq_no)], "w")
    await reached.wait()
    for _ in range(2):
        await log.aclose()
    assert len(asyncio.all_tasks()) == 1
    assert await named(store) == [1, 2, 3]


async def test_closing_after_the_task_has_ended(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    await publish(log, 1, 2, 3)
    await log.aclose()


# -- what lies there already -----------------------------------------------------------------


@pytest.mark.parametrize("writer", ["w", "somebody else"])
async def test_a_snapshot_that_is_there_is_taken(store, opened, writer: str) -> None:
    """Left by a crash, or by another writer's roll-up of the same fragments."""
    log = opened()
    await log.load_or_create("w")
    there = Snapshot.of([entry(1), entry(2)], writer)
    await store.inner.put_if_absent(there.path, there.serialise())
    await publish(log, 1, 2, 3, 4)
    assert shape(log.manifest) == [1, 0, 0]
    assert await named(store) == [1, 2, 3, 4]


@pytest.mark.parametrize("ours", [(4, 2), (1, 2)])
async def test_a_snapshot_that_is_divided_in_another_way(store, opened, ours) -> None:
    """The same records have the same key; the manifest says how deep the object is that lies there."""
    leaves = [snapshot_of([entry(1), entry(2)]), snapshot_of([entry(3), entry(4)])]
    deep = snapshot_of([leaf.pointer() for leaf in leaves])
    flat = snapshot_of([entry(at) for at in range(1, 5)])
    assert deep.path == flat.path
    for snapshot in (*leaves, deep):
        await store.inner.put_if_absent(snapshot.path, snapshot.serialise())
    log = opened(*ours)
    await log.load_or_create("w")
    await publish(log, *range(1, 12))
    assert log.manifest.snapshots[0].depth >= 2
    assert await named(store) == list(range(1, 12))


@pytest.mark.parametrize("data", [b"", b"{}", "others", "itself"])
async def test_something_else_lies_in_the_way(store, opened, data, caplog) -> None:
    """It is told, not at every swap; publishing goes on."""
    pair = snapshot_of([entry(1), entry(2)])
    if data == "others":
        moved = [
            dataclasses.replace(one, start=one.start + 1, limit=one.limit + 1)
            for one in pair.fragments
        ]
        data = dataclasses.replace(pair, fragments=tuple(moved)).serialise()
    if data == "itself":
        data = snapshot_of([pair.pointer()]).serialise()
    await store.inner.put_if_absent(pair.path, data)
    log = opened(2, 2)
    await log.load_or_create("w")
    await publish(log, *range(1, 21))
    assert await named(store) == list(range(1, 21))
    told = [record for record in caplog.records if "rolling up" in record.message]
    assert 1 < len(told) <= 10
    assert {record.levelno for record in told} == {logging.WARNING}
    assert pair.path in told[0].message


# -- faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        fail(timeout("not_written")),
        fail(timeout()),
        happen_then_fail(timeout()),
        fail(faults.conflict()),
    ],
    ids=["refused", "lost", "happened", "409"],
)
@pytest.mark.parametrize("times", [1, 4, 5])
async def test_a_snapshot_whose_put_is_answered_strangely(store, opened, fault, times) -> None:
    log = opened()
    await log.load_or_create("w")
    store.on("put_if_absent", fault, times=times, key_prefix=SNAPSHOTS)
    await publish(log, *range(1, 10))
    assert len(log.manifest.fragments) < 5
    assert await named(store) == list(range(1, 10))


async def test_a_store_that_takes_no_snapshots_for_a_while(store, opened, caplog) -> None:
    """Fragments gather in the manifest; when it works again they are rolled up, turn by turn."""
    log = opened(8, 2)
    await log.load_or_create("w")
    is_ill = True

    async def falter() -> None:
        if is_ill:
            raise timeout("not_written")

    store.on("put_if_absent", faults.call(falter), times=1000, key_prefix=SNAPSHOTS)
    await publish(log, *range(1, 37))
    assert shape(log.manifest) == [0] * 36
    told = [record for record in caplog.records if "rolling up" in record.message]
    assert 3 < len(told) <= 12, "not at every swap"
    is_ill = False
    await publish(log, *range(37, 45))
    assert shape(log.manifest)[0] > 0
    assert len(log.manifest.fragments) <= 9
    assert await named(store) == list(range(1, 45))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_killed_at_every_store_call_and_restarted(impatient, opened, fault) -> None:
    """The next writer goes on with what is there; nothing is lost, and every snapshot named is there."""
    nth, most = 1, 0
    while True:
        store = FaultyStore(MemoryStore())
        await opened(inner=store.inner).load_or_create("w")
        store.on("any", fault(), nth=nth)
        log = opened(2, 2, inner=store)
        try:
            await log.load_or_create("w")
            await publish(log, *range(1, 13))
        except StoreKilled:
            pass
        if not store.is_killed:
            break
        await log.aclose()
        again = opened(2, 2, inner=store.inner)
        await again.load_or_create("w")
        most = max(most, len(again.manifest.fragments))
        await publish(again, *range(again.manifest.next_seq_no, 21))
        assert await named(store) == list(range(1, 21))
        assert len(again.manifest.fragments) <= 4
        nth += 1
    assert nth > 20
    assert most <= 5


async def test_writers_with_other_thresholds_in_turn(store, opened) -> None:
    logs = [opened(1, 2), opened(3, 2), opened(2, 5)]
    for log in logs:
        await log.load_or_create("w")
    for seq_no in range(1, 61):
        log = logs[seq_no // 7 % 3]
        await log.load()
        await publish(log, seq_no)
    assert await named(store) == list(range(1, 61))
    assert len((await stored(store)).fragments) <= 5


async def test_runs_of_many_fragments_are_kept_up_with(store, opened) -> None:
    """More fragments in one swap than a snapshot holds."""
    log = opened(3, 4)
    await log.load_or_create("w")
    for low in range(1, 201, 20):
        await log.publish([entry(at) for at in range(low, low + 20)], "w")
        await log.settle()
    assert len(log.manifest.fragments) <= 3 + 20
    assert await named(store) == list(range(1, 201))


@pytest.mark.slow
async def test_the_defaults_suit_a_large_log(store, opened) -> None:
    settings = RollUpSettings()
    log = opened(settings.fragments_per_snapshot, settings.snapshots_per_snapshot)
    await log.load_or_create("w")
    for low in range(1, 2001, 50):
        await log.publish(fragments(*[10] * 50, seq_no=low, start=1 + (low - 1) * 10), "w")
        await log.settle()
    assert len(await named(store)) == 2000
    assert len(log.manifest.serialise()) < 50_000
