"""Sweeping up: what nobody can commit any more, and nothing else."""

from __future__ import annotations

import pytest

from tests.cloud import FAST
from tests.uploader.partitioned.writes import (
    NOW_US,
    StillClock,
    driver,
    epoch,
    keys_in,
    new_job,
    stage,
    values_in,
    write_epoch,
)
from uploader.partitioned import Swept, WriteId, finish_commits, sweep_staging
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import kill
from walstore.errors import InvalidSettingsError

WEEK_US = 7 * 86_400_000_000
LATER = StillClock(NOW_US + WEEK_US + 1)
ROWS = [b"%03d" % at + bytes(60) for at in range(4)]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def sweep(store: FaultyStore, clock: StillClock = LATER) -> Swept:
    return await sweep_staging("memory://x", store=store.inner, retry=FAST, clock=clock)


async def die_while_publishing(store: FaultyStore, write: WriteId) -> None:
    staged = await stage(store, write, {0: ROWS, 1: ROWS})
    store.on("put_if_match", kill(), key_prefix="1/manifest/")
    with pytest.raises(StoreKilled):
        async with driver(store) as committer:
            await committer.commit(write, staged)


async def test_what_nobody_committed_goes_after_a_week(store):
    await stage(store, epoch(0), {0: ROWS})
    await stage(store, WriteId.once(new_job()), {0: ROWS})
    assert await sweep(store, StillClock(NOW_US + WEEK_US)) == Swept(0, 0, 0)
    young = WriteId.once(new_job(NOW_US + 2))
    await stage(store, young, {0: ROWS})
    objects = len(await keys_in(store, "sink/"))
    found = await sweep(store)
    kept = await keys_in(store, "sink/")
    assert kept
    assert all(young.job in key for key in kept)
    assert found.objects == objects - len(kept)
    assert found.size_bytes > 0


@pytest.mark.parametrize("is_named", [True, False])
async def test_what_was_committed_is_finished_first(store, is_named):
    write = epoch(0) if is_named else WriteId.once(new_job())
    await die_while_publishing(store, write)
    found = await sweep(store)
    assert (found.finished, found.objects) == (1, 0)
    assert (await values_in(store.inner, 0), await values_in(store.inner, 1)) == (ROWS, ROWS)
    kept = await keys_in(store.inner, "sink/")
    assert kept == (["sink/queries/query"] if is_named else [])


async def test_commits_are_finished_on_request(store):
    write = WriteId.once(new_job())
    await die_while_publishing(store, write)
    for finished in (1, 0):
        assert await finish_commits("memory://x", store=store.inner, retry=FAST) == finished
    assert await values_in(store.inner, 1) == ROWS


async def test_records_of_jobs_that_were_given_up_go_too(store):
    write = WriteId.once(new_job())
    async with driver(store) as committer:
        assert await committer.abort(write)
    assert await keys_in(store, "sink/") == [write.record_key]
    assert (await sweep(store)).objects == 1
    assert await keys_in(store, "sink/") == []


async def test_other_objects_stay(store):
    await write_epoch(store, epoch(0), {0: ROWS})
    for key in ("sink/staging/odd", "sink/staging/a/b/c/d", "elsewhere"):
        await store.put_if_absent(key, b"?")
    before = await keys_in(store)
    assert (await sweep(store)).objects == 0
    assert await keys_in(store) == before


async def test_less_than_a_week_is_refused(store):
    with pytest.raises(InvalidSettingsError, match="at least 604800"):
        await sweep_staging("memory://x", older_than_seconds=3600, store=store)
