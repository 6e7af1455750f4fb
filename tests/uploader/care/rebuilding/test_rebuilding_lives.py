"""Rebuilding beside the rest of a log's life: sealed, destroyed, collected, written and read logs."""

from __future__ import annotations

import pytest

from tests.cloud import FAST, LOG_ID, URL, cloud_values, put_fragment, snapshot
from tests.uploader.care.rebuilding.rebuild_logs import (
    MANIFEST,
    Damage,
    check,
    make,
    no_fragment,
    no_manifest,
    plan,
    put,
    put_as,
    rebuild,
    wrong_setsum,
)
from tests.uploader.logs import begin, collect, extend, manifest_in, numbers
from tests.uploader.places import LeapClock
from uploader import CloudLog, CloudWriter, CollectorSettings, GarbageCollector
from uploader.care.admin.destroy import destroy
from uploader.care.admin.seal import seal
from uploader.care.rebuilding.rebuilding import apply_rebuild
from uploader.format import layout
from uploader.format.garbage import Garbage
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.ownership import Claim
from uploader.stores import RetryPolicy
from uploader.testing import FaultyStore, StoreKilled, faults
from walstore import CorruptionError, LogNotFoundError, LogSealedError
from walstore.errors import (
    WalError,
)


@pytest.mark.parametrize("damage", [no_fragment, no_manifest, wrong_setsum])
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
    await no_manifest(store)
    found = await plan(store)
    await store.put_if_absent(layout.TOMBSTONE, b"{}")
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await apply_rebuild(found, store=store)
    assert await store.head(MANIFEST) is None


async def test_destroying_takes_the_copies_as_well(store, worker) -> None:
    await make(store, worker)
    await no_fragment(store)
    await rebuild(store)
    assert (await destroy(URL, confirm=True, store=store)).left == ()
    assert [*await snapshot(store)] == [layout.TOMBSTONE]


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
    await no_manifest(store)
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
    await no_fragment(store)
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
    await no_fragment(store)
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
    await no_fragment(store)
    await rebuild(store)
    with pytest.raises(CorruptionError):
        await extend(log, store)
    assert await cloud_values(store) == numbers(1, 7)


async def test_a_directory_has_to_claim_what_lost_its_manifest(store, worker) -> None:
    """A newer directory may have claimed it, and put nothing yet."""
    claim = Claim(bytes.fromhex(LOG_ID), 3, "0123456789abcdef")
    log = SwappedRoot(store, FAST, worker)
    await log.load_or_create(claim.name)
    await put_as(store, log, claim)
    await no_manifest(store)
    found = await rebuild(store)
    made = Claim.parse(found.writer)
    assert made is not None
    assert (made.log_id, made.epoch) == (claim.log_id, 4)
    assert any("take_over=True" in note for note in found.notes)
    with pytest.raises(WalError):
        await put_as(store, log, claim)


async def test_what_a_directory_put_that_had_lost_the_prefix_is_no_part_of_it(
    store, worker
) -> None:
    identity = bytes.fromhex(LOG_ID)
    newer = Claim(identity, 2, "0123456789abcdef")
    log = SwappedRoot(store, FAST, worker)
    await log.load_or_create(newer.name)
    await put_as(store, log, newer)
    await no_manifest(store)
    await put(store, Claim(identity, 1, "fedcba9876543210").name, 2, 3)
    found = await plan(store)
    assert (found.start, found.limit) == (1, 3)


@pytest.mark.parametrize("maker", ["walstore-writer 0123456789abcdef", "walstore sealed, was: x"])
async def test_who_wrote_a_log_that_lost_its_manifest(store, maker) -> None:
    """Only what can be the name of a writer is taken for one."""
    await put(store, maker, 1, 1)
    found = await plan(store)
    assert found.writer == (maker if "-writer" in maker else "walstore rebuild")
    assert not found.is_sealed


async def test_the_writer_that_the_caller_names(store, worker) -> None:
    await make(store, worker)
    await no_manifest(store)
    found = await rebuild(store, writer="walstore " + LOG_ID)
    assert (await manifest_in(store)).writer == found.writer == "walstore " + LOG_ID
    assert not any("take_over" in note for note in found.notes)
