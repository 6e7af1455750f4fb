"""Forks: new logs that begin with what another one holds, whatever happens on the way."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

import pytest

from tests.cloud import (
    FAST,
    URL,
    RecordingStore,
    cloud_values,
    put_fragment,
    snapshot,
    tier,
    values,
)
from tests.uploader.logs import begin, collect, extend, manifest_in, numbers, roll_up
from tests.uploader.parquet import copy_as_wal3
from uploader.care.admin.destroy import destroy
from uploader.care.admin.fork import fork
from uploader.care.admin.forking import Forked
from uploader.care.admin.seal import seal
from uploader.format import layout
from uploader.format.document import position, serialise
from uploader.format.manifest import Manifest
from uploader.format.rollup import RollUpSettings
from uploader.layouts.swapped_root import SwappedRoot
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled, faults
from uploader.testing.faults import Fault, fail, happen_then_fail, timeout
from walstore import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    Wal,
)
from walstore.core.runtime.threads import Worker


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


@pytest.fixture
def source() -> FaultyStore:
    return FaultyStore(MemoryStore("source"))


@pytest.fixture
def target() -> RecordingStore:
    return RecordingStore(MemoryStore())


@pytest.fixture(autouse=True)
def _empty_source(source: FaultyStore):
    source.inner._bucket.objects.clear()


async def copy(source: ObjectStore, target: ObjectStore, **options) -> Forked:
    return await fork(
        "memory://ignored",
        URL,
        source_store=source,
        target_store=target,
        retry=FAST,
        **options,
    )


async def pins(store: FaultyStore) -> list[str]:
    return [listed.key async for listed in store.inner.list(layout.CURSOR_FOLDER)]


# -- wal3's cases (80 to 85) -------------------------------------------------------------------


async def test_80_it_has_the_same_sum_and_the_same_bytes(source, target, worker) -> None:
    log = await begin(source, worker)
    before = await snapshot(source.inner)
    done = await copy(source, target)
    assert done == Forked.of(log.manifest)
    after = await snapshot(target.inner)
    for key in before:
        if key != layout.MANIFEST:
            assert after[key] == before[key]
    found = await manifest_in(target)
    assert found == dataclasses.replace(log.manifest, writer=found.writer)
    assert await cloud_values(target.inner) == numbers(1, 9)
    assert await snapshot(source.inner) == before


async def test_81_what_is_appended_afterwards_stays_with_either(source, target, worker) -> None:
    log = await begin(source, worker)
    await copy(source, target)
    await extend(log, source)
    assert await cloud_values(target.inner) == numbers(1, 9)
    forked = SwappedRoot(target, FAST, worker)
    await forked.load()
    await extend(forked, target, 2)
    assert await cloud_values(target.inner) == numbers(1, 13)
    assert await cloud_values(source.inner) == numbers(1, 11)


async def test_82_an_empty_log(source, target, worker) -> None:
    await begin(source, worker, fragments=0)
    assert (await copy(source, target)).limit == 1
    found = await manifest_in(target)
    assert found == Manifest.initial(found.writer)


async def test_82_a_log_of_which_all_was_collected_goes_on_where_it_was(
    source, target, worker
) -> None:
    log = await begin(source, worker)
    await collect(log, source, 4)
    assert (await copy(source, target)).next_seq_no == 5
    found = await manifest_in(target)
    assert (found.oldest_offset, found.next_offset, found.next_seq_no) == (9, 9, 5)
    forked = SwappedRoot(target, FAST, worker)
    await forked.load()
    await extend(forked, target)
    assert await cloud_values(target.inner) == numbers(9, 11)


async def test_82_from_the_end(source, target, worker) -> None:
    await begin(source, worker)
    done = await copy(source, target, start=9)
    assert (done.start, done.limit, done.next_seq_no) == (9, 9, 5)


@pytest.mark.parametrize(("start", "first"), [(1, 1), (2, 1), (3, 3), (8, 7)])
async def test_82_from_within(source, target, worker, start, first) -> None:
    """It begins with the fragment that holds the offset, under its own number."""
    await begin(source, worker)
    done = await copy(source, target, start=start)
    assert (done.start, done.limit) == (first, 9)
    found = await manifest_in(target)
    assert found.fragments[0].seq_no == (first + 1) // 2
    assert found.collected == type(found.collected)()
    assert await cloud_values(target.inner) == numbers(first, 9)


@pytest.mark.parametrize("stop", range(1, 10))
async def test_it_ends_exactly_where_it_is_told_to(source, target, worker, stop) -> None:
    await begin(source, worker)
    done = await copy(source, target, stop=stop)
    assert (done.start, done.limit) == (1, stop)
    assert await cloud_values(target.inner) == numbers(1, stop)
    forked = SwappedRoot(target, FAST, worker)
    await forked.load()
    await extend(forked, target)
    assert await cloud_values(target.inner) == numbers(1, stop + 2)


async def test_an_empty_fork_from_the_middle(source, target, worker) -> None:
    await begin(source, worker)
    done = await copy(source, target, start=4, stop=4)
    assert (done.start, done.limit, done.next_seq_no) == (4, 4, 2)


@pytest.mark.slow
async def test_82_deep_trees(source, target, worker) -> None:
    """The fork's own tree need not be that of the source."""
    log = await begin(source, worker, fragments=40)
    await roll_up(log, source)
    assert max(pointer.depth for pointer in log.manifest.snapshots) > 3
    done = await copy(source, target, start=6, stop=70)
    assert (done.start, done.limit) == (5, 70)
    assert await cloud_values(target.inner) == numbers(5, 70)


@pytest.mark.slow
async def test_82_its_manifest_is_rolled_up(source, target, worker) -> None:
    await begin(source, worker, fragments=300)
    await copy(source, target)
    found = await manifest_in(target)
    assert len(found.fragments) <= RollUpSettings().fragments_per_snapshot
    assert len(found.snapshots) == 4
    assert await cloud_values(target.inner) == numbers(1, 601)


async def test_82_several_forks_are_independent(source, worker) -> None:
    log = await begin(source, worker)
    targets = [MemoryStore(f"fork {number}") for number in range(3)]
    async with asyncio.TaskGroup() as group:
        for one in targets:
            group.create_task(copy(source, one))
    await seal(URL, store=targets[0])
    await destroy(URL, store=targets[1], confirm=True)
    await extend(log, source)
    assert await cloud_values(targets[2]) == numbers(1, 9)
    assert await pins(source) == []


@pytest.mark.slow
async def test_85_forks_of_a_log_that_is_written(source, worker) -> None:
    """Each is a beginning of it."""
    log = await begin(source, worker, fragments=1)
    targets = [MemoryStore() for _ in range(6)]

    async def fork_all() -> None:
        for target in targets:
            await copy(source, target)

    async with asyncio.TaskGroup() as group:
        group.create_task(fork_all())
        group.create_task(extend(log, source, 20))
    for target in targets:
        limit = (await manifest_in(target)).next_offset
        assert await cloud_values(target) == numbers(1, limit)


# -- what it is made of ----------------------------------------------------------------------


async def test_a_local_log_continues_a_fork(tmp_path: Path) -> None:
    store, target = MemoryStore(), MemoryStore()
    expected = values(30)
    async with Wal.open(tmp_path / "log", tier=tier(store)) as wal:
        await wal.append_many(expected)
    await copy(store, target, stop=21)
    async with Wal.open(tmp_path / "fork", tier=tier(target)) as wal:
        assert await wal.append(b"new") == 21
    assert await cloud_values(target) == [*expected[:20], b"new"]
    assert await cloud_values(store) == expected


async def test_a_fork_of_a_sealed_log_can_be_written(source, target, worker) -> None:
    await begin(source, worker)
    await seal(URL, store=source)
    await copy(source, target)
    forked = SwappedRoot(target, FAST, worker)
    await forked.load()
    await extend(forked, target)
    assert await cloud_values(target.inner) == numbers(1, 11)


async def test_what_progress_raises_is_raised(source, target, worker) -> None:
    """As it is, not in a group."""
    await begin(source, worker)

    def refuse(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await copy(source, target, progress=refuse, concurrency=2)


async def test_progress_is_told(source, target, worker) -> None:
    await begin(source, worker)
    told: list[Forked] = []
    done = await copy(source, target, progress=told.append, concurrency=2)
    assert [one.limit for one in told] == [3, 5, 7, 9]
    assert told[-1] == done


async def test_at_most_so_many_at_once(source, target, worker) -> None:
    await begin(source, worker, fragments=12)
    release, reached = asyncio.Event(), asyncio.Event()
    source.on("get_range", faults.hang(release, reached), times=99)
    async with asyncio.TaskGroup() as group:
        copying = group.create_task(copy(source, target, concurrency=3))
        async with asyncio.timeout(60):
            while source.count("get_range").requests < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert source.count("get_range").requests == 3
        release.set()
        await copying


# -- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": 10}, OffsetNotWrittenError),
        ({"stop": 10}, OffsetNotWrittenError),
        ({"start": 2}, OffsetTrimmedError),
        ({"stop": 2}, OffsetTrimmedError),
        ({"start": 7, "stop": 6}, InvalidSettingsError),
        ({"concurrency": 0}, InvalidSettingsError),
    ],
)
async def test_what_cannot_be_copied_is_refused_before_anything_is_put(
    source, target, worker, options, error
) -> None:
    log = await begin(source, worker)
    await collect(log, source, 1)
    before = await snapshot(source.inner)
    with pytest.raises(error):
        await copy(source, target, **options)
    assert await snapshot(target.inner) == {}
    assert await snapshot(source.inner) == before


async def test_no_source(source, target) -> None:
    with pytest.raises(LogNotFoundError):
        await copy(source, target)
    assert await snapshot(target.inner) == {}


async def test_a_log_in_the_way(source, target, worker) -> None:
    await begin(source, worker)
    await begin(target, worker, fragments=1)
    before = await snapshot(target.inner)
    with pytest.raises(ContentionError, match="a log at"):
        await copy(source, target)
    assert await snapshot(target.inner) == before


async def test_fragments_in_the_way(source, target, worker) -> None:
    await begin(source, worker)
    await put_fragment(target, 9, 1, [b"somebody's"])
    with pytest.raises(ContentionError, match="not empty"):
        await copy(source, target)


async def test_another_fork_in_the_way(source, target, worker) -> None:
    await begin(source, worker)
    target.on("put_if_absent", faults.kill(), key_prefix="log/")
    with pytest.raises(StoreKilled):
        await copy(source, target, stop=5)
    for options in ({"stop": 6}, {"start": 2, "stop": 5}):
        with pytest.raises(ContentionError, match="another fork"):
            await copy(source, target.inner, **options)
    assert (await copy(source, target.inner, stop=5)).limit == 5


@pytest.mark.parametrize("given", [{}, {"stop": 5}, {"start": 3}, {"start": 3, "stop": 9}])
async def test_a_finished_fork_is_found_with_the_same_arguments_only(
    source, target, worker, given
) -> None:
    """Also when the source has grown; a refused call changes nothing, here or at the source."""
    log = await begin(source, worker)
    done = await copy(source, target, **given)
    await extend(log, source)
    assert await copy(source, target, **given) == done
    before, pinned = await snapshot(target.inner), await snapshot(source.inner)
    others = ({}, {"stop": 4}, {"stop": 5}, {"start": 2}, {"start": 3}, {"start": 3, "stop": 8})
    for other in others:
        if other != given:
            with pytest.raises(ContentionError, match="holds another fork"):
                await copy(source, target, **other)
    assert await snapshot(target.inner) == before
    assert await snapshot(source.inner) == pinned
    assert await copy(source, target, **given) == done


async def test_all_of_the_source_is_another_fork_than_a_part_of_it(source, target, worker) -> None:
    """An interrupted fork of a part is not gone on with by a call that wants all."""
    await begin(source, worker)
    target.on("put_if_absent", faults.kill(), key_prefix="log/")
    with pytest.raises(StoreKilled):
        await copy(source, target, stop=5)
    with pytest.raises(ContentionError, match=r"another fork: of .* to 5;"):
        await copy(source, target.inner)
    assert (await copy(source, target.inner, stop=5)).limit == 5


async def test_the_end_of_a_whole_fork_may_be_named(source, target, worker) -> None:
    await begin(source, worker)
    assert await copy(source, target) == await copy(source, target, stop=9)


async def test_a_note_of_an_older_version(source, target, worker) -> None:
    """It does not say whether an end was given, so both calls go on."""
    await begin(source, worker)
    note = {"source": source.url, "start": None, "stop": position(5)}
    await target.put_if_absent(layout.FORK_NOTE, serialise(note))
    for options in ({}, {"stop": 5}):
        assert (await copy(source, target, **options)).limit == 5
    with pytest.raises(ContentionError, match="another fork"):
        await copy(source, target, stop=6)


async def test_a_fork_without_its_note(source, target, worker) -> None:
    """Nobody knows where it was to begin."""
    await begin(source, worker)
    await copy(source, target)
    await target.inner.delete([layout.FORK_NOTE])
    with pytest.raises(ContentionError, match="no note"):
        await copy(source, target)


async def test_where_a_log_was_destroyed(source, target, worker) -> None:
    await begin(source, worker)
    await begin(target, worker)
    await destroy(URL, store=target, confirm=True)
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await copy(source, target)


async def test_damage_is_not_copied(source, target, worker) -> None:
    await begin(source, worker)
    key = layout.fragment_path(2)
    data = bytearray((await source.inner.get(key)).data)
    data[100] ^= 1
    await source.inner.delete([key])
    await source.inner.put_if_absent(key, bytes(data))
    with pytest.raises(CorruptionError) as told:
        await copy(source, target)
    assert told.value.path == key
    assert layout.MANIFEST not in await snapshot(target.inner)


@pytest.mark.parametrize("is_longer", [False, True])
@pytest.mark.parametrize("stop", [9, 8])
async def test_fragments_of_another_length_are_copied(
    source, target, worker, is_longer, stop
) -> None:
    """As wal3's copy leaves them; the fork's manifest says how long they are. Called again, it finds them."""
    log = await begin(source, worker, 4)
    await copy_as_wal3(source.inner, log.manifest, is_longer=is_longer)
    target.on("put_if_absent", fail(timeout()), key_prefix="manifest/", times=2)
    with pytest.raises(OutcomeUnknownError):
        await copy(source, target, stop=stop)
    await copy(source, target, stop=stop)
    assert await cloud_values(target) == numbers(1, stop)
    for entry in (await manifest_in(target)).fragments:
        assert len((await target.get(entry.path)).data) == entry.num_bytes
    assert max(target.attempts.values()) <= 2


async def test_a_missing_fragment_is_damage(source, target, worker) -> None:
    await begin(source, worker)
    await source.inner.delete([layout.fragment_path(2)])
    with pytest.raises(CorruptionError, match="missing"):
        await copy(source, target)


# -- beside collectors -----------------------------------------------------------------------


async def test_the_source_is_pinned_meanwhile(source, target, worker) -> None:
    """At its first record, whatever is copied: a pin further on would let go of what comes before."""
    log = await begin(source, worker)
    await collect(log, source, 1)
    seen: list[bytes] = []

    async def look() -> None:
        seen.extend([(await source.inner.get(key)).data for key in await pins(source)])

    target.on("put_if_absent", faults.call(look), key_prefix="log/")
    await copy(source, target, start=7)
    assert b'"position":{"offset":3}' in seen[0]
    assert await pins(source) == []


@pytest.mark.parametrize("nth", range(1, 6))
async def test_a_collector_that_did_not_see_the_pin(source, target, worker, nth) -> None:
    """It had read the cursors before, and takes away what was to be copied: the rest is a log, too."""
    log = await begin(source, worker, fragments=6)
    behind = SwappedRoot(source.inner, FAST, worker)
    await behind.load()
    assert behind.manifest == log.manifest

    async def take_away() -> None:
        await collect(behind, source.inner, 3)

    source.on("get_range", faults.call(take_away), nth=nth)
    done = await copy(source, target, concurrency=2)
    assert done.limit == 13
    assert done.start in {1, 7}
    assert await cloud_values(target.inner) == numbers(done.start, 13)


async def test_a_collector_that_takes_what_was_asked_for(source, target, worker) -> None:
    log = await begin(source, worker, fragments=6)

    async def take_away() -> None:
        await collect(log, source.inner, 3)

    source.on("get_range", faults.call(take_away))
    with pytest.raises(OffsetTrimmedError):
        await copy(source, target, start=3)


async def test_a_source_that_is_destroyed_meanwhile_is_not_called_damaged(
    source, target, worker
) -> None:
    await begin(source, worker)

    async def end() -> None:
        await destroy(URL, store=source.inner, confirm=True)

    source.on("get_range", faults.call(end), key_prefix=layout.FRAGMENT_FOLDER)
    with pytest.raises(LogNotFoundError):
        await copy(source, target)


# -- faults ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_killed_at_every_call_and_called_again(
    source, worker, side, fault: type[Fault]
) -> None:
    """Nothing is put twice, and what comes out is what would have come out at once."""
    log = await begin(source, worker)
    for nth in range(1, 100):
        dying, target = FaultyStore(source.inner), RecordingStore(MemoryStore())
        victim = dying if side == "source" else target
        victim.on("any", fault(), nth=nth)
        with contextlib.suppress(StoreKilled, BaseExceptionGroup):
            await copy(dying, target, stop=8)
        finished = bool(victim._plans)
        survived = [key for key in await snapshot(target.inner) if key.startswith("log/")]
        again = RecordingStore(target.inner)
        done = await copy(source.inner, again, stop=8)
        assert (done.start, done.limit) == (1, 8)
        assert await cloud_values(target.inner) == numbers(1, 8)
        # The last one is cut anew, and found to be there already.
        assert not set(survived) & set(again.attempts) - {layout.fragment_path(4)}
        assert await pins(source) == []
        assert (await manifest_in(source)) == log.manifest
        if finished:
            assert nth > (6 if side == "source" else 9)
            return
    pytest.fail("it never got to its end")


async def test_what_is_appended_between_two_attempts_is_left_out(source, target, worker) -> None:
    """Every attempt copies the same, so none can remove or leave what another one put."""
    log = await begin(source, worker)
    target.on("put_if_absent", faults.kill(), key_prefix="manifest/")
    with contextlib.suppress(StoreKilled):
        await copy(source, target)
    await extend(log, source)
    assert (await copy(source, target.inner)).limit == 9
    assert await cloud_values(target.inner) == numbers(1, 9)


@pytest.mark.parametrize("place", ["fork/", "manifest/"])
async def test_answers_that_never_come(source, target, worker, place) -> None:
    """Nothing is known then, and calling again makes sure."""
    await begin(source, worker)
    target.on("put_if_absent", happen_then_fail(timeout()), key_prefix=place, times=2)
    target.on("get", fail(timeout()), key_prefix=place, nth=2, times=2)
    with pytest.raises(OutcomeUnknownError) as told:
        await copy(source, target)
    assert told.value.retriable
    target._plans.clear()
    assert (await copy(source, target)).limit == 9
    assert await cloud_values(target.inner) == numbers(1, 9)
    assert await pins(source) == []
