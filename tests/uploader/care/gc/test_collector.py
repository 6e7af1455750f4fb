"""The garbage collector, step by step, alone; and what others began."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from tests.cases import case
from tests.uploader.care.gc.collecting import NO_WAIT, announce, collect, drop, garbage_below
from tests.uploader.documents import fragments, snapshot_of
from tests.uploader.places import INTERVAL_SECONDS, SETTINGS, Place
from uploader.care.gc.collection_plan import Progress
from uploader.format import layout
from uploader.testing.faults import (
    call,
)
from walstore.errors import (
    CorruptionError,
)

# -- collecting --------------------------------------------------------------------------------


@pytest.mark.parametrize(("fragments", "snapshots"), [(2, 2), (3, 2), (100, 2)])
async def test_a_collection_at_every_offset(fragments: int, snapshots: int) -> None:
    """Exactly the whole fragments below the cursor go, with their snapshots."""
    for cutoff in range(1, 14):
        with case(cutoff):
            await check_a_collection_at(cutoff, fragments, snapshots)


async def check_a_collection_at(cutoff: int, fragments: int, snapshots: int) -> None:
    place = await Place.make((2, 1) * 4, fragments=fragments, snapshots=snapshots)
    await place.cursors.commit("billing", cutoff)
    collected = await collect(place, replace(SETTINGS, max_drop_fraction=1))
    if place.above(cutoff) == place.live:
        assert collected.deleted == ()
        return
    await place.check_collected(cutoff)
    assert collected.head == (await place.manifest()).oldest_offset


async def test_deleting_waits_for_the_interval(place: Place) -> None:
    """Not before every reader of an older manifest has had that long."""
    times: dict[str, list[float]] = {"swap": [], "delete": []}

    async def note(what: str) -> None:
        times[what].append(place.clock.seconds)

    place.store.on("put_if_match", call(lambda: note("swap")), key_prefix="manifest/")
    place.store.on("delete", call(lambda: note("delete")), times=100)
    seen: list[Progress] = []
    async with place.collector() as collector:
        await collector.collect(progress=seen.append)
    assert times["delete"][0] - times["swap"][0] >= INTERVAL_SECONDS
    steps = [later - before for before, later in itertools.pairwise(times["delete"])]
    assert steps == pytest.approx([SETTINGS.delete_pause_seconds] * len(steps))
    assert len(steps) > 1
    phases = list(dict.fromkeys(step.phase for step in seen))
    assert phases == ["drop", "wait", "delete", "sweep"]
    assert all(step.done <= step.total for step in seen)
    await place.check_collected(8)


async def test_everything_that_went_is_audited(place: Place) -> None:
    lines: list[str] = []
    before = await place.keys()
    async with place.collector() as collector:
        collected = await collector.collect(audit=lines.append)
    gone = before - await place.keys()
    assert {item.key for item in collected.deleted} == gone
    assert [json.loads(line)["key"] for line in lines] == [item.key for item in collected.deleted]
    first = json.loads(lines[0])
    assert first == {
        "at_us": collected.deleted[0].at_us,
        "key": layout.fragment_path(1),
        "kind": "fragment",
        "reason": "the log begins at 8, held by cursor billing",
    }
    assert collected.deleted[-1].kind == "snapshot"


async def test_a_sealed_log_is_collected(place: Place) -> None:
    """It stays sealed."""
    await place.set_manifest((await place.manifest()).seal())
    await collect(place)
    await place.check_collected(8)
    assert (await place.manifest()).is_sealed


async def test_a_call_that_does_not_wait(place: Place) -> None:
    """It drops; a later one, of another process, deletes when the time has come."""
    first = await collect(place, NO_WAIT)
    assert first.due_us == place.clock.now_us() + INTERVAL_SECONDS * 1_000_000
    assert first.deleted == ()
    assert await place.named() == place.above(8)
    assert len(await place.keys(layout.FRAGMENT_FOLDER)) == 12
    place.clock.seconds += INTERVAL_SECONDS - 1
    async with place.collector(settings=NO_WAIT) as collector:
        plan = await collector.plan()
        assert (plan.is_pending, plan.is_dropped, plan.due_us) == (True, True, first.due_us)
        assert plan.drop_bytes == 0
        assert (await collector.collect()).due_us == first.due_us
    assert len(await place.keys(layout.FRAGMENT_FOLDER)) == 12
    place.clock.seconds += 1
    await collect(place, NO_WAIT)
    await place.check_collected(8)


async def test_the_longer_interval_counts(place: Place) -> None:
    """Who restarts with a shorter one waits as long as the one who dropped said."""
    await collect(place, NO_WAIT)
    place.clock.seconds += 10
    hasty = replace(NO_WAIT, interval_seconds=1)
    assert (await collect(place, hasty)).due_us is not None
    place.clock.seconds += INTERVAL_SECONDS
    assert (await collect(place, hasty)).due_us is None
    await place.check_collected(8)


@pytest.mark.parametrize("shift_seconds", [-5000.0, 5000.0])
async def test_a_clock_that_was_wrong(place: Place, shift_seconds: float) -> None:
    """A time in the future is not believed: the interval begins anew. One in the past cannot be told."""
    place.clock.seconds += shift_seconds
    await collect(place, NO_WAIT)
    place.clock.seconds -= shift_seconds
    waited = await collect(place, NO_WAIT)
    assert (waited.due_us is None) == (shift_seconds < 0)
    place.clock.seconds += INTERVAL_SECONDS
    await collect(place, NO_WAIT)
    await place.check_collected(8)


async def test_a_damaged_record_of_heads_begins_anew(place: Place) -> None:
    await place.inner.put_if_absent(layout.HEADS, b"{")
    await collect(place)
    await place.check_collected(8)


async def test_the_record_of_heads_stays_short(place: Place) -> None:
    for cutoff in range(2, 12):
        await place.cursors.rewind("billing", cutoff)
        await collect(place, replace(SETTINGS, max_drop_fraction=1))
    heads = json.loads((await place.inner.get(layout.HEADS)).data)["heads"]
    assert len(heads) == 2
    assert heads[-1]["offset"] == 11
    assert heads[-1]["seq_no"] == 11


# -- what others began -------------------------------------------------------------------------


async def test_wal3_announced_and_died(place: Place) -> None:
    await announce(place, garbage_below(place, 6))
    collected = await collect(place)
    await place.check_collected(6)
    assert collected.deleted[0].reason == "the log begins at 6"
    await collect(place)
    await place.check_collected(8)


async def test_wal3s_writer_dropped_it_already(place: Place) -> None:
    """Nobody noted when; the interval begins now."""
    garbage = garbage_below(place, 6)
    await announce(place, garbage)
    await drop(place, garbage)
    before = place.clock.seconds
    await collect(place)
    await place.check_collected(6)
    assert place.clock.seconds - before >= INTERVAL_SECONDS


async def test_wal3_deleted_half_of_it(place: Place) -> None:
    garbage = garbage_below(place, 6)
    await announce(place, garbage)
    await drop(place, garbage)
    doomed = [key for key, _ in garbage.objects()]
    await place.inner.delete(doomed[::2])
    await collect(place)
    await place.check_collected(6)


async def test_the_snapshots_of_an_announcement_are_put_again(place: Place) -> None:
    """Its collector may have died at any time, or its snapshots may have been lost."""
    garbage = garbage_below(place, 6)
    assert garbage.snapshots_to_make
    await place.inner.put_if_absent(layout.GARBAGE, garbage.serialise())
    await collect(place)
    await place.check_collected(6)


async def test_a_snapshot_by_another_program_is_as_good(place: Place) -> None:
    """wal3 calls it a success if it exists; its bytes differ by who made it."""
    garbage = garbage_below(place, 8)
    assert garbage.snapshots_to_make
    for snapshot in garbage.snapshots_to_make:
        other = replace(snapshot, writer="somebody else")
        await place.inner.put_if_absent(snapshot.path, other.serialise())
    await collect(place)
    await place.check_collected(8)


async def test_something_else_under_a_snapshots_key(place: Place) -> None:
    garbage = garbage_below(place, 8)
    path = garbage.snapshots_to_make[0].path
    await place.inner.put_if_absent(path, snapshot_of(fragments(1)).serialise())
    with pytest.raises(CorruptionError):
        await collect(place)
    assert await place.named() == place.live


async def test_an_announcement_that_can_never_be_dropped_is_given_up(place: Place) -> None:
    """wal3 was stuck behind one for good (#4972, #5157)."""
    wrong = replace(garbage_below(place, 6), first_to_keep=7)
    await announce(place, wrong)
    await collect(place)
    await place.check_collected(8)


async def test_a_damaged_announcement_is_told(place: Place) -> None:
    await place.inner.put_if_absent(layout.GARBAGE, b"{")
    with pytest.raises(CorruptionError, match="gc/GARBAGE"):
        await collect(place)
    assert await place.named() == place.live


async def test_an_announcement_below_a_cursor_that_came_before_it(place: Place) -> None:
    """It waits, since another collector may be about to drop it; then it is given up."""
    await place.cursors.rewind("billing", 4)
    await announce(place, garbage_below(place, 6))
    before = place.clock.seconds
    await collect(place)
    await place.check_collected(4, spare_snapshots=True)
    assert place.clock.seconds - before >= 2 * INTERVAL_SECONDS


async def test_a_cursor_that_moves_on_meanwhile_lets_it_go_on(place: Place) -> None:
    await place.cursors.rewind("billing", 4)
    await announce(place, garbage_below(place, 6))

    async def move_on() -> None:
        await place.cursors.commit("billing", 9)

    place.store.on("get", call(move_on), nth=2, key_prefix="manifest/")
    place.store.on("list", call(move_on), nth=4, key_prefix="cursor/")
    await collect(place)
    await place.check_collected(6)


async def test_wal3_drops_it_although_a_cursor_holds_it(place: Place) -> None:
    """It does not look at the cursors again. What was dropped is deleted, not given up."""
    await place.cursors.rewind("billing", 4)
    garbage = garbage_below(place, 6)
    await announce(place, garbage)
    async with place.collector() as collector:
        plan = await collector.plan()
        place.store.on("get", call(lambda: drop(place, garbage)), nth=2, key_prefix="manifest/")
        collected = await collector.apply(plan)
    assert len(collected.deleted) == len(list(garbage.objects()))
    await place.check_collected(6)


async def test_an_announcement_without_cursors_is_given_up(place: Place) -> None:
    await announce(place, garbage_below(place, 6))
    await place.cursors.delete("billing")
    collected = await collect(place)
    assert collected.deleted == ()
    assert await place.named() == place.live
    assert (await place.garbage()).is_empty
