"""Rebuilding under faults: lost answers, kills at each call, late requests, changes by others."""

from __future__ import annotations

import contextlib

import pytest

from tests.cloud import FAST, URL, cloud_values, snapshot
from tests.uploader.care.rebuilding.rebuild_logs import (
    MANIFEST,
    Damage,
    check,
    make,
    no_fragment,
    no_manifest,
    other_snapshot,
    plan,
    rebuild,
    scrubbed,
    wrong_collected,
    wrong_setsum,
)
from tests.uploader.logs import extend, manifest_in, numbers
from uploader import CloudWriter
from uploader.care.admin.seal import seal
from uploader.care.rebuilding.rebuilding import apply_rebuild, plan_rebuild
from uploader.format import layout
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, StoreKilled, faults
from uploader.testing.faults import fail, happen_then_fail, timeout
from walstore import CorruptionError, LogNotFoundError, LogSealedError
from walstore.errors import (
    ContentionError,
    OutcomeUnknownError,
)


async def test_a_manifest_that_changed_since_the_plan_is_not_replaced(store, worker) -> None:
    await make(store, worker)
    await wrong_setsum(store)
    found = await plan(store)
    await wrong_collected(store)
    before = (await store.get(MANIFEST)).data
    with pytest.raises(ContentionError, match="changed since"):
        await apply_rebuild(found, store=store, retry=FAST)
    assert (await store.get(MANIFEST)).data == before


async def test_a_manifest_that_came_back_since_the_plan_is_not_replaced(store, worker) -> None:
    log = await make(store, worker)
    await no_manifest(store)
    found = await plan(store)
    await store.put_if_absent(MANIFEST, log.manifest.serialise())
    with pytest.raises(ContentionError, match="changed since"):
        await apply_rebuild(found, store=store, retry=FAST)
    assert await manifest_in(store) == log.manifest


async def test_a_plan_may_be_carried_out_twice(store, worker) -> None:
    await make(store, worker)
    await no_fragment(store)
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
    await no_fragment(store)

    async def move() -> None:
        await extend(log, store)

    moving.on("head", faults.call(move), times=9, key_prefix=layout.FORK_NOTE)
    with pytest.raises(ContentionError, match="changes while it is read"):
        await plan_rebuild(URL, store=moving)


async def test_lost_answers(store, worker) -> None:
    await make(store, worker)
    await no_fragment(store)
    found = await plan(store)
    lossy = FaultyStore(store)
    for kind in ("put_if_absent", "put_if_match"):
        lossy.on(kind, happen_then_fail(timeout()), times=3)
    await apply_rebuild(found, store=lossy, retry=FAST)
    assert await cloud_values(store) == numbers(1, 7)


@pytest.mark.slow
async def test_a_store_that_never_says_what_became_of_a_put(store, worker, tmp_path) -> None:
    await make(store, worker)
    await no_fragment(store)
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
@pytest.mark.parametrize("damage", [no_fragment, no_manifest, other_snapshot])
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
@pytest.mark.parametrize("damage", [no_fragment, no_manifest])
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
    await no_fragment(store)
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
    await no_fragment(store)
    found = await rebuild(store)
    assert ("note", found.kept_in) in await scrubbed(store)
    objects = [key for key in await snapshot(store) if key.startswith(found.kept_in)]
    assert len(objects) == len(found.set_aside) + 1
