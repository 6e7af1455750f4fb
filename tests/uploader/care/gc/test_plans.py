"""What a collection would take: the lowest cursor counts, and settings limit it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.uploader.care.gc.collecting import collect
from tests.uploader.places import SETTINGS, Place
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.stores.memory import MemoryStore
from uploader.testing.faults import (
    call,
)
from walstore.errors import (
    CollectionRefusedError,
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
)


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
    """As an earlier version could leave one."""
    place = await Place.make()
    left = CloudCursor(name="billing", position=1000, epoch_us=0, writer="an earlier version")
    await place.store.put_if_absent(layout.cursor_path(left.name), left.serialise())
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
