"""The garbage collector, step by step, alone and beside others."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.uploader.documents import fragments, rolled_up, snapshot_of
from tests.uploader.places import INTERVAL_SECONDS, SETTINGS, Place
from uploader import layout
from uploader.cas import create
from uploader.collecting.collection import CollectorSettings, Progress
from uploader.collecting.collector import GarbageCollector
from uploader.collecting.garbage import Garbage, apply_garbage
from uploader.collecting.garbage_plan import plan_garbage
from uploader.cursors.cloud_cursors import CloudCursors
from uploader.stores.memory import MemoryStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import (
    Fault,
    call,
    fail,
    hang,
    happen_then_fail,
    happen_then_kill,
    kill,
    timeout,
)
from walstore.errors import (
    CollectionRefusedError,
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

NO_WAIT = replace(SETTINGS, max_wait_seconds=0)


@pytest.fixture
async def place() -> Place:
    """A log of twelve fragments with one record each, rolled up, and a cursor at 8."""
    made = await Place.make()
    await made.cursors.commit("billing", 8)
    return made


async def collect(place: Place, settings: CollectorSettings = SETTINGS, *, inner: bool = False):
    async with place.collector(place.inner if inner else None, settings) as collector:
        return await collector.collect()


def garbage_below(place: Place, cutoff: int) -> Garbage:
    """Return what wal3, or another collector, would announce."""
    cut = plan_garbage(place.tree.manifest, cutoff, place.tree.snapshots)
    assert cut is not None
    return cut.garbage


async def announce(place: Place, garbage: Garbage) -> None:
    for snapshot in garbage.snapshots_to_make:
        await place.inner.put_if_absent(snapshot.path, snapshot.serialise())
    await place.inner.put_if_absent(layout.GARBAGE, garbage.serialise())


async def drop(place: Place, garbage: Garbage) -> None:
    after = apply_garbage(await place.manifest(), garbage)
    assert after is not None
    await place.set_manifest(after)


# -- planning ----------------------------------------------------------------------------------


async def test_no_cursor_no_collection() -> None:
    place = await Place.make()
    async with place.collector() as collector:
        plan = await collector.plan()
        assert plan.is_empty
        assert (plan.cutoff.offset, plan.cutoff.held_by) == (1, "no cursor")
        collected = await collector.collect()
        assert (collected.head, collected.deleted) == (1, ())
    assert layout.GARBAGE not in await place.keys()
    assert await place.named() == place.live


async def test_a_plan_changes_nothing(place: Place) -> None:
    before = await place.keys()
    async with place.collector() as collector:
        plan = await collector.plan()
    assert (plan.head, plan.tail, plan.records, plan.fragments) == (1, 13, 7, 7)
    assert (plan.drop_bytes, plan.live_bytes) == (700, 1200)
    assert (plan.cutoff.offset, plan.cutoff.held_by) == (8, "cursor billing")
    assert [cursor.name for cursor in plan.cursors] == ["billing"]
    assert (plan.is_pending, plan.is_dropped, plan.due_us, plan.has_more) == (
        False,
        False,
        None,
        False,
    )
    assert plan.findings == ()
    assert await place.keys() == before
    assert not place.store.count("put_if_absent").requests + place.store.count("delete").requests


async def test_the_lowest_cursor_counts(place: Place) -> None:
    await place.cursors.commit("audit", 4)
    await place.cursors.pin("report", 3, seconds=60)
    async with place.collector() as collector:
        assert (await collector.plan()).cutoff.held_by == "cursor report"
        place.clock.seconds += 60
        assert (await collector.plan()).cutoff.held_by == "cursor audit"


async def test_only_expired_pins_are_no_cursor() -> None:
    place = await Place.make()
    await place.cursors.pin("report", 3, seconds=60)
    place.clock.seconds += 60
    async with place.collector() as collector:
        assert (await collector.plan()).cutoff.held_by == "no cursor"


async def test_a_cursor_beyond_the_end_keeps_nothing_more_than_there_is() -> None:
    place = await Place.make()
    await place.cursors.commit("billing", 1000)
    async with place.collector() as collector:
        plan = await collector.plan()
    assert (plan.cutoff.offset, plan.cutoff.held_by) == (13, "end of the log")
    assert "100" not in plan.cutoff.held_by
    assert len(plan.findings) == 1
    assert "max_drop_fraction" in plan.findings[0]


async def test_a_plan_that_takes_too_much_is_refused(place: Place) -> None:
    """Unless it is allowed."""
    async with place.collector(settings=replace(SETTINGS, max_drop_fraction=0.5)) as collector:
        plan = await collector.plan()
        assert plan.findings
        with pytest.raises(CollectionRefusedError, match="700 of the log's 1200 bytes"):
            await collector.apply(plan)
    assert await place.named() == place.live
    await collect(place, replace(SETTINGS, max_drop_fraction=0.6))
    await place.check_collected(8)


@pytest.mark.parametrize(("keep_bytes", "offset"), [(1, 8), (500, 8), (501, 7), (600, 7), (750, 5)])
async def test_keep_bytes(place: Place, keep_bytes: int, offset: int) -> None:
    """The newest fragments stay until they have so many bytes, however deep they lie."""
    async with place.collector(settings=replace(SETTINGS, keep_bytes=keep_bytes)) as collector:
        plan = await collector.plan()
    assert plan.cutoff.offset == offset
    assert plan.cutoff.held_by == ("keep_bytes" if offset < 8 else "cursor billing")


@pytest.mark.parametrize("keep_bytes", [1200, 1201, 1 << 60])
async def test_keep_bytes_keeps_all(place: Place, keep_bytes: int) -> None:
    async with place.collector(settings=replace(SETTINGS, keep_bytes=keep_bytes)) as collector:
        assert (await collector.plan()).is_empty


async def test_a_limited_plan_leaves_the_rest_to_the_next(place: Place) -> None:
    limited = replace(SETTINGS, max_fragments=3)
    async with place.collector(settings=limited) as collector:
        for cutoff, has_more in [(4, True), (7, True), (8, False)]:
            assert (await collector.plan()).has_more == has_more
            await collector.collect()
            await place.check_collected(cutoff)
        assert (await collector.plan()).is_empty


async def test_a_limited_plan_reads_no_more_than_it_takes() -> None:
    """A log of years is collected in small steps."""
    place = await Place.make((1,) * 200, fragments=4, snapshots=50)
    await place.cursors.commit("billing", 190)
    async with place.collector(settings=replace(SETTINGS, max_fragments=9)) as collector:
        before = place.store.count("get").requests
        plan = await collector.plan()
        assert place.store.count("get").requests - before < 10
    assert (plan.fragments, plan.has_more) == (9, True)


async def test_a_foreign_object_among_the_cursors_stops_it(place: Place) -> None:
    """It might be a cursor that somebody relies on; wal3 stops, too."""
    await place.inner.put_if_absent("cursor/billing.bak", b"")
    with pytest.raises(CorruptionError):
        await collect(place)
    assert await place.named() == place.live


async def test_cursors_that_go_back_while_the_manifest_is_read(place: Place) -> None:
    """They are read again, until nothing lies below what was read first."""
    place.store.on("get", call(lambda: place.cursors.rewind("billing", 5)), nth=4)
    async with place.collector() as collector:
        assert (await collector.plan()).cutoff.offset == 5


async def test_no_log() -> None:
    with pytest.raises(LogNotFoundError):
        await GarbageCollector.open("memory://ignored", store=MemoryStore())


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_seconds": -1},
        {"interval_seconds": float("nan")},
        {"keep_bytes": -1},
        {"keep_seconds": -1},
        {"max_fragments": 0},
        {"max_drop_fraction": 0},
        {"max_drop_fraction": 1.1},
        {"delete_batch": 0},
        {"delete_batch": 1001},
        {"delete_pause_seconds": -1},
        {"max_wait_seconds": -1},
    ],
)
def test_settings_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSettingsError):
        CollectorSettings(**wrong)  # type: ignore[arg-type]


# -- collecting --------------------------------------------------------------------------------


@pytest.mark.parametrize("cutoff", range(1, 15))
@pytest.mark.parametrize(("fragments", "snapshots"), [(2, 2), (3, 2), (100, 2)])
async def test_a_collection_at_every_offset(cutoff: int, fragments: int, snapshots: int) -> None:
    """Exactly the whole fragments below the cursor go, with their snapshots."""
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


# -- races -------------------------------------------------------------------------------------


async def test_a_cursor_between_the_plan_and_the_announcement(place: Place) -> None:
    """It finds no announcement and may stand; the collector sees it before it drops anything."""
    place.store.on(
        "put_if_absent",
        call(lambda: place.cursors.commit("late", 3)),
        key_prefix=layout.GARBAGE,
    )
    await collect(place)
    await place.check_collected(3, spare_snapshots=True)
    await place.cursors.delete("late")
    await collect(place)
    await place.check_collected(8)


async def test_a_cursor_after_the_announcement(place: Place) -> None:
    """It finds the announcement, and is told that it came too late."""

    async def come_late() -> None:
        with pytest.raises(OffsetTrimmedError):
            await place.cursors.commit("late", 3)

    place.store.on("put_if_match", call(come_late), key_prefix="manifest/")
    await collect(place)
    await place.check_collected(8)


async def accepted(cursors: CloudCursors) -> bool:
    """Try to make a cursor at 3; return whether it may stand."""
    try:
        await cursors.commit("late", 3)
    except OffsetTrimmedError:
        return False
    return True


@pytest.mark.parametrize("pauses_at", range(1, 7))
async def test_a_new_cursor_however_its_calls_and_the_collectors_interleave(pauses_at: int) -> None:
    """If it is accepted, its records stay; if it is not, there is none.

    The collector pauses before its nth call, the cursor runs up to a call of its own and pauses, the
    collector runs to its end, and the cursor goes on.
    """
    outcomes = set()
    for nth in range(1, 200):
        place = await Place.make((1,) * 5, fragments=100)
        await place.cursors.commit("billing", 5)
        cursor_store = FaultyStore(place.inner)
        late = CloudCursors(
            cursor_store, newest=place.manifest, retry=place.retry, clock=place.clock, writer="late"
        )
        go_on, paused, finish, halfway = (asyncio.Event() for _ in range(4))
        place.store.on("any", hang(go_on, paused), nth=nth)
        cursor_store.on("any", hang(finish, halfway), nth=pauses_at)
        async with asyncio.TaskGroup() as group:
            collecting = group.create_task(collect(place))
            collecting.add_done_callback(lambda _, paused=paused: paused.set())
            await paused.wait()
            committing = group.create_task(accepted(late))
            committing.add_done_callback(lambda _, halfway=halfway: halfway.set())
            await halfway.wait()
            go_on.set()
            await collecting
            finish.set()
        outcomes.add(committing.result())
        cursor = await place.cursors.load("late")
        if committing.result():
            assert cursor is not None
            assert (await place.named())[0].start <= 3
        else:
            assert cursor is None
            # At 3 if the collector saw the cursor before it was taken back.
            assert (await place.named())[0].start in {3, 5}
        if place.store.requests < nth:
            # Until it is put, nobody can see it.
            assert outcomes == ({False} if pauses_at < 3 else {True, False})
            return
    pytest.fail("it never got to its end")


async def test_a_roll_up_between_plan_and_drop(place: Place) -> None:
    """Planned again on top of it (wal3 #5157)."""
    wide = await Place.make((1,) * 6, fragments=100)
    await wide.cursors.commit("billing", 4)

    async def roll_up() -> None:
        manifest, snapshot = rolled_up(await wide.manifest(), 5)
        await wide.inner.put_if_absent(snapshot.path, snapshot.serialise())
        await wide.set_manifest(manifest)

    wide.store.on("put_if_absent", call(roll_up), key_prefix=layout.GARBAGE)
    await collect(wide)
    await wide.check_collected(4)


async def test_appends_between_plan_and_drop(place: Place) -> None:
    """The swap is made again on top of them."""
    added = 0

    async def append() -> None:
        nonlocal added
        added += 1
        manifest = await place.manifest()
        more = fragments(1, seq_no=manifest.next_seq_no, start=manifest.next_offset)
        await place.inner.put_if_absent(more[0].path, b"fragment")
        await place.set_manifest(manifest.apply_fragments(more, "writer"))

    place.store.on("put_if_match", call(append), key_prefix="manifest/", times=3)
    await collect(place)
    manifest = await place.manifest()
    assert (manifest.oldest_offset, manifest.next_offset) == (8, 13 + added)
    assert added == 3


async def test_looking_at_cursors_too_long_before_the_drop(place: Place) -> None:
    """A process that was stopped in between has to look again."""

    async def stop() -> None:
        place.clock.seconds += INTERVAL_SECONDS
        manifest = await place.manifest()
        await place.set_manifest(replace(manifest, writer="somebody"))

    place.store.on("put_if_match", call(stop), key_prefix="manifest/")
    async with place.collector() as collector:
        plan = await collector.plan()
        with pytest.raises(ContentionError, match="from the cursors to the manifest"):
            await collector.apply(plan)
    assert await place.named() == place.live
    await collect(place)
    await place.check_collected(8)


async def test_given_up_by_another_before_the_drop(place: Place) -> None:
    """Without an announcement a new cursor would not be warned, so nothing is dropped."""

    async def give_up() -> None:
        etag = (await place.inner.get(layout.GARBAGE)).etag
        await place.inner.put_if_match(layout.GARBAGE, Garbage().serialise(), etag)

    async with place.collector() as collector:
        plan = await collector.plan()
        place.store.on("get", call(give_up), nth=2, key_prefix=layout.GARBAGE)
        with pytest.raises(ContentionError, match="given it up"):
            await collector.apply(plan)
    assert await place.named() == place.live


async def test_another_cursor_holds_it_after_the_wait(place: Place) -> None:
    """Then it is not given up yet: a collector that looked in between may have seen neither."""
    await place.cursors.rewind("billing", 4)
    await announce(place, garbage_below(place, 6))

    async def change_over() -> None:
        await place.cursors.commit("billing", 9)
        late = replace(await place.cursors.load("billing"), position=5)  # type: ignore[type-var]
        await place.inner.put_if_absent("cursor/late.json", late.serialise())

    place.store.on("list", call(change_over), nth=4, key_prefix="cursor/")
    async with place.collector() as collector:
        with pytest.raises(ContentionError, match="cursor late"):
            await collector.apply(await collector.plan())
    assert not (await place.garbage()).is_empty
    await place.cursors.delete("late")
    await collect(place)
    await place.check_collected(6)


async def test_a_snapshot_that_is_missing_is_damage(place: Place) -> None:
    first = (await place.manifest()).snapshots[0]
    await place.inner.delete([first.path_to_snapshot])
    with pytest.raises(CorruptionError, match="snapshot is missing"):
        await collect(place)


async def test_a_snapshot_that_another_collector_deleted_is_not(place: Place) -> None:
    """One that does not wait, such as wal3's: the plan is made for the newer manifest."""
    first = (await place.manifest()).snapshots[0]

    async def collect_at_once() -> None:
        await place.cursors.rewind("billing", 5)
        await collect(place, replace(SETTINGS, interval_seconds=0), inner=True)
        await place.cursors.commit("billing", 8)

    place.store.on("get", call(collect_at_once), key_prefix=first.path_to_snapshot)
    async with place.collector() as collector:
        plan = await collector.plan()
    assert (plan.head, plan.garbage.start_seq_no, plan.garbage.first_to_keep) == (5, 5, 8)


async def test_two_collectors_wherever_the_other_comes_in(place: Place) -> None:
    """One runs from start to end before any one call of the other (wal3 #4834: wrong garbage deleted)."""
    for nth in range(1, 200):
        place = await Place.make()
        await place.cursors.commit("billing", 6)
        reached = False

        async def interfere(place: Place = place) -> None:
            nonlocal reached
            reached = True
            await place.cursors.commit("billing", 8)
            await collect(place, inner=True)

        place.store.on("any", call(interfere), nth=nth)
        await collect(place)
        await collect(place)
        await place.check_collected(8 if reached else 6)
        if not reached:
            return
    pytest.fail("it never got to its end")


async def test_one_that_slept_over_anothers_collections(place: Place) -> None:
    """It finds that its garbage is not announced any more, and deletes nothing."""

    async def others() -> None:
        await collect(place, inner=True)
        await place.cursors.commit("billing", 10)
        await collect(place, replace(NO_WAIT, max_drop_fraction=1), inner=True)

    async with place.collector() as collector:
        plan = await collector.plan()
        place.store.on("get", call(others), nth=1, key_prefix=layout.HEADS)
        collected = await collector.apply(plan)
    assert collected.is_superseded
    assert collected.deleted == ()


async def test_a_plan_that_is_out_of_date(place: Place) -> None:
    async with place.collector() as collector:
        plan = await collector.plan()
        await collect(place, inner=True)
        with pytest.raises(ContentionError):
            await collector.apply(plan)
    await place.check_collected(8)


async def test_what_the_manifest_names_is_never_deleted(place: Place) -> None:
    """The last look before deleting: a pending collection that lists a snapshot in use is refused."""
    garbage = garbage_below(place, 8)
    await announce(place, garbage)
    await drop(place, garbage)
    in_use = (await place.manifest()).snapshots[0]
    wrong = replace(garbage, snapshots_to_drop=(*garbage.snapshots_to_drop, in_use))
    etag = (await place.inner.get(layout.GARBAGE)).etag
    await place.inner.put_if_match(layout.GARBAGE, wrong.serialise(), etag)
    with pytest.raises(CollectionRefusedError):
        await collect(place)
    assert await place.named() == place.above(8)


# -- dying, and lost answers -------------------------------------------------------------------


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


async def test_a_sweep_of_a_log_that_was_never_collected_costs_nothing() -> None:
    place = await Place.make()
    async with place.collector() as collector:
        before = place.store.requests
        assert await collector.sweep() == ()
        assert place.store.requests == before + 1
    assert layout.HEADS not in await place.keys()
