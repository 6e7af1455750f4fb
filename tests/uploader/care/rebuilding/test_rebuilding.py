"""Rebuilding a damaged log: what its fragments prove is kept, the rest is named; a plan changes nothing."""

from __future__ import annotations

import pytest

from tests.cloud import FAST, URL, cloud_values, put_fragment, snapshot
from tests.uploader.care.rebuilding.rebuild_logs import (
    MANIFEST,
    Damage,
    check,
    check_set_aside,
    cut_fragment,
    cut_manifest,
    damaged_snapshot,
    edit,
    elsewhere,
    empty_manifest,
    flipped_fragment,
    link_what_lies_there,
    make,
    no_fragment,
    no_manifest,
    no_snapshot,
    no_snapshots,
    no_snapshots_and_no_manifest,
    other_records,
    other_snapshot,
    plan,
    rebuild,
    spans,
    wrong_bytes,
    wrong_bytes_below,
    wrong_collected,
    wrong_entry_key,
    wrong_entry_limit,
    wrong_entry_number,
    wrong_entry_start,
    wrong_entry_sum,
    wrong_pointer,
    wrong_pointer_bytes,
    wrong_setsum,
)
from tests.uploader.logs import begin, collect, manifest_in, numbers
from uploader import CloudWriter
from uploader.care.admin.fork import fork
from uploader.care.admin.seal import seal
from uploader.care.rebuilding.plan import Note, Void
from uploader.care.rebuilding.rebuilding import apply_rebuild, plan_rebuild
from uploader.format import layout
from uploader.format.setsum import Setsum
from uploader.root.orphan_recovery import VOID
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, timeout
from walstore import CorruptionError, LogNotFoundError
from walstore.errors import (
    InvalidSettingsError,
    StorageUnavailableError,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        cut_manifest,
        empty_manifest,
        no_manifest,
        wrong_setsum,
        wrong_collected,
        wrong_entry_sum,
        wrong_entry_start,
        wrong_entry_limit,
        wrong_entry_number,
        wrong_entry_key,
        wrong_pointer,
        wrong_pointer_bytes,
        wrong_bytes,
        wrong_bytes_below,
        no_snapshot,
        no_snapshots,
        damaged_snapshot,
        other_snapshot,
        no_snapshots_and_no_manifest,
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [no_fragment, cut_fragment, flipped_fragment, other_records, elsewhere]
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


async def test_which_stretch_stays(store, worker) -> None:
    await make(store, worker)
    await no_fragment(store)
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


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 3])
async def test_all_fragments_are_gone_and_the_end_is_damaged(
    store, worker, tmp_path, limit
) -> None:
    """Then the log goes on behind all offsets that are named."""
    await make(store, worker, 3)
    await store.delete([layout.fragment_path(number) for number in (1, 2, 3)])
    await edit(store, lambda one: one["fragments"][-1].update(limit={"offset": limit}))
    found = await rebuild(store)
    assert (found.start, found.limit, spans(found.lost), found.choices) == (5, 5, [(1, 5)], ())
    await check(store, 5, 5, tmp_path)


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
    await no_fragment(store)
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
    await no_manifest(store)
    found = await rebuild(store, exclude={layout.fragment_path(6)})
    assert (found.start, found.limit, spans(found.lost)) == (1, 11, [])
    assert await cloud_values(store) == numbers(1, 11)


@pytest.mark.slow
async def test_two_damages_at_once(store, worker, tmp_path) -> None:
    """Below a snapshot that is lost, nothing tells which of the fragments is not what was published."""
    await make(store, worker)
    await no_snapshots(store)
    await other_records(store)
    found = await rebuild(store)
    assert spans(found.choices) == [(11, 13)] or found.start == 11 or found.limit == 13
    await check(store, found.start, found.limit, tmp_path)


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
    await wrong_setsum(store)
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
    await no_fragment(store)
    with pytest.raises(InvalidSettingsError, match=r"\[1, 7\), \[9, 13\)"):
        await plan(store, keep=8)
    with pytest.raises(InvalidSettingsError, match="keep"):
        await plan(store, keep="all")
    with pytest.raises(InvalidSettingsError, match="concurrency"):
        await plan(store, concurrency=0)


async def test_a_store_that_is_away(store, worker) -> None:
    """What cannot be read is not given up."""
    await make(store, worker)
    away = FaultyStore(store)
    away.on("get", fail(timeout("not_written")), key_prefix=layout.fragment_path(3))
    with pytest.raises(StorageUnavailableError):
        await plan_rebuild(URL, store=away)
