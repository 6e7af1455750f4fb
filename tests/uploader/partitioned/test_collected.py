"""Writes beside garbage collection: a commit that is not finished keeps its records until it is."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from tests.cloud import FAST
from tests.uploader.partitioned.test_committer import LAYOUTS, A, B, append
from tests.uploader.partitioned.writes import (
    NOW_US,
    SMALL,
    StillClock,
    driver,
    epoch,
    keys_in,
    new_job,
    stage,
    values_in,
    write_epoch,
)
from uploader import CloudLog, CollectorSettings, GarbageCollector
from uploader.format import layout
from uploader.partitioned import WriteId, finish_commits, sweep_staging
from uploader.partitioned.partitions import SubStore
from uploader.partitioned.write_id import HOLD_SECONDS
from uploader.root.holds import GarbageHold, Holds, Keepers
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import call, kill
from walstore.errors import CorruptionError

EAGER = CollectorSettings(interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def collect(
    store: ObjectStore, partition: int = 0, *, clock: StillClock | None = None
) -> str:
    """Collect all that a reader at the log's end lets go; return what kept the rest."""
    log = SubStore(store, partition)
    async with CloudLog.open("memory://x", store=log) as reading:
        await reading.cursors.commit("reader", reading.tail)
    async with GarbageCollector.open(
        "memory://x", store=log, settings=EAGER, retry=FAST, clock=clock or StillClock()
    ) as collector:
        return (await collector.collect()).cutoff.held_by


async def bounds(store: ObjectStore, partition: int = 0) -> tuple[int, int]:
    async with CloudLog.open("memory://x", store=SubStore(store, partition)) as log:
        await log.verify()
        return log.head, log.tail


async def holds_in(store: ObjectStore) -> list[str]:
    return [key for key in await keys_in(store) if "/hold/" in key]


@LAYOUTS
async def test_a_driver_dies_before_it_says_that_all_is_published(store, layout):
    """A collection that would pass the records waits; the next driver finds them."""
    settings = dataclasses.replace(SMALL, layout=layout)
    await write_epoch(store.inner, epoch(0), {0: A}, settings=settings)
    second = epoch(1)
    staged = await stage(store.inner, second, {0: B})
    store.on("put_if_match", kill(), nth=2, key_prefix="sink/queries/")  # done
    with pytest.raises(StoreKilled):
        async with driver(store, settings) as committer:
            await committer.commit(second, staged)
    assert await bounds(store.inner) == (1, 7)
    assert (await collect(store.inner)) == f"write {second.job}"
    await append(store.inner, 0, b"other")
    assert (await collect(store.inner)) == f"write {second.job}"
    assert await bounds(store.inner) == (4, 8)
    assert not await write_epoch(store.inner, epoch(1), {0: B}, settings=settings)
    assert await values_in(store.inner, 0) == [*B, b"other"]
    assert await holds_in(store.inner) == []
    assert (await collect(store.inner)) == "end of the log"
    assert await bounds(store.inner) == (8, 8)
    assert await write_epoch(store.inner, epoch(2), {0: A}, settings=settings)
    assert await bounds(store.inner) == (8, 11)


@pytest.mark.slow
@LAYOUTS
async def test_wherever_the_driver_dies_and_whatever_is_collected_then(layout):
    """The rows come into the logs once, and nothing keeps these for good."""
    settings = dataclasses.replace(SMALL, layout=layout)
    for nth in range(1, 200):
        inner = MemoryStore()
        await write_epoch(inner, epoch(0), {0: A, 1: A}, settings=settings)
        dying = FaultyStore(inner)
        write = epoch(1)
        staged = await stage(inner, write, {0: B, 1: B})
        dying.on("any", kill(), nth=nth)
        reached = False
        try:
            async with driver(dying, settings) as committer:
                await committer.commit(write, staged)
        except StoreKilled:
            reached = True
        for partition in (0, 1):
            await append(inner, partition, b"other")
            await collect(inner, partition)
        await write_epoch(inner, epoch(1), {0: B, 1: B}, settings=settings)
        for partition in (0, 1):
            assert (await bounds(inner, partition))[1] == 8
            await collect(inner, partition)
            assert await bounds(inner, partition) == (8, 8)
        assert await holds_in(inner) == []
        if not reached:
            return
    pytest.fail("it never got to its end")


async def test_a_job_that_is_run_once_is_finished_after_a_collection(store):
    await write_epoch(store.inner, epoch(0), {0: A})
    write = WriteId.once(new_job())
    staged = await stage(store, write, {0: B})
    store.on("put_if_match", kill(), key_prefix=write.record_key)
    with pytest.raises(StoreKilled):
        async with driver(store) as committer:
            await committer.commit(write, staged)
    assert (await collect(store.inner)) == f"write {write.job}"
    assert await finish_commits("memory://x", store=store.inner, retry=FAST) == 1
    assert await bounds(store.inner) == (4, 7)
    assert (await collect(store.inner)) == "end of the log"


async def test_a_write_that_is_given_up_lets_go(store):
    await write_epoch(store.inner, epoch(0), {0: A})
    write = epoch(1)
    staged = await stage(store, write, {0: B})
    store.on("put_if_match", kill(), key_prefix=write.record_key)
    with pytest.raises(StoreKilled):
        async with driver(store) as committer:
            await committer.commit(write, staged)
    assert len(await holds_in(store.inner)) == 1
    async with driver(store.inner) as committer:
        assert await committer.abort(write)
    assert await holds_in(store.inner) == []


async def test_a_dead_write_lets_go_after_a_week(store):
    """Its hold goes with what it staged."""
    await write_epoch(store.inner, epoch(0), {0: A})
    write = WriteId.once(new_job())
    staged = await stage(store, write, {0: B})
    store.on("put_if_absent", kill(), key_prefix=write.record_key)
    with pytest.raises(StoreKilled):
        async with driver(store) as committer:
            await committer.commit(write, staged)
    await append(store.inner, 0, b"other")
    assert (await collect(store.inner)) == f"write {write.job}"
    later = StillClock(NOW_US + round(HOLD_SECONDS * 1e6) + 1)
    assert (await collect(store.inner, clock=later)) == "end of the log"
    assert len(await holds_in(store.inner)) == 1
    await sweep_staging("memory://x", store=store.inner, retry=FAST, clock=later)
    assert await holds_in(store.inner) == []


async def test_a_write_alone_lets_nothing_go(store):
    """As the first cursor of a log does: everything below it may go then."""
    await write_epoch(store.inner, epoch(0), {0: A})
    write = epoch(1)
    staged = await stage(store, write, {0: B})
    store.on("put_if_match", kill(), key_prefix=write.record_key)
    with pytest.raises(StoreKilled):
        async with driver(store) as committer:
            await committer.commit(write, staged)
    log = SubStore(store.inner, 0)
    async with GarbageCollector.open(
        "memory://x", store=log, settings=EAGER, retry=FAST, clock=StillClock()
    ) as collector:
        assert (await collector.plan()).cursors == ()
        assert (await collector.collect()).cutoff.held_by == "no cursor"
    assert await bounds(store.inner) == (1, 4)


async def test_a_hold_that_comes_behind_an_announcement_is_put_again(store):
    """The log went on meanwhile, and that is being collected: the write goes behind."""
    await write_epoch(store.inner, epoch(0), {0: A})
    write = epoch(1)
    staged = await stage(store, write, {0: B})

    async def go_on() -> None:
        await append(store.inner, 0, b"other")
        await collect(store.inner)

    store.on("put_if_absent", call(go_on), key_prefix="0/hold/")
    async with driver(store) as committer:
        assert await committer.commit(write, staged)
    assert await bounds(store.inner) == (5, 8)
    assert await values_in(store.inner, 0) == B


@LAYOUTS
async def test_a_hold_that_comes_behind_what_is_announced_and_not_dropped(store, layout):
    """The manifest does not show it yet, so the announcement of that very log tells: the hold is put again.

    The write goes behind what is going to be dropped, and nothing of it is dropped with that.
    """
    settings = dataclasses.replace(SMALL, layout=layout)
    await write_epoch(store.inner, epoch(0), {0: A, 1: A}, settings=settings)
    write = epoch(1)
    staged = await stage(store.inner, write, {0: B, 1: B})
    holds: dict[str, int] = {"0/": 0, "1/": 0}

    async def announce() -> None:
        await append(store.inner, 0, b"other")
        dying = FaultyStore(store.inner)
        is_chained = settings.layout == "chain"
        dying.on(
            "put_if_absent" if is_chained else "put_if_match", kill(), key_prefix="0/manifest/"
        )
        with pytest.raises(StoreKilled):
            await collect(dying)
        assert await bounds(store.inner) == (1, 5)

    async def note(partition: str) -> None:
        holds[partition] += 1

    store.on("put_if_absent", call(announce), key_prefix="0/hold/")
    for partition in holds:
        store.on(
            "put_if_absent", call(partial(note, partition)), key_prefix=partition + "hold/", times=9
        )
    async with driver(store, settings) as committer:
        assert await committer.commit(write, staged)
    assert holds == {"0/": 1, "1/": 1}
    await collect(store.inner)
    assert (await bounds(store.inner))[1] == 8
    assert (await values_in(store.inner, 0))[-3:] == B


async def test_only_the_announcement_of_the_log_itself_counts(store):
    """Another log may lie above, and another one beside."""
    await write_epoch(store.inner, epoch(0), {0: A, 1: A})
    for place in ("", "1/"):
        await store.inner.put_if_absent(place + layout.GARBAGE, b"{")
    assert await write_epoch(store.inner, epoch(1), {0: B})
    await store.inner.put_if_absent("0/" + layout.GARBAGE, b"{")
    with pytest.raises(CorruptionError, match="gc/GARBAGE"):
        await write_epoch(store.inner, epoch(2), {0: A})


async def test_a_hold_never_moves_on_while_its_job_lives(store):
    """A record with the earlier place may still arrive."""
    holds = Holds(store, retry=FAST)
    first = GarbageHold(name=new_job(), position=4, epoch_us=1, writer="w", expires_us=9)
    await holds.put(first)
    await holds.put(dataclasses.replace(first, position=6))
    assert await Keepers(store).list() == [first]
    await holds.put(dataclasses.replace(first, position=2))
    assert [hold.position for hold in await Keepers(store).list()] == [2]


async def test_a_damaged_hold_stops_a_collection(store):
    """It may be one that is wanted."""
    await write_epoch(store.inner, epoch(0), {0: A})
    await store.inner.put_if_absent("0/" + layout.hold_path("x"), b"{")
    with pytest.raises(CorruptionError, match="hold/x"):
        await collect(store.inner)
    assert await bounds(store.inner) == (1, 4)
