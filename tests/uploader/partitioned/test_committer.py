"""Committing writes: each of them once, whatever dies, is lost, or runs beside."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.cloud import FAST, copy_store, state_of
from tests.local import turns
from tests.uploader.partitioned.writes import (
    NOW_US,
    SMALL,
    StillClock,
    driver,
    epoch,
    keys_in,
    merged,
    new_job,
    records_in,
    stage,
    stager_of,
    table,
    values_in,
    worker_of,
    write_epoch,
)
from tests.waiting import until
from uploader import CloudWriter
from uploader.care.admin.destroy import destroy
from uploader.care.admin.seal import seal
from uploader.partitioned import (
    SinkSettings,
    Staged,
    Swept,
    WriteId,
    finish_commits,
    sweep_staging,
)
from uploader.partitioned.partitions import SubStore
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import (
    call,
    fail,
    hang,
    happen_then_fail,
    happen_then_kill,
    kill,
    postpone,
    report,
    timeout,
)
from walstore.errors import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    LogSealedError,
    StorageUnavailableError,
    WalError,
)
from walstore.testing import ManualClock

LAYOUTS = pytest.mark.parametrize("layout", ["swap", "chain"])


def numbered(name: bytes, count: int) -> list[bytes]:
    return [b"%s%03d" % (name, at) + bytes(60) for at in range(count)]


A, B, C, D = (numbered(name, 3) for name in (b"a", b"b", b"c", b"d"))


async def append(store: ObjectStore, partition: int, value: bytes) -> None:
    """Append as another program does, whose clock is ahead."""
    url, clock = "memory://ignored", StillClock(NOW_US + 1_000_000)
    retry = dataclasses.replace(FAST, clock=clock)
    sub = SubStore(store, partition)
    async with CloudWriter.open(url, store=sub, retry=retry, clock=clock) as log:
        await log.append(value)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@LAYOUTS
async def test_rows_of_all_tasks_are_in_the_logs_in_order(store, layout):
    settings = dataclasses.replace(SMALL, layout=layout)
    assert await write_epoch(store, epoch(0), {0: A, 1: B}, {1: C}, settings=settings)
    assert await write_epoch(store, epoch(1), {0: D}, settings=settings)
    assert await values_in(store, 0) == A + D
    assert await values_in(store, 1) == B + C
    assert await keys_in(store, "sink/") == ["sink/queries/query"]


@LAYOUTS
async def test_an_epoch_runs_again(store, layout):
    settings = dataclasses.replace(SMALL, layout=layout)
    assert await write_epoch(store, epoch(0), {0: A}, settings=settings)
    assert not await write_epoch(store, epoch(0), {0: A}, settings=settings)
    assert await write_epoch(store, epoch(1), {0: B}, settings=settings)
    assert not await write_epoch(store, epoch(0), {0: A}, {0: C}, settings=settings)
    assert await values_in(store, 0) == A + B
    assert await keys_in(store, "sink/") == ["sink/queries/query"]


async def test_an_epoch_without_rows_moves_the_record_on(store):
    assert await write_epoch(store, epoch(0), {})
    assert not await write_epoch(store, epoch(0), {0: A})
    assert await write_epoch(store, epoch(1), {0: B})
    assert await values_in(store, 0) == B


async def test_a_job_that_is_run_once_leaves_nothing(store):
    assert await write_epoch(store, WriteId.once(new_job()), {0: A, 2: B})
    assert await write_epoch(store, WriteId.once(new_job()), {0: A})
    assert await values_in(store, 0) == A + A
    assert await values_in(store, 2) == B
    assert await keys_in(store, "sink/") == []


async def test_what_is_staged_is_in_no_log(store):
    await stage(store, epoch(0), {0: A})
    assert await values_in(store, 0) == []
    async with CloudWriter.open("memory://x", store=SubStore(store, 0), retry=FAST) as log:
        await log.append(b"other")
    assert await values_in(store, 0) == [b"other"]


async def test_other_writers_come_between_tasks_and_driver(store):
    """What was staged for a place that is taken by now is encoded anew, behind."""
    write = epoch(0)
    staged = await stage(store, write, {0: A})
    await append(store, 0, b"other")
    async with driver(store) as committer:
        assert await committer.commit(write, staged)
    assert await values_in(store, 0) == [b"other", *A]


async def test_times_never_go_back(store):
    """Neither within a task, nor behind what the log has."""
    await write_epoch(store, epoch(0), {0: [b"late"]}, clock=StillClock(NOW_US + 5_000_000))
    write = epoch(1)
    async with worker_of() as worker, stager_of(store, write, worker) as stager:
        await stager.add(0, table([b"x", b"y", b"z"], [NOW_US + 9, NOW_US, NOW_US + 7_000_000]))
        staged = await stager.finish()
    async with driver(store) as committer:
        await committer.commit(write, staged)
    times = [record.timestamp_us - NOW_US for record in await records_in(store, 0)]
    assert times == [0, 9, 9, 7_000_000]
    async with CloudWriter.open("memory://x", store=SubStore(store, 0), retry=FAST) as log:
        await log.append(b"now", timestamp_us=NOW_US)
    await write_epoch(store, epoch(2), {0: [b"early"]})
    times = [record.timestamp_us - NOW_US for record in await records_in(store, 0)]
    assert times == [0, 9, 9, 7_000_000, 7_000_000, 7_000_000]


async def test_a_query_of_another_source_is_refused(store):
    await write_epoch(store, epoch(0), {0: A})
    with pytest.raises(InvalidSettingsError, match="belongs to another stream or job"):
        await write_epoch(store, WriteId("query", 7, new_job(), "stream-2"), {0: B})
    assert await values_in(store, 0) == A


async def test_a_sealed_log_is_told_before_anything_is_committed(store):
    await write_epoch(store, epoch(0), {0: A, 1: B})
    await seal("memory://x", store=SubStore(store, 1))
    with pytest.raises(LogSealedError):
        await write_epoch(store, epoch(1), {0: C, 1: D})
    assert await values_in(store, 0) == A
    assert await write_epoch(store, epoch(1), {0: C})
    assert await values_in(store, 0) == A + C


async def test_a_destroyed_log_takes_nothing(store):
    await write_epoch(store, epoch(0), {0: A})
    await seal("memory://x", store=SubStore(store, 0))
    await destroy("memory://x", store=SubStore(store, 0))
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await write_epoch(store, epoch(1), {0: B})


async def test_a_damaged_staged_object_is_not_published(store):
    write = epoch(0)
    staged = await stage(store, write, {0: A})
    key = staged[0][1].key
    data = bytearray((await store.get(key)).data)
    data[len(data) // 2] ^= 1
    await store.delete([key])
    await store.put_if_absent(key, bytes(data))
    async with driver(store) as committer:
        with pytest.raises(CorruptionError, match="not what a task put"):
            await committer.commit(write, staged)


async def test_a_staged_object_that_is_missing_is_told(store):
    write = epoch(0)
    staged = await stage(store, write, {0: A})
    await store.delete([staged[0][1].key])
    async with driver(store) as committer:
        for _ in range(2):
            with pytest.raises(CorruptionError, match="a committed row is lost"):
                await committer.commit(write, staged)


async def test_what_was_staged_long_ago_is_not_committed(store):
    write = epoch(0)
    staged = await stage(store, write, {0: A})
    later = StillClock(NOW_US + 6 * 86_400_000_000 + 1)
    async with driver(store, clock=later) as committer:
        with pytest.raises(WalError, match="begun 6 days ago"):
            await committer.commit(write, staged)
    assert await values_in(store, 0) == []


async def test_an_abandoned_write_leaves_nothing(store):
    await write_epoch(store, epoch(0), {0: A})
    write, once = epoch(1), WriteId.once(new_job())
    for given_up in (write, once):
        await stage(store, given_up, {0: B})
        async with driver(store) as committer:
            assert await committer.abort(given_up)
    assert await keys_in(store, "sink/staging/") == []
    with pytest.raises(WalError, match="given up"):
        await write_epoch(store, once, {0: B})
    assert await write_epoch(store, epoch(1), {0: C})
    assert await values_in(store, 0) == A + C


async def test_a_committed_write_is_not_given_up(store):
    """Spark calls abort after a commit that failed half way."""
    write = epoch(0)
    staged = await stage(store, write, {0: A, 1: B})
    store.on("put_if_match", kill(), key_prefix="1/manifest/")
    with pytest.raises(StoreKilled):
        async with driver(store) as committer:
            await committer.commit(write, staged)
    async with driver(store.inner) as committer:
        assert not await committer.abort(write)
    assert not await write_epoch(store.inner, epoch(0), {0: A, 1: B})
    assert (await values_in(store.inner, 0), await values_in(store.inner, 1)) == (A, B)


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_commit_that_arrives_after_it_was_given_up(store, is_named):
    write = epoch(0) if is_named else WriteId.once(new_job())
    staged = await stage(store, write, {0: A})
    clock = ManualClock(NOW_US)
    store.on("put_if_absent", postpone(store.late), key_prefix="sink/", times=10**9)
    async with driver(store, clock=clock) as committer:
        committing = asyncio.create_task(committer.commit(write, staged))
        await until(lambda: bool(store.late), seconds=60)
        await lose_patience(committing, clock)
        with pytest.raises(WalError):
            await committing
    async with driver(store.inner) as committer:
        assert await committer.abort(write)
    assert store.late
    await store.deliver()
    assert await write_epoch(store.inner, epoch(0) if is_named else WriteId.once(new_job()), {0: B})
    assert await values_in(store.inner, 0) == B


async def test_a_record_that_comes_back_after_its_job_is_done(store):
    """The first put of it arrives after everything: nothing is published twice."""
    write = WriteId.once(new_job())
    staged = await stage(store, write, {0: A})
    store.on("put_if_absent", postpone(store.late), key_prefix="sink/jobs/")
    async with driver(store) as committer:
        assert await committer.commit(write, staged)
    await store.deliver()
    assert await keys_in(store.inner, "sink/") == [write.record_key]
    later = StillClock(NOW_US + 3_600_000_000)
    assert await write_epoch(store.inner, WriteId.once(new_job()), {0: B}, clock=later)
    assert await values_in(store.inner, 0) == A + B
    assert await keys_in(store.inner, "sink/") == []


async def test_a_later_job_finishes_what_a_dead_one_committed(store):
    write = WriteId.once(new_job())
    staged = await stage(store, write, {0: A, 1: B})
    store.on("put_if_match", kill(), key_prefix="0/manifest/")
    with pytest.raises(StoreKilled):
        async with driver(store) as committer:
            await committer.commit(write, staged)
    later = StillClock(NOW_US + 3_600_000_000)
    assert await write_epoch(store.inner, WriteId.once(new_job()), {0: C}, clock=later)
    assert (await values_in(store.inner, 0), await values_in(store.inner, 1)) == (A + C, B)
    assert await keys_in(store.inner, "sink/") == []


async def test_a_job_that_cannot_be_finished_does_not_hold_up_others(store):
    write = WriteId.once(new_job())
    staged = await stage(store, write, {0: A, 1: B})
    store.on("put_if_match", kill(), key_prefix="0/manifest/")
    with pytest.raises(StoreKilled):
        async with driver(store) as committer:
            await committer.commit(write, staged)
    await seal("memory://x", store=SubStore(store.inner, 0))
    later = StillClock(NOW_US + 3_600_000_000)
    assert await write_epoch(store.inner, WriteId.once(new_job()), {1: C}, clock=later)
    assert (await values_in(store.inner, 1))[-len(C) :] == C


async def lose_patience(committing, clock):
    """Let time pass until a commit is given up."""
    while not committing.done():
        await turns(50)
        clock.advance(SMALL.patience_seconds)


async def test_a_store_that_is_silent_is_given_up(store):
    clock = ManualClock(NOW_US)
    store.on("any", fail(timeout()), times=10**9)
    async with driver(store, clock=clock) as committer:
        committing = asyncio.create_task(committer.commit(epoch(0), {}))
        await lose_patience(committing, clock)
        with pytest.raises(StorageUnavailableError, match="fulfilled no request"):
            await committing


async def test_others_who_never_stop_are_told_of(store):
    write = epoch(0)
    staged = await stage(store, write, {0: A})

    async def interfere() -> None:
        await append(store.inner, 0, b"x")

    settings = dataclasses.replace(SMALL, max_moves=3)
    store.on("put_if_absent", call(interfere), key_prefix="0/log/", times=99)
    async with driver(store, settings) as committer:
        with pytest.raises(ContentionError, match="again and again"):
            await committer.commit(write, staged)
    assert not await write_epoch(store.inner, epoch(0), {0: A})
    found = await values_in(store.inner, 0)
    assert [value for value in found if value != b"x"] == A


# -- every call ----------------------------------------------------------------------------------

FAULTS = {
    "dies": kill,
    "dies after": happen_then_kill,
    "answer lost": lambda: happen_then_fail(timeout()),
    "fails": lambda: fail(timeout("not_written")),
    "refused though done": lambda: report("412", happens=True),
}


async def begin(
    first: dict[int, list[bytes]], settings: SinkSettings
) -> tuple[MemoryStore, WriteId, Staged]:
    """Return a store with an epoch and what two tasks staged for the next one, and that epoch."""
    store = MemoryStore()
    await write_epoch(store, epoch(0), first, settings=settings)
    write = epoch(1)
    staged = merged(
        await stage(store, write, {0: B, 1: C}), await stage(store, write, {0: D}, task=1)
    )
    return store, write, staged


async def run_again(
    store: ObjectStore, settings: SinkSettings, nth: int, *, is_committed: bool
) -> None:
    """Run the epoch again unless its commit returned, look at the logs, and go on to the next one."""
    if not is_committed:
        await write_epoch(store, epoch(1), {0: B, 1: C}, {0: D}, settings=settings)
    assert await values_in(store, 0) == A + B + D, nth
    assert await values_in(store, 1) == B + C, nth
    await write_epoch(store, epoch(2), {1: A}, settings=settings)
    assert await values_in(store, 1) == B + C + A, nth
    assert await keys_in(store, "sink/") == ["sink/queries/query"]


@pytest.mark.parametrize(
    ("layout", "fault"),
    [*(("swap", fault) for fault in FAULTS), ("chain", "dies after"), ("chain", "answer lost")],
)
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_call_of_a_driver(layout, fault):
    """The epoch runs again after each fault: each row is there once, in order.

    It runs again once for what faults at several calls leave alike.
    """
    settings = dataclasses.replace(SMALL, layout=layout)
    begun, write, staged = await begin({0: A, 1: B}, settings)
    seen: set[tuple[bool, bytes]] = set()
    for nth in range(1, 400):
        store = FaultyStore(await copy_store(begun))
        store.on("any", FAULTS[fault](), nth=nth)
        before = store.requests
        again = True
        try:
            async with driver(store, settings) as committer:
                again = not await committer.commit(write, staged)
        except (StoreKilled, WalError):
            pass
        was_struck = store.requests - before >= nth
        left = again, await state_of(store.inner)
        if left not in seen:
            seen.add(left)
            await run_again(store.inner, settings, nth, is_committed=not again)
        if not was_struck:
            assert nth > 20
            return
    raise AssertionError("the commit never ended")


@LAYOUTS
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_old_driver_wakes_up_at_every_call(layout):
    """It stops, another one runs the epoch again and goes on, and it comes back: nothing is there twice."""
    settings = dataclasses.replace(SMALL, layout=layout)
    begun, write, staged = await begin({0: A}, settings)
    again, after = epoch(1), epoch(2)
    seen: set[bytes] = set()
    for nth in range(1, 400):
        store = FaultyStore(await copy_store(begun))
        asleep, wake = asyncio.Event(), asyncio.Event()
        store.on("any", hang(wake, asleep), nth=nth)
        async with driver(store, settings) as committer, asyncio.TaskGroup() as tasks:
            old = tasks.create_task(committer.commit(write, staged))
            reached = tasks.create_task(asleep.wait())
            await asyncio.wait((old, reached), return_when=asyncio.FIRST_COMPLETED)
            was_asleep = asleep.is_set()
            await append(store.inner, 0, b"other")
            await write_epoch(store.inner, again, {0: B, 1: C}, {0: D}, settings=settings)
            await write_epoch(store.inner, after, {0: C}, settings=settings)
            await append(store.inner, 0, b"other")
            wake.set()
            asleep.set()
        if (left := await state_of(store.inner)) not in seen:
            seen.add(left)
            await write_epoch(store.inner, epoch(3), {0: A}, settings=settings)
            found = await values_in(store.inner, 0)
            assert [value for value in found if value != b"other"] == A + B + D + C + A, nth
            assert found.count(b"other") == 2
            assert await values_in(store.inner, 1) == C, nth
            assert await keys_in(store.inner, "sink/") == ["sink/queries/query"], nth
        if not was_asleep:
            assert nth > 20
            return
    raise AssertionError("the commit never ended")


@LAYOUTS
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_another_writer_comes_between_at_every_call(layout):
    settings = dataclasses.replace(SMALL, layout=layout)
    begun, write, staged = await begin({0: A}, settings)
    found: dict[bytes, list[bytes]] = {}
    for nth in range(1, 400):
        store = FaultyStore(await copy_store(begun))
        was_called = was_told = False

        async def interfere(store: FaultyStore = store) -> None:
            nonlocal was_called, was_told
            was_called = True
            await append(store.inner, 0, b"other")
            was_told = True

        store.on("any", call(interfere), nth=nth)
        async with driver(store, settings) as committer:
            assert await committer.commit(write, staged)
        left = await state_of(store.inner)
        if left not in found:
            found[left] = await values_in(store.inner, 0)
        assert [value for value in found[left] if value != b"other"] == A + B + D, nth
        # What goes on behind publishing is cancelled at the end, and so is who comes between there.
        assert was_told <= found[left].count(b"other") <= was_called
        assert await keys_in(store.inner, "sink/") == ["sink/queries/query"], nth
        if not was_called:
            assert nth > 20
            return
    raise AssertionError("the commit never ended")


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.slow
async def test_every_call_of_giving_up(is_named):
    for nth in range(1, 50):
        store = FaultyStore(MemoryStore())
        write = epoch(0) if is_named else WriteId.once(new_job())
        await stage(store, write, {0: A})
        before = store.requests
        store.on("any", happen_then_kill() if nth % 2 else kill(), nth=(nth + 1) // 2)
        try:
            async with driver(store) as committer:
                await committer.abort(write)
        except StoreKilled:
            pass
        was_struck = store.requests - before >= (nth + 1) // 2
        async with driver(store.inner) as committer:
            assert await committer.abort(write)
        assert await keys_in(store.inner, "sink/staging/") == []
        assert await values_in(store.inner, 0) == []
        if not was_struck:
            return
    raise AssertionError("it never ended")


WEEK_US = 7 * 86_400_000_000
LATER = StillClock(NOW_US + WEEK_US + 1)
ROWS = [b"%03d" % at + bytes(60) for at in range(4)]


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
