"""Rebuilding a damaged log: what its fragments prove is kept, the rest is named; a plan changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.cloud import FAST, LOG_ID, URL, cloud_values, put_fragment, snapshot
from tests.frames import batch_of, build, values_only
from tests.uploader.logs import begin, collect, extend, manifest_in, numbers, replace, roll_up
from tests.uploader.places import LeapClock
from uploader import CloudLog, CloudWriter, CollectorSettings, GarbageCollector, RebuildPlan
from uploader.admin.destroy import destroy
from uploader.admin.fork import fork
from uploader.admin.scrubber import Scrubber
from uploader.admin.seal import seal
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.garbage import Garbage
from uploader.format.inventory import Part, part_of
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.fragments.fragment_builder import encode_fragment
from uploader.layouts.swapped_root import SwappedRoot
from uploader.rebuilding.plan import Note, Void
from uploader.rebuilding.rebuilding import apply_rebuild, plan_rebuild
from uploader.restoring.restore import restore
from uploader.root.orphan_recovery import VOID
from uploader.root.ownership import Claim
from uploader.stores import MemoryStore, RetryPolicy
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled, faults
from uploader.testing.faults import fail, happen_then_fail, timeout
from walstore import CorruptionError, LogNotFoundError, LogSealedError, Wal
from walstore.errors import (
    ContentionError,
    InvalidSettingsError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.runtime.threads import Worker

MANIFEST = layout.MANIFEST
FRAGMENTS = 6
"""Of the logs here, two records each, so they end at 13; the oldest five are rolled up."""
Damage = Callable[[MemoryStore], Awaitable[None]]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


async def make(store: ObjectStore, worker: Worker, fragments: int = FRAGMENTS) -> SwappedRoot:
    """Write a log and roll it up."""
    log = await begin(store, worker, fragments)
    await roll_up(log, store)
    return log


async def plan(store: ObjectStore, **options) -> RebuildPlan:
    """Return the plan, after checking that making it changed nothing."""
    before = await snapshot(store)
    found = await plan_rebuild(URL, store=store, **options)
    assert await snapshot(store) == before
    return found


async def rebuild(store: ObjectStore, **options) -> RebuildPlan:
    found = await plan(store, **options)
    await apply_rebuild(found, store=store, retry=FAST)
    return found


def spans(intervals: Sequence[range]) -> list[tuple[int, int]]:
    return [(one.start, one.stop) for one in intervals]


async def check(store: ObjectStore, start: int, limit: int, tmp_path) -> None:
    """Check that the log holds just these records, and that everything works on it."""
    assert await cloud_values(store) == numbers(start, limit)
    again = await plan(store)
    assert (again.is_needed, again.damages, again.lost) == (False, (), ())
    assert (again.start, again.limit) == (start, limit)
    assert {severity for severity, _ in await scrubbed(store)} <= {"note"}
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        assert await log.append(b"%d" % limit) == limit
        assert await log.append(b"%d" % (limit + 1)) == limit + 1
    target = MemoryStore()
    await fork(URL, URL, source_store=store, target_store=target)
    assert await cloud_values(target) == numbers(start, limit + 2)
    await restore(URL, tmp_path / "restored", store=store)
    async with Wal.open(tmp_path / "restored") as wal:
        assert [record.value async for record in wal.reader(follow=False)] == numbers(
            start, limit + 2
        )


async def edit(store: MemoryStore, make: Callable[[dict], object], key: str = MANIFEST) -> None:
    """Change a JSON object behind everybody's back."""
    document = json.loads((await store.get(key)).data)
    make(document)
    await replace(store, key, json.dumps(document, separators=(",", ":")).encode())


async def flip(store: MemoryStore, key: str, at: int) -> None:
    """Change one byte of an object."""
    data = bytearray((await store.get(key)).data)
    data[at] ^= 0xFF
    await replace(store, key, bytes(data))


async def other_fragment(store: MemoryStore, seq_no: int, start: int, count: int = 2) -> None:
    """Put a fragment of other records in the place of one, or where none was."""
    await store.delete([layout.fragment_path(seq_no)])
    await put_fragment(store, seq_no, start, [b"other"] * count)


async def snapshot_keys(store: ObjectStore) -> list[str]:
    return [listed.key async for listed in store.list(layout.SNAPSHOT_FOLDER)]


async def named_snapshot(store: ObjectStore) -> str:
    return (await manifest_in(store)).snapshots[0].path_to_snapshot


# -- every kind of damage --------------------------------------------------------------------


async def _cut_manifest(store: MemoryStore) -> None:
    data = (await store.get(MANIFEST)).data
    await replace(store, MANIFEST, data[: len(data) // 2])


async def _empty_manifest(store: MemoryStore) -> None:
    await replace(store, MANIFEST, b"")


async def _no_manifest(store: MemoryStore) -> None:
    await store.delete([MANIFEST])


async def _wrong_setsum(store: MemoryStore) -> None:
    await edit(store, lambda one: one.update(setsum="01" + "0" * 62))


async def _wrong_collected(store: MemoryStore) -> None:
    await edit(store, lambda one: one.update(collected="01" + "0" * 62))


async def _wrong_entry_sum(store: MemoryStore) -> None:
    await edit(store, lambda one: one["fragments"][0].update(setsum="01" + "0" * 62))


async def _wrong_entry_start(store: MemoryStore) -> None:
    await edit(store, lambda one: one["fragments"][0].update(start={"offset": 4}))


async def _wrong_entry_limit(store: MemoryStore) -> None:
    await edit(store, lambda one: one["fragments"][-1].update(limit={"offset": 99}))


async def _wrong_entry_number(store: MemoryStore) -> None:
    await edit(store, lambda one: one["fragments"][-1].update(seq_no=1))


async def _wrong_entry_key(store: MemoryStore) -> None:
    other = layout.fragment_path(6).replace("Bucket=0000", "Bucket=0100")
    await edit(store, lambda one: one["fragments"][-1].update(path=other))


async def _wrong_pointer(store: MemoryStore) -> None:
    await edit(store, lambda one: one["snapshots"][0].update(limit={"offset": 2}))


async def _wrong_bytes(store: MemoryStore) -> None:
    await edit(store, lambda one: one.update(acc_bytes=1))


async def _no_snapshot(store: MemoryStore) -> None:
    await store.delete([await named_snapshot(store)])


async def _no_snapshots(store: MemoryStore) -> None:
    await store.delete(await snapshot_keys(store))


async def _damaged_snapshot(store: MemoryStore) -> None:
    await flip(store, await named_snapshot(store), 3)


async def _other_snapshot(store: MemoryStore) -> None:
    await edit(store, lambda one: one.update(setsum="01" + "0" * 62), await named_snapshot(store))


async def _no_snapshots_and_no_manifest(store: MemoryStore) -> None:
    await _no_snapshots(store)
    await _no_manifest(store)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        _cut_manifest,
        _empty_manifest,
        _no_manifest,
        _wrong_setsum,
        _wrong_collected,
        _wrong_entry_sum,
        _wrong_entry_start,
        _wrong_entry_limit,
        _wrong_entry_number,
        _wrong_entry_key,
        _wrong_pointer,
        _wrong_bytes,
        _no_snapshot,
        _no_snapshots,
        _damaged_snapshot,
        _other_snapshot,
        _no_snapshots_and_no_manifest,
    ],
)
async def test_damaged_documents_cost_no_record(store, worker, tmp_path, damage: Damage) -> None:
    before = (await make(store, worker)).manifest
    await damage(store)
    with pytest.raises((CorruptionError, LogNotFoundError)):
        await cloud_values(store)
    found = await rebuild(store)
    assert found.damages
    assert (found.start, found.limit, found.lost, found.reassigned) == (1, 13, (), None)
    assert spans(found.choices) == [(1, 13)]
    after = await manifest_in(store)
    assert (after.setsum, after.collected) == (before.setsum, before.collected)
    assert (after.acc_bytes, after.next_seq_no) == (before.acc_bytes, before.next_seq_no)
    await check(store, 1, 13, tmp_path)


async def _no_fragment(store: MemoryStore) -> None:
    await store.delete([layout.fragment_path(4)])


async def _cut_fragment(store: MemoryStore) -> None:
    key = layout.fragment_path(4)
    await replace(store, key, (await store.get(key)).data[:100])


async def _flipped_fragment(store: MemoryStore) -> None:
    await flip(store, layout.fragment_path(4), 50)


async def _other_records(store: MemoryStore) -> None:
    await other_fragment(store, 4, 7)


async def _elsewhere(store: MemoryStore) -> None:
    await other_fragment(store, 4, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [_no_fragment, _cut_fragment, _flipped_fragment, _other_records, _elsewhere]
)
@pytest.mark.parametrize("keep", ["before", "after"])
async def test_a_hole_leaves_two_stretches(store, worker, tmp_path, damage: Damage, keep) -> None:
    before = (await make(store, worker)).manifest
    await damage(store)
    there = await snapshot(store)
    found = await rebuild(store, keep=keep)
    assert spans(found.choices) == [(1, 7), (9, 13)]
    assert [one.key for one in found.damages] == [layout.fragment_path(4)]
    after = await manifest_in(store)
    if keep == "before":
        assert (found.start, found.limit) == (1, 7)
        assert spans(found.lost) == [(7, 9), (9, 13)]
        assert found.reassigned == range(7, 13)
        assert after.collected == Setsum()
    else:
        assert (found.start, found.limit) == (9, 13)
        assert spans(found.lost) == [(1, 7), (7, 9)]
        assert found.reassigned is None
        assert after.setsum == before.setsum
        assert (after.initial_offset, after.initial_seq_no) == (9, 5)
    assert after.acc_bytes == before.acc_bytes
    await check_set_aside(store, found, there)
    await check(store, found.start, found.limit, tmp_path)


async def check_set_aside(store: ObjectStore, found: RebuildPlan, there: dict[str, bytes]) -> None:
    """Check that all that was replaced or given up is kept, byte for byte, where no collector takes it."""
    objects = await snapshot(store)
    for key, data in there.items():
        if objects.get(key) != data:
            assert key in found.set_aside
        if key in found.set_aside:
            assert found.kept_in is not None
            assert objects[found.kept_in + key + ".kept"] == data
            assert part_of(found.kept_in + key + ".kept") is Part.REBUILT
    given_up = [
        layout.fragment_path(seq_no)
        for seq_no in range(1, FRAGMENTS + 1)
        if not found.start <= 2 * seq_no - 1 < found.limit
    ]
    assert {key for key in given_up if key in there} <= {*found.set_aside}


async def test_which_stretch_stays(store, worker) -> None:
    await make(store, worker)
    await _no_fragment(store)
    for keep, start in ((None, 1), ("before", 1), (3, 1), ("after", 9), (9, 9), (12, 9)):
        assert (await plan(store, keep=keep)).start == start
    await rebuild(store, keep=9)
    assert await cloud_values(store) == numbers(9, 13)


async def test_the_first_fragment_is_gone(store, worker) -> None:
    await make(store, worker)
    await store.delete([layout.fragment_path(1)])
    found = await rebuild(store)
    assert (found.start, found.limit, spans(found.lost)) == (3, 13, [(1, 3)])
    assert await cloud_values(store) == numbers(3, 13)


async def test_the_last_fragment_is_gone(store, worker) -> None:
    await make(store, worker)
    await store.delete([layout.fragment_path(6)])
    found = await rebuild(store)
    assert (found.start, found.limit, spans(found.lost)) == (1, 11, [(11, 13)])
    assert await cloud_values(store) == numbers(1, 11)


@pytest.mark.slow
async def test_all_fragments_are_gone(store, worker, tmp_path) -> None:
    """Then the log goes on where it ended: no offset is given twice."""
    await make(store, worker, 3)
    await store.delete([layout.fragment_path(number) for number in (1, 2, 3)])
    found = await rebuild(store)
    assert (found.start, found.limit, spans(found.lost), found.choices) == (7, 7, [(1, 7)], ())
    await check(store, 7, 7, tmp_path)


async def link_what_lies_there(store: MemoryStore, seq_no: int, start: int) -> None:
    """Do what a program of wal3 does when it opens a log: link whatever lies at the next number."""
    entry = await put_fragment(store, seq_no, start, numbers(start, start + 2))
    manifest = Manifest.parse((await store.get(MANIFEST)).data)
    linked = dataclasses.replace(
        manifest,
        setsum=manifest.setsum + entry.setsum,
        acc_bytes=manifest.acc_bytes + entry.num_bytes,
        fragments=(*manifest.fragments, entry),
    )
    await replace(store, MANIFEST, linked.serialise())


@pytest.mark.slow
@pytest.mark.parametrize(("start", "keeps"), [(17, (17, 21)), (11, (11, 15))])
async def test_a_wrong_fragment_was_linked(store, worker, tmp_path, start, keeps) -> None:
    """Behind a hole, or over records that are there; and the log went on behind it."""
    await make(store, worker)
    await link_what_lies_there(store, 7, start)
    await link_what_lies_there(store, 8, start + 2)
    with pytest.raises(CorruptionError):
        await cloud_values(store)
    found = await plan(store)
    assert spans(found.choices) == [(1, 13), keeps]
    twin = MemoryStore()
    for key, data in (await snapshot(store)).items():
        await twin.put_if_absent(key, data)
    await apply_rebuild(found, store=store, retry=FAST)
    assert (await store.get(layout.fragment_path(7))).data == VOID
    await check(store, 1, 13, tmp_path / "before")
    await rebuild(twin, keep="after")
    await check(twin, *keeps, tmp_path / "after")


async def test_what_was_given_up_can_be_made_a_log_of_its_own(store, worker) -> None:
    await make(store, worker)
    await _no_fragment(store)
    found = await rebuild(store)
    aside = MemoryStore()
    for key, data in (await snapshot(store)).items():
        if key.startswith(found.kept_in):
            name = key.removeprefix(found.kept_in).removesuffix(layout.KEPT_SUFFIX)
            await aside.put_if_absent(name, data)
    await rebuild(aside)
    assert await cloud_values(aside) == numbers(9, 13)


async def test_an_excluded_fragment_counts_as_damaged(store, worker) -> None:
    await make(store, worker)
    await _no_manifest(store)
    found = await rebuild(store, exclude={layout.fragment_path(6)})
    assert (found.start, found.limit, spans(found.lost)) == (1, 11, [])
    assert await cloud_values(store) == numbers(1, 11)


@pytest.mark.slow
async def test_two_damages_at_once(store, worker, tmp_path) -> None:
    """Below a snapshot that is lost, nothing tells which of the fragments is not what was published."""
    await make(store, worker)
    await _no_snapshots(store)
    await _other_records(store)
    found = await rebuild(store)
    assert spans(found.choices) == [(11, 13)] or found.start == 11 or found.limit == 13
    await check(store, found.start, found.limit, tmp_path)


# -- sound logs, and what is none ------------------------------------------------------------


@pytest.mark.parametrize("fragments", [0, 1, 9])
async def test_a_sound_log_needs_nothing(store, worker, fragments) -> None:
    await make(store, worker, fragments)
    before = await snapshot(store)
    found = await rebuild(store)
    assert (found.is_needed, found.damages, found.notes) == (False, (), ())
    assert (found.lost, found.set_aside, found.kept_in) == ((), (), None)
    assert await snapshot(store) == before


async def test_logs_that_were_collected_sealed_or_forked_need_nothing(store, worker) -> None:
    log = await begin(store, worker, 5)
    await collect(log, store, 2)
    target = MemoryStore()
    await fork(URL, URL, source_store=store, target_store=target)
    await seal(URL, store=store)
    assert not (await plan(store)).is_needed
    assert not (await plan(target)).is_needed


async def test_what_a_writer_put_and_nobody_published_is_left_to_it(store, worker) -> None:
    await make(store, worker)
    await put_fragment(store, 7, 13, [b"next"])
    await put_fragment(store, 9, 20, [b"behind a hole"])
    assert not (await plan(store)).is_needed
    await _wrong_setsum(store)
    await rebuild(store)
    assert (await store.get(layout.fragment_path(9))).data != VOID
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        assert log.tail == 14


async def test_a_forged_note_clears_nothing_away(store, worker) -> None:
    await make(store, worker)
    await put_fragment(store, 7, 13, [b"next"])
    etag = (await store.get(layout.fragment_path(7))).etag
    note = Note(1, 13, "", (), (Void(layout.fragment_path(7), etag),))
    await store.put_if_absent(layout.rebuild_note("0" * 16), note.serialise())
    assert not (await plan(store)).is_needed


@pytest.mark.slow
async def test_what_is_no_fragment_behind_the_end(store, worker, tmp_path) -> None:
    """No writer gets past it."""
    await make(store, worker)
    await store.put_if_absent(layout.fragment_path(7), b"junk")
    with pytest.raises(CorruptionError):
        async with CloudWriter.open(URL, store=store, retry=FAST):
            pass
    found = await rebuild(store)
    assert found.set_aside == (layout.fragment_path(7),)
    assert (await store.get(found.kept_in + layout.fragment_path(7) + ".kept")).data == b"junk"
    await check(store, 1, 13, tmp_path)


async def test_where_there_is_nothing(store) -> None:
    with pytest.raises(LogNotFoundError, match="no fragments"):
        await plan(store)
    await store.put_if_absent(MANIFEST, b"junk")
    with pytest.raises(LogNotFoundError, match="no fragments"):
        await plan(store)


async def test_the_other_layout(store) -> None:
    async with CloudWriter.open(URL, store=store, retry=FAST, layout="chain") as log:
        await log.append(b"x")
    with pytest.raises(InvalidSettingsError, match="chain"):
        await plan(store)


async def test_bad_arguments(store, worker) -> None:
    await make(store, worker)
    await _no_fragment(store)
    with pytest.raises(InvalidSettingsError, match=r"\[1, 7\), \[9, 13\)"):
        await plan(store, keep=8)
    with pytest.raises(InvalidSettingsError, match="keep"):
        await plan(store, keep="all")
    with pytest.raises(InvalidSettingsError, match="parallel"):
        await plan(store, parallel=0)


async def test_a_store_that_is_away(store, worker) -> None:
    """What cannot be read is not given up."""
    await make(store, worker)
    away = FaultyStore(store)
    away.on("get", fail(timeout("not_written")), key_prefix=layout.fragment_path(3))
    with pytest.raises(StorageUnavailableError):
        await plan_rebuild(URL, store=away)


# -- the end of a log's life -----------------------------------------------------------------


@pytest.mark.parametrize("damage", [_no_fragment, _no_manifest, _wrong_setsum])
async def test_a_sealed_log_stays_sealed(store, worker, damage: Damage) -> None:
    await make(store, worker)
    await seal(URL, store=store)
    await damage(store)
    found = await rebuild(store)
    assert found.is_sealed
    assert await cloud_values(store) == numbers(1, found.limit)
    assert not (await plan(store)).is_needed
    with pytest.raises(LogSealedError):
        async with CloudWriter.open(URL, store=store, retry=FAST) as log:
            await log.append(b"x")
    assert b"sealed" in (await store.get(layout.fragment_path(found.next_seq_no))).data


async def test_a_destroyed_log_stays_destroyed(store, worker) -> None:
    await make(store, worker)
    await destroy(URL, confirm=True, store=store)
    await put_fragment(store, 1, 1, [b"late"])
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await plan(store)


async def test_a_log_that_is_destroyed_meanwhile(store, worker) -> None:
    await make(store, worker)
    await _no_manifest(store)
    found = await plan(store)
    await store.put_if_absent(layout.TOMBSTONE, b"{}")
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await apply_rebuild(found, store=store)
    assert await store.head(MANIFEST) is None


async def test_destroying_takes_the_copies_as_well(store, worker) -> None:
    await make(store, worker)
    await _no_fragment(store)
    await rebuild(store)
    assert (await destroy(URL, confirm=True, store=store)).left == ()
    assert [*await snapshot(store)] == [layout.TOMBSTONE]


# -- collectors, cursors and writers ---------------------------------------------------------


@pytest.mark.slow
async def test_what_was_collected_does_not_come_back(store, worker, tmp_path) -> None:
    """A collector dropped fragments, noted it, and has deleted some of them; then the manifest was lost."""
    log = await begin(store, worker, 6)
    clock, dying = LeapClock(), FaultyStore(store)
    retry = RetryPolicy(clock=clock)
    dying.on("delete", faults.kill())
    with pytest.raises(StoreKilled):
        async with GarbageCollector.open(URL, store=dying, retry=retry, clock=clock) as collector:
            await collector.cursors.commit("reader", 7)
            await collector.collect()
    await log.load()
    assert log.manifest.oldest_offset == 7
    await store.delete([layout.fragment_path(2)])
    await _no_manifest(store)
    found = await rebuild(store)
    assert (found.start, found.limit, found.lost) == (7, 13, ())
    assert (await store.get(layout.GARBAGE)).data == Garbage().serialise()
    await check(store, 7, 13, tmp_path)


@pytest.mark.slow
async def test_sums_of_what_was_collected_stay(store, worker, tmp_path) -> None:
    log = await begin(store, worker, 6)
    await collect(log, store, 2)
    before = log.manifest
    await store.delete([layout.fragment_path(6)])
    found = await rebuild(store)
    assert (found.start, found.limit) == (5, 11)
    assert (await manifest_in(store)).collected == before.collected
    await check(store, 5, 11, tmp_path)


async def test_collectors_keep_what_was_set_aside(store, worker) -> None:
    await make(store, worker)
    await _no_fragment(store)
    found = await rebuild(store, keep="after")
    kept = {key for key in await snapshot(store) if key.startswith(found.kept_in)}
    settings = CollectorSettings(interval_seconds=0.0, delete_pause_seconds=0.0)
    async with GarbageCollector.open(
        URL, store=FaultyStore(store), retry=FAST, settings=settings
    ) as collector:
        await collector.cursors.commit("reader", 11)
        await collector.collect()
        await collector.sweep()
    objects = await snapshot(store)
    assert kept <= {*objects}
    assert layout.fragment_path(1) not in objects


async def test_cursors_are_named_and_left_alone(store, worker) -> None:
    await make(store, worker)
    async with CloudLog.open(URL, store=store) as log:
        await log.cursors.commit("fast", 12)
        await log.cursors.commit("slow", 3)
        await log.cursors.commit("gone", 3)
        await log.cursors.delete("gone")
    await _no_fragment(store)
    before = await snapshot(store)
    assert (await plan(store, keep="after")).notes == (
        "cursor slow stands at 3, before the new beginning",
    )
    found = await rebuild(store)
    assert found.notes == ("cursor fast stands at 12, behind the new end",)
    after = await snapshot(store)
    assert {key: after[key] for key in before if key.startswith("cursor/")} == {
        key: data for key, data in before.items() if key.startswith("cursor/")
    }


async def test_a_writer_that_is_open_publishes_nothing_more(store, worker) -> None:
    log = await make(store, worker)
    await _no_fragment(store)
    await rebuild(store)
    with pytest.raises(CorruptionError):
        await extend(log, store)
    assert await cloud_values(store) == numbers(1, 7)


async def test_a_directory_has_to_claim_what_lost_its_manifest(store, worker) -> None:
    """A newer directory may have claimed it, and put nothing yet."""
    claim = Claim(bytes.fromhex(LOG_ID), 3, "0123456789abcdef")
    log = SwappedRoot(store, FAST, worker)
    await log.load_or_create(claim.name)
    await _put_as(store, log, claim)
    await _no_manifest(store)
    found = await rebuild(store)
    made = Claim.parse(found.writer)
    assert made is not None
    assert (made.log_id, made.epoch) == (claim.log_id, 4)
    assert any("take_over=True" in note for note in found.notes)
    with pytest.raises(WalError):
        await _put_as(store, log, claim)


async def test_what_a_directory_put_that_had_lost_the_prefix_is_no_part_of_it(
    store, worker
) -> None:
    identity = bytes.fromhex(LOG_ID)
    newer = Claim(identity, 2, "0123456789abcdef")
    log = SwappedRoot(store, FAST, worker)
    await log.load_or_create(newer.name)
    await _put_as(store, log, newer)
    await _no_manifest(store)
    await _put(store, Claim(identity, 1, "fedcba9876543210").name, 2, 3)
    found = await plan(store)
    assert (found.start, found.limit) == (1, 3)


@pytest.mark.parametrize("maker", ["walstore-writer 0123456789abcdef", "walstore sealed, was: x"])
async def test_who_wrote_a_log_that_lost_its_manifest(store, maker) -> None:
    """Only what can be the name of a writer is taken for one."""
    await _put(store, maker, 1, 1)
    found = await plan(store)
    assert found.writer == (maker if "-writer" in maker else "walstore rebuild")
    assert not found.is_sealed


async def test_the_writer_that_the_caller_names(store, worker) -> None:
    await make(store, worker)
    await _no_manifest(store)
    found = await rebuild(store, writer="walstore " + LOG_ID)
    assert (await manifest_in(store)).writer == found.writer == "walstore " + LOG_ID
    assert not any("take_over" in note for note in found.notes)


async def _put_as(store: MemoryStore, log: SwappedRoot, claim: Claim) -> None:
    """Append a fragment as a directory would."""
    end = log.manifest.next_seq_no, log.manifest.next_offset
    await log.publish([await _put(store, claim.name, *end)], claim.name)


async def _put(store: MemoryStore, maker: str, seq_no: int, start: int) -> Fragment:
    """Put a fragment that says who made it."""
    batch = batch_of(build(values_only(b"x", b"y", start=start)))
    encoded = encode_fragment([batch], timestamp_us=7, writer=maker)
    await store.put_if_absent(layout.fragment_path(seq_no), encoded.data)
    return encoded.entry(seq_no)


# -- faults ----------------------------------------------------------------------------------


async def test_a_manifest_that_changed_since_the_plan_is_not_replaced(store, worker) -> None:
    await make(store, worker)
    await _wrong_setsum(store)
    found = await plan(store)
    await _wrong_collected(store)
    before = (await store.get(MANIFEST)).data
    with pytest.raises(ContentionError, match="changed since"):
        await apply_rebuild(found, store=store, retry=FAST)
    assert (await store.get(MANIFEST)).data == before


async def test_a_manifest_that_came_back_since_the_plan_is_not_replaced(store, worker) -> None:
    log = await make(store, worker)
    await _no_manifest(store)
    found = await plan(store)
    await store.put_if_absent(MANIFEST, log.manifest.serialise())
    with pytest.raises(ContentionError, match="changed since"):
        await apply_rebuild(found, store=store, retry=FAST)
    assert await manifest_in(store) == log.manifest


async def test_a_plan_may_be_carried_out_twice(store, worker) -> None:
    await make(store, worker)
    await _no_fragment(store)
    found = await rebuild(store)
    once = await snapshot(store)
    await apply_rebuild(found, store=store, retry=FAST)
    assert await snapshot(store) == once
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        await log.append(b"7")
    with pytest.raises(ContentionError):
        await apply_rebuild(found, store=store, retry=FAST)
    assert await cloud_values(store) == numbers(1, 8)


async def test_a_log_that_changes_while_it_is_read(store, worker) -> None:
    """Damage is only believed if the manifest stayed the same."""
    log = await make(store, worker)
    moving = FaultyStore(store)
    await _no_fragment(store)

    async def move() -> None:
        await extend(log, store)

    moving.on("head", faults.call(move), times=9, key_prefix=layout.FORK_NOTE)
    with pytest.raises(ContentionError, match="changes while it is read"):
        await plan_rebuild(URL, store=moving)


async def test_lost_answers(store, worker) -> None:
    await make(store, worker)
    await _no_fragment(store)
    found = await plan(store)
    lossy = FaultyStore(store)
    for kind in ("put_if_absent", "put_if_match"):
        lossy.on(kind, happen_then_fail(timeout()), times=3)
    await apply_rebuild(found, store=lossy, retry=FAST)
    assert await cloud_values(store) == numbers(1, 7)


@pytest.mark.slow
async def test_a_store_that_never_says_what_became_of_a_put(store, worker, tmp_path) -> None:
    await make(store, worker)
    await _no_fragment(store)
    found = await plan(store)
    silent = FaultyStore(store)
    silent.on("put_if_match", happen_then_fail(timeout()), key_prefix=MANIFEST)
    silent.on("get", fail(timeout("not_written")), nth=2, times=4, key_prefix=MANIFEST)
    with pytest.raises(OutcomeUnknownError, match="rebuild again"):
        await apply_rebuild(found, store=silent, retry=FAST)
    again = await rebuild(store)
    assert again.is_needed
    await check(store, 1, 7, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
@pytest.mark.parametrize("damage", [_no_fragment, _no_manifest, _other_snapshot])
async def test_it_may_die_at_any_call(worker, damage: Damage, fault) -> None:
    """Then the log is the damaged one, or holds what it is to hold; and another rebuild finishes it."""
    origin = MemoryStore()
    await make(origin, worker)
    await damage(origin)
    damaged = await snapshot(origin)
    calls = FaultyStore(MemoryStore())
    for key, data in damaged.items():
        await calls.inner.put_if_absent(key, data)
    found = await plan(calls.inner)
    before = calls.requests
    await apply_rebuild(found, store=calls, retry=FAST)
    done = await snapshot(calls.inner)
    for at in range(calls.requests - before):
        store = MemoryStore()
        for key, data in damaged.items():
            await store.put_if_absent(key, data)
        found = await plan(store)
        dying = FaultyStore(store)
        dying.on("any", fault(), nth=at + 1)
        with pytest.raises(StoreKilled):
            await apply_rebuild(found, store=dying, retry=FAST)
        try:
            held = await cloud_values(store)
        except (CorruptionError, LogNotFoundError):
            assert damaged.get(MANIFEST) == (await snapshot(store)).get(MANIFEST)
        else:
            assert held == numbers(found.start, found.limit)
        await rebuild(store)
        assert not (await plan(store)).is_needed
        assert await cloud_values(store) == numbers(found.start, found.limit)
        left = await snapshot(store)
        assert {key: data for key, data in left.items() if not key.startswith("rebuilt/")} == {
            key: data for key, data in done.items() if not key.startswith("rebuilt/")
        }
        for key in found.set_aside:
            assert left[found.kept_in + key + ".kept"] == damaged[key]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_no_fragment, _no_manifest])
async def test_requests_that_arrive_an_hour_late(worker, damage: Damage) -> None:
    """They change nothing that was done since."""
    for at in range(1, 12):
        store = MemoryStore()
        await make(store, worker)
        await damage(store)
        found = await plan(store)
        slow = FaultyStore(store)
        for kind in ("put_if_absent", "put_if_match"):
            slow.on(kind, faults.postpone(slow.late, timeout()), nth=at, times=9)
        with contextlib.suppress(OutcomeUnknownError):
            await apply_rebuild(found, store=slow, retry=FAST)
        await rebuild(store)
        held = numbers(found.start, found.limit)
        assert await cloud_values(store) == held
        async with CloudWriter.open(URL, store=store, retry=FAST) as log:
            for _ in range(3):
                await log.append(b"more")
        await slow.deliver()
        assert await cloud_values(store) == [*held, *[b"more"] * 3]


@pytest.mark.slow
async def test_nobody_appends_before_it_has_ended(store, worker, tmp_path) -> None:
    """Else a writer could publish what the rebuild is about to clear away."""
    await make(store, worker)
    await _no_fragment(store)
    found = await plan(store)
    dying = FaultyStore(store)
    dying.on("put_if_match", faults.kill(), key_prefix=layout.fragment_path(5))
    with pytest.raises(StoreKilled):
        await apply_rebuild(found, store=dying, retry=FAST)
    assert await cloud_values(store) == numbers(1, 7)
    with pytest.raises(LogSealedError, match="rebuild it again"):
        async with CloudWriter.open(URL, store=store, retry=FAST) as log:
            await log.append(b"x")
    with pytest.raises(ContentionError, match="being rebuilt"):
        await seal(URL, store=store)
    assert ("warning", MANIFEST) in await scrubbed(store)
    again = await rebuild(store)
    assert again.is_needed
    assert again.damages
    await check(store, 1, 7, tmp_path)


async def test_a_scrub_knows_the_copies(store, worker) -> None:
    await make(store, worker)
    await _no_fragment(store)
    found = await rebuild(store)
    assert ("note", found.kept_in) in await scrubbed(store)
    objects = [key for key in await snapshot(store) if key.startswith(found.kept_in)]
    assert len(objects) == len(found.set_aside) + 1


async def scrubbed(store: ObjectStore) -> list[tuple[str, str]]:
    """Return what a scrub finds, each with its severity and the key of its object."""
    async with Scrubber.open(URL, store=store, retry=FAST) as scrubber:
        report = await scrubber.scrub()
    return [(str(one.severity), one.key) for one in report.findings]
