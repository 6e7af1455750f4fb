"""The garbage collector beside cursors, writers and other collectors, however their calls interleave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from tests.uploader.care.gc.collecting import NO_WAIT, announce, collect, drop, garbage_below
from tests.uploader.documents import fragments, rolled_up
from tests.uploader.places import INTERVAL_SECONDS, SETTINGS, Place
from uploader.care.gc import collector as collector_module
from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.garbage import Garbage
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.testing import FaultyStore
from uploader.testing.faults import (
    call,
    hang,
)
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    CollectionRefusedError,
    ContentionError,
    CorruptionError,
    OffsetTrimmedError,
)

_T = TypeVar("_T")


class InlineWorker(Worker):
    """Runs each call at once. The tests below order the calls of the store; threads add no other order."""

    async def run(self, call: Callable[..., _T], *args: object) -> _T:
        return call(*args)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give collectors no threads: starting those of a thousand takes most of the time."""
    monkeypatch.setattr(collector_module, "Worker", InlineWorker)


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


async def accepted(cursors: CloudCursors, position: int = 3) -> bool:
    """Try to make a cursor, or to move it forward; return whether it may stand."""
    try:
        await cursors.commit("late", position)
    except OffsetTrimmedError:
        return False
    except ValueError:  # it stands further on
        return False
    return True


@pytest.mark.usefixtures("inline")
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


async def begun(
    group: asyncio.TaskGroup, work: Coroutine[Any, Any, Any], reached: asyncio.Event
) -> asyncio.Task[Any]:
    """Start some work, and return when it has paused or ended."""
    task = group.create_task(work)
    task.add_done_callback(lambda _: reached.set())
    await reached.wait()
    return task


async def halt(go_on: asyncio.Event, *reached: asyncio.Event) -> None:
    """Pause until told to go on, and say so."""
    for event in reached:
        event.set()
    await go_on.wait()


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("when", ["early", "announced", "ended"])
@pytest.mark.parametrize("pauses_at", range(1, 6))
async def test_two_programs_and_a_collector_however_they_interleave(
    pauses_at: int, when: str, is_late: bool
) -> None:
    """Whoever is told that its cursor stands finds its records, though the other may have ended its change.

    The collector pauses before its nth call, a cursor before a call of its own, having begun before the
    collector or then. Another program moves the same cursor before the collector goes on, when it is about to
    look at the cursors once more, or when it has ended. The first one goes on at last.
    """
    for nth in range(1, 200):
        place = await Place.make((1,) * 6, fragments=100)
        await place.cursors.commit("billing", 6)
        store = FaultyStore(place.inner)
        late = CloudCursors(
            store, newest=place.manifest, retry=place.retry, clock=place.clock, writer="late"
        )
        go_on, paused, finish, halfway = (asyncio.Event() for _ in range(4))
        look, announced = asyncio.Event(), asyncio.Event()
        place.store.on("any", hang(go_on, paused), nth=nth)
        place.store.on(
            "list", call(partial(halt, look, announced, paused)), nth=3, key_prefix="cursor/"
        )
        store.on("any", hang(finish, halfway), nth=pauses_at)
        other = False
        async with asyncio.TaskGroup() as group:
            if is_late:
                collecting = await begun(group, collect(place), paused)
            committing = await begun(group, accepted(late), halfway)
            if not is_late:
                collecting = await begun(group, collect(place), paused)
            if when == "early":
                other = await accepted(place.cursors, 4)
            go_on.set()
            collecting.add_done_callback(lambda _, announced=announced: announced.set())
            await announced.wait()
            if when == "announced":
                other = await accepted(place.cursors, 4)
            look.set()
            await collecting
            if when == "ended":
                other = await accepted(place.cursors, 4)
            finish.set()
        first = (await place.named())[0].start
        cursor = await place.cursors.load("late")
        assert not committing.result() or first <= (4 if other else 3)
        assert not other or first <= 4
        assert (cursor is not None) == (committing.result() or other)
        assert cursor is None or (cursor.position >= first and not cursor.is_unchecked)
        if place.store.requests < nth:
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


@pytest.mark.usefixtures("inline")
@pytest.mark.slow
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


async def test_what_a_cursor_holds_is_not_left_to_writers(place: Place) -> None:
    """A collector that finds one takes back what another has said of the cursors, before it waits."""
    garbage = replace(garbage_below(place, 6), cursors_checked=True)
    await announce(place, garbage)
    early = place.tree.manifest.oldest_offset
    held = CloudCursor(name="late", position=early, epoch_us=1, writer="wal3")  # wal3 does not look
    await place.inner.put_if_absent(layout.cursor_path("late"), held.serialise())
    seen: list[bool] = []

    async def look() -> None:
        seen.append((await place.garbage()).cursors_checked)

    place.store.on("list", call(look), nth=5, key_prefix=layout.CURSOR_FOLDER)
    place.store.on("list", call(look), nth=3, key_prefix=layout.CURSOR_FOLDER)
    await collect(place)
    assert seen == [True, False]
    assert await place.named() == place.live


async def test_writers_are_told_once_the_cursors_were_looked_at(place: Place) -> None:
    """Not with the announcement itself, which cursors may not have seen yet."""
    seen: list[bool] = []

    async def look() -> None:
        seen.append((await place.garbage()).cursors_checked)

    place.store.on("put_if_match", call(look), key_prefix=layout.GARBAGE)
    place.store.on("put_if_match", call(look), key_prefix=layout.MANIFEST)
    await collect(place)
    assert seen == [False, True]
    await place.check_collected(8)


async def test_a_writer_drops_it_while_the_collector_waits(place: Place) -> None:
    """It finds it done, and waits for readers as if it had done it."""
    garbage = garbage_below(place, 8)

    async def drop_it() -> None:
        await drop(place, garbage)

    place.store.on("put_if_match", call(drop_it), key_prefix=layout.MANIFEST)
    before = place.clock.seconds
    await collect(place)
    await place.check_collected(8)
    assert place.clock.seconds - before >= INTERVAL_SECONDS
