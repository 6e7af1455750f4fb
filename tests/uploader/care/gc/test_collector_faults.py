"""The garbage collector killed at every call, and answers lost; and what it sweeps up."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.uploader.care.gc.collecting import NO_WAIT, announce, collect, drop, garbage_below
from tests.uploader.documents import snapshot_of
from tests.uploader.places import INTERVAL_SECONDS, SETTINGS, Place
from uploader.format import layout
from uploader.format.garbage import Garbage
from uploader.root.cas import create
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import (
    Fault,
    fail,
    happen_then_fail,
    happen_then_kill,
    kill,
    timeout,
)
from walstore.errors import (
    OutcomeUnknownError,
    StorageUnavailableError,
)

# -- dying, and lost answers -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fault", [kill, happen_then_kill])
async def test_killed_at_every_call(fault: Callable[[], Fault]) -> None:
    """The log is sound at every moment, and the next collector finishes."""
    for nth in range(1, 200):
        place = await Place.make()
        await place.cursors.commit("billing", 8)
        place.store.on("any", fault(), nth=nth)
        try:
            await collect(place)
        except StoreKilled:
            assert (await place.named())[-5:] == place.above(8)
            place.clock.seconds += 1
            await collect(place, inner=True)
        await collect(place, inner=True)
        await place.check_collected(8)
        if not place.store.is_killed:
            return
    pytest.fail("it never got to its end")


async def test_killed_at_every_call_and_resumed_in_small_steps() -> None:
    """Every process dies after a few calls; together they come to the end."""
    place = await Place.make()
    await place.cursors.commit("billing", 8)
    for calls in [4, 9, 14, 19, 24, 29, 34, 39, 44, 49] * 2:
        store = FaultyStore(place.inner)
        store.on("any", happen_then_kill(), nth=calls)
        try:
            async with place.collector(store, NO_WAIT) as collector:
                await collector.collect()
        except StoreKilled:
            pass
        assert (await place.named())[-5:] == place.above(8)
        place.clock.seconds += INTERVAL_SECONDS / 4
    await place.check_collected(8)


@pytest.mark.slow
@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize("times", [1, 20])
async def test_lost_answers_at_every_call(happens: bool, times: int) -> None:
    """It goes on by reading back, or ends with an error after which the next one goes on."""
    for nth in range(1, 200):
        place = await Place.make()
        await place.cursors.commit("billing", 8)
        fault = happen_then_fail(timeout()) if happens else fail(timeout())
        place.store.on("any", fault, nth=nth, times=times)
        before = place.store.requests
        with suppress(StorageUnavailableError, OutcomeUnknownError):
            await collect(place)
        assert (await place.named())[-5:] == place.above(8)
        await collect(place, inner=True)
        await collect(place, inner=True)
        await place.check_collected(8)
        if place.store.requests - before < nth:
            return
    pytest.fail("it never got to its end")


# -- leaks -------------------------------------------------------------------------------------


async def test_leaks_below_the_head_are_swept(place: Place) -> None:
    """Snapshots and fragments that nothing names; after the interval, and not before."""
    leaked = snapshot_of(place.live[1:4])
    across = snapshot_of(place.live[5:9])
    for snapshot in (leaked, across):
        await place.inner.put_if_absent(snapshot.path, snapshot.serialise())
    await collect(place)
    await place.check_collected(8)
    late = place.live[2]
    await place.inner.put_if_absent(late.path, b"of a writer who was too slow")
    swept = await collect(place)
    assert [(item.key, item.kind) for item in swept.deleted] == [(late.path, "fragment")]
    assert swept.deleted[0].reason == "nothing names it, and the log begins at 8"
    await place.check_collected(8)


async def test_a_leak_is_as_old_as_the_head(place: Place) -> None:
    """wal3 forgot what it had dropped: the interval begins when we see the head."""
    garbage = garbage_below(place, 8)
    await announce(place, garbage)
    await drop(place, garbage)
    etag = (await place.inner.get(layout.GARBAGE)).etag
    await place.inner.put_if_match(layout.GARBAGE, Garbage().serialise(), etag)
    assert (await collect(place)).deleted == ()
    place.clock.seconds += INTERVAL_SECONDS - 1
    assert (await collect(place)).deleted == ()
    place.clock.seconds += 1
    assert len((await collect(place)).deleted) == len(list(garbage.objects()))
    await place.check_collected(8)


async def test_what_may_be_named_yet_is_left_alone(place: Place) -> None:
    """A roll-up is the same for every writer: one may name the snapshot that another left years ago."""
    await collect(place)
    kept = {
        snapshot_of(place.live[at:limit]).path: snapshot_of(place.live[at:limit])
        for at, limit in [(7, 9), (7, 10), (8, 10), (9, 11)]
    }
    behind = layout.fragment_path(place.tree.manifest.next_seq_no)
    for path, snapshot in kept.items():
        await create(place.inner, path, snapshot.serialise())
    await place.inner.put_if_absent(behind, b"orphan")
    foreign = {"snapshot/notes.txt", "snapshot/SNAPSHOT." + "0" * 64, "log/notes.txt"}
    for key in foreign:
        await place.inner.put_if_absent(key, b"foreign")
    before = await place.keys()
    place.clock.seconds += 100 * INTERVAL_SECONDS
    assert (await collect(place)).deleted == ()
    assert await place.keys() == before


async def test_many_leaks_are_swept_in_turns(place: Place) -> None:
    await collect(place)
    for fragment in place.live[:7]:
        await place.inner.put_if_absent(fragment.path, b"leaked")
    limited = replace(SETTINGS, max_fragments=3)
    assert [len((await collect(place, limited)).deleted) for _ in range(4)] == [3, 3, 1, 0]
    await place.check_collected(8)


async def test_heads_of_another_log_are_not_believed(place: Place) -> None:
    """No log begins further on than its manifest says."""
    await collect(place)
    leaked = place.live[1].path
    await place.inner.put_if_absent(leaked, b"leaked")
    stored = await place.inner.get(layout.HEADS)
    document = json.loads(stored.data)
    document["heads"][0] |= {"offset": 12, "seq_no": 12, "since_us": 0}
    await place.inner.put_if_match(layout.HEADS, json.dumps(document).encode(), stored.etag)
    place.clock.seconds += 100 * INTERVAL_SECONDS
    async with place.collector() as collector:
        assert await collector.sweep() == ()
    assert leaked in await place.keys()


async def test_a_sweep_of_a_log_that_was_never_collected_costs_little() -> None:
    place = await Place.make()
    async with place.collector() as collector:
        before = place.store.requests
        assert await collector.sweep() == ()
        assert place.store.requests == before + 2  # the manifest, and what lies behind its end
    assert layout.HEADS not in await place.keys()
